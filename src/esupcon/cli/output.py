"""What the commands print: answers on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_WIDTH_OF_FILES = 110
INTERVALS = "In brackets: 95 % bootstrap intervals. ECE: expected calibration error, 15 bins."
_FIGURES = (
    ("accuracy", "accuracy", True),
    ("ECE", "ece", True),
    ("NLL", "nll", False),
    ("Brier score", "brier", False),
)
_ALL_CLASSES, _WORST_CLASSES = 25, 10


def say(line: str) -> None:
    """A line for the user, beside the answer."""
    print(printable(line), file=sys.stderr, flush=True)


def complain(line: str) -> None:
    print(f"esupcon: {printable(line)}", file=sys.stderr, flush=True)


def answer(content: str | Table) -> None:
    """On standard output; class names and paths are shown as they are, not read as markup."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_FILES
    Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=width).print(content, soft_wrap=False)


def answer_json(value: dict[str, Any] | list[Any]) -> None:
    """One JSON document: strict JSON, so no NaN."""
    print(json.dumps(value, indent=2, allow_nan=False))


def printable(text: str) -> str:
    """One line without control characters: names of files and classes may hold any."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """The first column holds names, the others figures."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        made.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*(printable(cell) for cell in row))
    return made


def figures_table(sides: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """Accuracy, ECE, NLL and Brier score with their intervals, one column for each side."""
    rows = [[name, *(_with_interval(figures, key, share) for _, figures in sides)] for name, key, share in _FIGURES]
    return table(["", *(name for name, _ in sides)], rows)


def classes_table(figures: dict[str, Any]) -> Table:
    """Every class that has samples, or of many the worst."""
    present = [row for row in figures["per_class"] if row["n"]]
    name = "class"
    if len(present) > _ALL_CLASSES:
        name = f"worst {_WORST_CLASSES} of {len(present)} classes"
        present = sorted(present, key=lambda row: row["accuracy"])[:_WORST_CLASSES]
    rows = [
        [row["class"], str(row["n"]), percent(row["accuracy"]), percent(row["precision"]), percent(row["probability"])]
        for row in present
    ]
    return table([name, "n", "accuracy", "precision", "mean p(own class)"], rows)


def _with_interval(figures: dict[str, Any], key: str, share: bool) -> str:
    low, high = figures[f"{key}_interval"]
    if share:
        return f"{percent(figures[key])} ({100 * low:.1f} to {100 * high:.1f})"
    return f"{_plain(figures[key])} ({_plain(low)} to {_plain(high)})"


def _plain(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3f}"
