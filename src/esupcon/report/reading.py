"""Everything a report needs of a store, read once: plans, runs, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esupcon.experiments.store import Store, StoredRun, in_order

_ROW_TEXTS = ("key", "dataset", "setting", "method")


@dataclass(frozen=True)
class Collected:
    """`plans` oldest first; `damaged` says of each run left out why it was, `unreadable` of each plan or file."""

    root: Path
    plans: Sequence[Mapping[str, Any]]
    runs: Mapping[str, StoredRun]
    damaged: Mapping[str, str]
    unreadable: Sequence[str]
    failures: Mapping[str, str]

    @property
    def complaints(self) -> list[str]:
        return [*(f"run {key} is left out: {why}" for key, why in self.damaged.items()), *self.unreadable]


def collect(root: Path) -> Collected:
    """Reads a store; one that holds neither runs nor plans is a ValueError."""
    store = Store(root)
    store.require()
    runs: dict[str, StoredRun] = {}
    damaged: dict[str, str] = {}
    keys = store.keys()
    for key in keys:
        try:
            runs[key] = store.read(key)
        except (ValueError, OSError) as error:
            damaged[key] = " ".join(str(error).split())
    plans, unreadable = _plans(store)
    if not runs and not plans:
        also = (
            f" What lies in it cannot be read: {[*damaged.values(), *unreadable][0]}" if damaged or unreadable else ""
        )
        raise ValueError(
            f"{root} holds no finished run and no plan, so there is nothing to report. "
            f"Fill it with esupcon reproduce --store {root}.{also}"
        )
    failures = {path.stem: store.failure(path.stem) or "" for path in sorted((root / "failed").glob("*.json"))}
    return Collected(root, plans, runs, damaged, unreadable, failures)


def _plans(store: Store) -> tuple[list[dict[str, Any]], list[str]]:
    """A plan that cannot be read is left out and named; the report goes on with the others."""
    good: list[dict[str, Any]] = []
    complaints = []
    for path in store.plan_paths():
        try:
            good.append(store.read_plan(path))
        except (ValueError, OSError) as error:
            complaints.append(" ".join(f"a plan is left out: {error}".split()))
    return in_order(good), complaints
