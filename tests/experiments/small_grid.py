"""A grid of quick runs on images that a small network learns in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esupcon.experiments.executors import Task
from esupcon.experiments.grid import resolve
from esupcon.experiments.plan import Plan, Row
from esupcon.experiments.store import Store
from esupcon.spec import RunSpec, TrainSpec
from tiny_images import write_npz


def small_plan(
    folder: Path,
    *,
    methods: tuple[str, ...] = ("ce", "esupcon"),
    n_seeds: int = 2,
    source: Path | None = None,
    **train: Any,
) -> Plan:
    """Return a plan whose keys are known: its data are read."""
    data = source or folder / "corners.npz"
    if not data.exists():
        write_npz(data)
    settings = {"encoder": "mlp-16x1", "epochs": 3, "batch_size": 30, "precision": "32", "threads": 1, **train}
    rows = tuple(
        Row(
            table="small",
            profile="own",
            dataset=str(data),
            setting="full",
            method=method,
            seed=seed,
            spec=RunSpec(
                source=str(data), validation_fraction=0.1, train=TrainSpec(method=method, seed=seed, **settings)
            ),
        )
        for method in methods
        for seed in range(n_seeds)
    )
    (plan,) = resolve([Plan(table="small", profile="own", title="Small", rows=rows)])
    return plan


def task(store: Store, row: Row) -> Task:
    return Task(spec=row.spec, store=str(store.root))
