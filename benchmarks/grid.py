"""Throughput of a grid: two one-thread workers beside one, in one run.

    python benchmarks/grid.py [--runs 4]

Each of the runs trains a small residual network on random pictures. A worker starts before its first run is timed:
what is compared is training, not the loading of libraries.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from esupcon.experiments.executor import Task
from esupcon.experiments.grid import run_grid
from esupcon.experiments.local import LocalExecutor, usable_cores
from esupcon.experiments.spec import Row, RunSpec
from esupcon.experiments.store import Store
from esupcon.spec import TrainSpec


class OneThread(LocalExecutor):
    """As many workers as asked for, each with one thread, whatever the machine has."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.threads = 1


def rows(data: Path, seeds: range, epochs: int) -> list[Row]:
    def spec(seed: int) -> RunSpec:
        train = TrainSpec(encoder="resnet10-w16", epochs=epochs, batch_size=100, precision="32", seed=seed)
        return RunSpec(dataset=str(data), train=train)

    return [Row("bench", "own", str(data), "full", "esupcon", seed, spec(seed)) for seed in seeds]


def seconds(executor: LocalExecutor, place: Path, data: Path, n_runs: int) -> float:
    """Of `n_runs` runs, after one short run a worker to warm it up."""
    store = Store(place)
    store.create()
    warm = [Task(row.spec, str(place)) for row in rows(data, range(100, 100 + executor.slots), 1)]
    for task in warm:
        executor.submit(task)
    done = 0
    while done < len(warm):
        done += sum(event.kind == "finished" for event in executor.events(0.5))
    started = time.perf_counter()
    standing = run_grid(rows(data, range(n_runs), 4), store, executor, lambda row: Task(row.spec, str(place)))
    took = time.perf_counter() - started
    assert standing.is_complete, standing.failed
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4, help="runs a side")
    n_runs = parser.parse_args().runs
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "noise.npz"
        x = rng.integers(0, 255, (1000, 3, 32, 32)).astype(np.uint8)
        y = np.arange(1000) % 10
        np.savez(data, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
        for round_ in range(2):
            one = seconds(OneThread(1), Path(folder) / f"one-{round_}", data, n_runs)
            two = seconds(OneThread(2), Path(folder) / f"two-{round_}", data, n_runs)
            print(
                f"{n_runs} runs on {usable_cores()} cores: one one-thread worker {one:.1f} s, two {two:.1f} s; "
                f"throughput x {one / two:.2f}"
            )


if __name__ == "__main__":
    main()
