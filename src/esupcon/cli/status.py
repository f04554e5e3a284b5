"""`esupcon status`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from esupcon.cli import options as shared
from esupcon.cli.grid_view import duration
from esupcon.cli.output import answer, answer_json, complain, table
from esupcon.experiments.status import TableStatus, status_of
from esupcon.experiments.store import Store


def status(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the runs.")] = Path("runs/store"),
    as_json: shared.Json = False,
) -> None:
    """Show what of each table in a store is done, running, failed and open, and how long the rest takes."""
    tables = status_of(Store(store))
    if as_json:
        answer_json([one.as_dict() for one in tables])
        return
    rows = [_listed(one) for one in tables]
    answer(table(["table", "profile", "done", "running", "failed", "open", "left, one at a time"], rows))
    for one in tables:
        for reason, n in Counter(one.errors.values()).items():
            complain(f"{one.table}: {n} failed: {reason}")
        for line in one.damaged:
            complain(f"{one.table}: {line}")


def _listed(one: TableStatus) -> list[str]:
    counts: dict[str, Any] = one.counts
    left = "–" if one.n_left == 0 else "unknown" if one.seconds_left is None else f"about {duration(one.seconds_left)}"
    done = f"{counts['done']} of {one.n_runs}"
    waiting = str(counts["open"] + counts["begun"])
    return [one.table, one.profile, done, str(counts["running"]), str(counts["failed"]), waiting, left]
