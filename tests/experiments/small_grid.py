"""A grid of quick runs on pictures that a small network learns in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esupcon.experiments.executor import Task
from esupcon.experiments.local import usable_cores
from esupcon.experiments.spec import Row, RunSpec
from esupcon.experiments.store import Store
from esupcon.spec import TrainSpec
from tiny_images import write_npz

ONE_THREAD_EACH = usable_cores()  # workers: more threads would only wait for each other on so small a network


def small_rows(
    folder: Path, *, methods: tuple[str, ...] = ("ce", "esupcon"), n_seeds: int = 2, **train: Any
) -> list[Row]:
    data = folder / "corners.npz"
    if not data.exists():
        write_npz(data)
    settings = {"encoder": "mlp-16x1", "epochs": 3, "batch_size": 30, "precision": "32", **train}
    return [
        Row(
            table="small",
            profile="own",
            dataset=str(data),
            setting="full",
            method=method,
            seed=seed,
            spec=RunSpec(
                dataset=str(data),
                validation_fraction=0.1,
                train=TrainSpec(method=method, seed=seed, **settings),  # type: ignore[arg-type]
            ),
        )
        for method in methods
        for seed in range(n_seeds)
    ]


def task_maker(store: Store) -> Any:
    return lambda row: Task(row.spec, str(store.root))
