"""Print results on standard output and everything else on standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from esupcon._console import percent, printable

if TYPE_CHECKING:
    from esupcon.probability import CalibrationFigures, Figures

_FILE_WIDTH = 110  # of output that is not shown on a terminal
INTERVALS = "In brackets: 95 % bootstrap intervals. ECE: expected calibration error, 15 bins."
_MAX_CLASSES, _WORST_CLASSES = 25, 10


#: The options of the running command by the names of their parameters.
OPTIONS: dict[str, str] = {}


def as_typed(message: str) -> str:
    """Spell parameters as options: ``image_column='x'`` becomes ``--image-column x`` and ``strict=True`` ``--strict``.

    A name that is also a plain word (seed, part) is replaced only before ``=`` or ``must`` at the start of the message.
    """
    for name, typed in OPTIONS.items():
        plain = "" if "_" in name else r"(?==)"
        named = rf"(?<![\w'\"./-]){re.escape(name)}{plain}"
        message = re.sub(rf"{named}=True(?!\w)", typed, message)
        message = re.sub(rf"{named}=False(?!\w)", f"--no-{typed.removeprefix('--')}", message)
        message = re.sub(rf"{named}=(['\"]?)([\w.-]*\w)\1", rf"{typed} \2", message)
        message = re.sub(rf"{named}(?![\w'\"/=])" if not plain else rf"^{re.escape(name)}(?= must )", typed, message)
    return message


def log(line: str) -> None:
    """Print a message of the library, which names parameters, with options as they are typed."""
    note(as_typed(line))


def note(line: object) -> None:
    """Print a message that accompanies a result."""
    print(printable(line), file=sys.stderr, flush=True)


def complain(line: object) -> None:
    """Print an error or a warning."""
    note(f"esupcon: {line}")


def answer(content: str | Table) -> None:
    """Print a result. Names are not interpreted as markup, and control characters are replaced."""
    if isinstance(content, str):
        content = "".join(c if c in " \n" else printable(c) or "\N{REPLACEMENT CHARACTER}" for c in content)
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=width).print(content, soft_wrap=False)


def answer_json(value: dict[str, Any] | list[Any]) -> None:
    """Print one JSON document, without NaN."""
    print(json.dumps(value, indent=2, allow_nan=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column holds names and whose other columns hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        made.add_column(printable(name), justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*(printable(cell) for cell in row))
    return made


def nats(value: float | None) -> str:
    """Return a log-likelihood as text; None is infinite."""
    return "infinite" if value is None else f"{value:.3f}"


def with_interval(record: Figures | CalibrationFigures, name: str) -> str:
    """Return a figure with its interval. Accuracy and ECE are shares, and shown in per cent."""
    values = [getattr(record, name), *getattr(record, f"{name}_interval")]
    if not name.startswith(("accuracy", "ece")):
        return "{} ({} to {})".format(*map(nats, values))
    return "{} ({} to {})".format(percent(values[0]), *(percent(one).removesuffix(" %") for one in values[1:]))


def figures_table(**sides: Figures) -> Table:
    """Return accuracy, ECE, NLL and Brier score with their intervals, one column per side."""
    names = {"accuracy": "accuracy", "ECE": "ece", "NLL": "nll", "Brier score": "brier"}
    rows = [[title, *(with_interval(one, name) for one in sides.values())] for title, name in names.items()]
    return table(["", *sides], rows)


def classes_table(figures: Figures) -> Table:
    """Return a row for every class that has samples; if there are many, for the worst ones."""
    present, name = [row for row in figures.per_class if row.n], "class"
    if len(present) > _MAX_CLASSES:
        name = f"worst {_WORST_CLASSES} of {len(present)} classes"
        present = sorted(present, key=lambda row: row.accuracy or 0)[:_WORST_CLASSES]
    rows = [[row.name, str(row.n), *map(percent, (row.accuracy, row.precision, row.probability))] for row in present]
    return table([name, "n", "accuracy", "precision", "mean p(own class)"], rows)
