# %% [markdown]
# # A method of your own, compared in a grid, with a report
#
# Methods are data: stages, and the terms that each minimises. A table names methods and settings; the runs are stored
# by their specification, so that the same script again computes nothing; the report reads the store.

# %%
import statistics
from pathlib import Path

from esupcon.experiments.executors import LocalExecutor
from esupcon.experiments.grid import run_grid
from esupcon.experiments.plan import make_plan
from esupcon.experiments.store import Store
from esupcon.report import build

folder = Path("runs/examples/own-method")
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# The method stands in a file, since worker processes, and other machines, must know it too. SupCon on the projection
# and cross entropy on the logits, both at once; the paper has them one after the other, as `supcon_ce`.

# %%
(folder / "mine.py").write_text("""
from esupcon.methods import Method, Stage, Term, register

register(
    Method(
        key="supcon_and_ce",
        title="SupCon & CE",
        summary="Both at once, in one stage.",
        head="linear",
        stages=(
            Stage(
                terms=(Term("supcon", on="projection", weight=0.5), Term("ce", on="logits")),
                trains=("encoder", "projector", "head"),
            ),
        ),
    )
)
""")
(folder / "mine.toml").write_text("""
title = "Both at once, or one after the other"
modules = ["mine.py"]
methods = ["ce", "supcon_ce", "supcon_and_ce", "esupcon"]

[[columns]]
dataset = "digits"
setting = "200 digits"
n_train = 200

[[columns]]
dataset = "digits"
setting = "200 digits, a fifth mislabelled"
n_train = 200
noise_rate = 0.2
""")

# %% [markdown]
# The profile `smoke` has a small network and few epochs. Two seeds are the least that shows how much of a difference is
# chance; take more before you believe one.

# %%
plan = make_plan(str(folder / "mine.toml"), "smoke", seeds=(0, 1), allow_code=True)
store = Store(folder / "store")
state = run_grid([plan], store, LocalExecutor())
print(f"{len(state.rows)} runs: {len(state.finished)} computed, {len(state.stored)} were already stored")
assert not state.failed, state.failed

# %%
accuracies = {}
for row in state.rows.values():
    accuracies.setdefault((row.setting, row.method), []).append(100 * store.read(row.key).accuracy)
for (setting, method), values in accuracies.items():
    seeds = " and ".join(f"{value:.1f}" for value in values)
    print(f"{setting:32} {method:14} {statistics.fmean(values):.1f} % (seeds: {seeds})")

# %% [markdown]
# The same grid again finds every run in the store. The report is one page that opens offline; `esupcon report` writes
# it on the command line.

# %%
again = run_grid([plan], store, LocalExecutor())
print(f"again: {len(again.finished)} computed, {len(again.stored)} were already stored")
report = build(store.root, folder / "report.html")
print(f"the report is in {report}: {report.stat().st_size // 1024:,} kB, one file")
