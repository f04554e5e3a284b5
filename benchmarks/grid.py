"""Measure the throughput of a grid: two one-thread workers against one.

    python benchmarks/grid.py [--runs 4]

Each run trains a small residual network on random images. Workers are started before the clock, so the import of
libraries is not measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from esupcon._console import usable_cores
from esupcon.experiments.executors import LocalExecutor, Task
from esupcon.experiments.grid import resolve, run_grid
from esupcon.experiments.plan import Plan, Row
from esupcon.experiments.store import Store
from esupcon.spec import RunSpec, TrainSpec


def plan(data: Path, seeds: range, epochs: int) -> Plan:
    rows = []
    for seed in seeds:
        train = TrainSpec(encoder="resnet10-w16", epochs=epochs, batch_size=100, precision="32", threads=1, seed=seed)
        rows.append(
            Row(
                table="bench",
                profile="own",
                dataset=str(data),
                setting="full",
                method="esupcon",
                seed=seed,
                spec=RunSpec(source=str(data), train=train),
            )
        )
    return resolve([Plan(table="bench", profile="own", title="Bench", rows=tuple(rows))])[0]


def seconds(workers: int, place: Path, data: Path, n_runs: int) -> float:
    """Return the seconds of `n_runs` runs, after one short run per worker to warm it up."""
    store, executor = Store(place), LocalExecutor(workers)
    store.create()
    warm = [Task(spec=row.spec, store=str(place)) for row in plan(data, range(100, 100 + workers), 1).rows]
    for task in warm:
        executor.submit(task)
    done = 0
    while done < len(warm):
        done += sum(event.kind == "finished" for event in executor.events(0.5))
    started = time.perf_counter()
    state = run_grid([plan(data, range(n_runs), 4)], store, executor)
    took = time.perf_counter() - started
    assert state.is_complete, state.failed
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4, help="runs per side")
    n_runs = parser.parse_args().runs
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "noise.npz"
        x = rng.integers(0, 255, (1000, 3, 32, 32)).astype(np.uint8)
        y = np.arange(1000) % 10
        np.savez(data, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
        for round_ in range(2):
            one = seconds(1, Path(folder) / f"one-{round_}", data, n_runs)
            two = seconds(2, Path(folder) / f"two-{round_}", data, n_runs)
            print(
                f"{n_runs} runs on {usable_cores()} cores: one one-thread worker {one:.1f} s, two {two:.1f} s; "
                f"throughput x {one / two:.2f}"
            )


if __name__ == "__main__":
    main()
