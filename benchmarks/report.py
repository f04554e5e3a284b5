"""A report of a store of 2,000 runs: seconds, and the size of the page.

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
import time
from pathlib import Path

from esupcon.experiments.execution import execute
from esupcon.experiments.plan import Choice, make_plan
from esupcon.experiments.profile import read_profile
from esupcon.experiments.store import SPEC_FILE, Store, write_spec
from esupcon.experiments.table import read_table


def fill(store: Store, n_runs: int) -> int:
    """Every method and several seeds of the paper's four tables, at most `n_runs` runs."""
    store.create()
    example = store.root / "example"
    first = make_plan("demo", read_profile("smoke"), Choice(methods=("esupcon",), seeds=(0,))).rows[0].spec
    execute(
        first, example, data_dir=None, keep_model=False, command="x", should_stop=lambda: False, log=lambda line: None
    )
    n = 0
    for name in ("full", "low_sample", "imbalanced", "noisy"):
        table, _ = read_table(name)
        rows = make_plan(name, read_profile("paper"), Choice(seeds=tuple(range(10)))).rows[: n_runs - n]
        about = {"paper": table.paper, "measure": table.measure, "baseline": table.baseline, "command": "x"}
        store.note_plan(rows, title=table.title, notes=[], extra=about)
        for row in rows:
            folder = store.work_folder(row.key)
            shutil.copytree(example, folder, ignore=shutil.ignore_patterns(SPEC_FILE), copy_function=os.link)
            write_spec(folder, row.spec)
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
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "esupcon", "report", str(store.root), "--out", str(page)], check=True)
        took = time.perf_counter() - started
        print(f"{n:,} runs: {took:.1f} s, {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
