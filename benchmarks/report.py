"""A report of a store of 2,000 runs: processor time of the command, and the size of the page.

    python benchmarks/report.py [--runs 2000]

One run on digits is trained; the others are copies of its files under the keys of other seeds and settings.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from esupcon.experiments.executors import LocalExecutor
from esupcon.experiments.grid import run_grid
from esupcon.experiments.plan import make_plan
from esupcon.experiments.store import Store
from esupcon.training.result import RESULT_FILE, Result


def fill(store: Store, n_runs: int) -> int:
    """Fill a store with all methods and several seeds of the paper's four tables, at most `n_runs` runs."""
    state = run_grid([make_plan("demo", "smoke", methods=("esupcon",), seeds=(0,))], store, LocalExecutor(1))
    example = store.run_folder(state.finished[0])
    result = Result.read(example)
    n = 0
    for name in ("full", "low_sample", "imbalanced", "noisy"):
        if n == n_runs:
            break
        plan = make_plan(name, "paper", seeds=range(10))
        plan = plan.model_copy(update={"rows": plan.rows[: n_runs - n]})
        store.write_plan(plan)
        for row in plan.rows:
            folder = store.work_folder(row.key)
            shutil.copytree(example, folder, ignore=shutil.ignore_patterns(RESULT_FILE), copy_function=os.link)
            result.model_copy(update={"key": row.key, "run": row.spec}).write(folder)
            store.finish(row.key, folder)
            n += 1
    return n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="runs in the store")
    n_runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        store, page = Store(Path(folder) / "store"), Path(folder) / "report.html"
        n = fill(store, n_runs)
        started = os.times()
        subprocess.run(
            [sys.executable, "-P", "-m", "esupcon", "report", str(store.root), "--out", str(page)], check=True
        )
        ended = os.times()
        took = ended.children_user + ended.children_system - started.children_user - started.children_system
        print(f"{n:,} runs: {took:.1f} s, {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
