# %% [markdown]
# # Compare your own method in a grid, with a report
#
# A method is data: its stages, and the loss terms that each stage minimises. A table lists methods and settings. Each
# run is stored under a key computed from its settings, so running this script again computes nothing. The report is
# written from the stored runs.

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
# The method is defined in a file, because worker processes and other machines must be able to import it. It minimises
# SupCon on the projection and cross entropy on the logits at the same time. The paper's method `supcon_ce` minimises
# one after the other.

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
# The profile `smoke` has a small network and few epochs. Two seeds are the minimum that shows how much results vary
# by chance; use more before you draw conclusions.

# %%
plan = make_plan(str(folder / "mine.toml"), "smoke", seeds=(0, 1), allow_code=True)
store = Store(folder / "store")
state = run_grid([plan], store, LocalExecutor())
print(f"{len(state.rows)} runs: {len(state.finished)} computed, {len(state.stored)} already stored")
assert not state.failed, state.failed

# %%
accuracies = {}
for row in state.rows.values():
    accuracies.setdefault((row.setting, row.method), []).append(100 * store.read(row.key).accuracy)
for (setting, method), values in accuracies.items():
    seeds = " and ".join(f"{value:.1f}" for value in values)
    print(f"{setting:32} {method:14} {statistics.fmean(values):.1f} % (seeds: {seeds})")

# %% [markdown]
# Running the same grid again finds every run in the store. The report is one page that works offline. On the command
# line, `esupcon report` writes it.

# %%
again = run_grid([plan], store, LocalExecutor())
print(f"again: {len(again.finished)} computed, {len(again.stored)} already stored")
report = build(store.root, folder / "report.html")
print(f"the report is in {report}: {report.stat().st_size // 1024:,} kB, one file")
