"""What is said while data are loaded: lines on stderr, and a bar where stderr is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]


def say(line: str) -> None:
    """The default of every `log` argument."""
    print(f"esupcon: {line}", file=sys.stderr, flush=True)


class Notes:
    """Says a line and keeps it."""

    def __init__(self, log: Say) -> None:
        self._log = log
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self._log(line)


@contextmanager
def progress_bar(description: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Gives `advance(n)`; nothing is shown where nobody is looking."""
    if not sys.stderr.isatty():
        yield lambda n: None
        return
    from rich import progress  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415

    amount = [progress.DownloadColumn()] if in_bytes else [progress.MofNCompleteColumn()]
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *amount)
    with progress.Progress(
        *columns, progress.TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(description, total=total)
        yield lambda n: bar.advance(task, n)
