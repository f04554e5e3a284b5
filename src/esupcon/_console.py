"""Text for people: messages, progress, numbers, and names escaped by one function for each medium."""

from __future__ import annotations

import html
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

#: Receives one line of text at a time.
Log = Callable[[str], None]


def say(line: str) -> None:
    """Print a line on standard error: the default of every `log` argument."""
    print(f"esupcon: {printable(line)}", file=sys.stderr, flush=True)


def printable(value: object) -> str:
    """Return text as one line without control characters, lone surrogates or marks that change the writing direction.

    Every name from a file goes through here before it reaches a terminal.
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(str(value).split()))


def csv_text(value: object) -> str:
    """Return text that no spreadsheet takes for a formula: an apostrophe stands before `= + - @` where a cell starts.

    A spreadsheet may divide lines at other characters than the comma, so a cell may start after each of them.
    """
    return re.sub(r"((?:^|[,;|\t\r\n\"])[ \"]*)(?=[=+\-@＝＋－＠])", r"\1'", str(value))


def markdown_text(value: object) -> str:
    """Return text without markup, tags, links or mentions; empty comments keep GitHub from making links."""
    text = re.sub(r"([\\`*_{}\[\]|~!$#])", r"\\\1", html.escape(printable(value), quote=False))
    text = re.sub(r"^(\d*)([-+=.)])(?=[-=\s]|$)", r"\1\\\2", text)  # the start of a list or the line under a heading
    text = re.sub(r"([@#])", r"\1<!-- -->", text)
    return re.sub(r"(?i)(://|(?<=www)\.|(?<=GH)-|(?<=mailto):|(?<=xmpp):)", r"<!-- -->\1", text)


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as text: ``93.4 %``, or a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def duration(seconds: float) -> str:
    """Return seconds as text: ``12 s``, ``4 min``, ``2 h 05 min``."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def count(n: int, noun: str) -> str:
    """Return a number with its noun: ``1 image``, ``2,000 images``, ``3 classes``."""
    plural = f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise a ValueError if an argument is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}; got {value!r}.")


@contextmanager
def explained(problem: str, remedy: str) -> Iterator[None]:
    """Make one ValueError of one line of whatever the code of a user or of a library raises."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise ValueError(f"{problem} ({reason}). {remedy}") from error


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def progress_bar(description: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar if standard error is a terminal. Yield `advance(n)`."""
    if not sys.stderr.isatty():
        yield lambda n: None
        return
    from rich import progress  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415

    amount = progress.DownloadColumn() if in_bytes else progress.MofNCompleteColumn()
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), amount, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda n: bar.advance(task, n)
