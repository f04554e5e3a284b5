"""A grid while it runs: a live table of means on a terminal, a line for each finished run elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from esupcon.cli.output import percent, printable, say
from esupcon.experiments.cost import seconds_left
from esupcon.experiments.grid import Standing, name_of
from esupcon.experiments.store import Store, StoredRun
from esupcon.experiments.summary import spread, summarise
from esupcon.methods import METHODS

_REFRESH_SECONDS = 1.0
_MOST_LINES = 12


class GridView:
    """Shows a `Standing`; finished runs are read from the store once."""

    def __init__(self, store: Store, workers: int) -> None:
        self._store, self._workers = store, workers
        self._runs: dict[str, StoredRun] = {}
        self._told: set[str] = set()
        self._started = time.monotonic()
        self._shown = 0.0
        self._live = (
            Live(console=Console(stderr=True), refresh_per_second=4, transient=True) if sys.stderr.isatty() else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        if self._live is None:
            say(line)
        else:
            self._live.console.print(printable(line), markup=False, highlight=False)

    def accuracies(self, standing: Standing) -> dict[str, float | None]:
        for key in standing.done_keys:
            if key not in self._runs:
                self._runs[key] = self._store.read(key)
        return {key: run.accuracy for key, run in self._runs.items()}

    def __call__(self, standing: Standing) -> None:
        if self._live is None:
            self._tell_news(standing)
        elif time.monotonic() - self._shown > _REFRESH_SECONDS or standing.is_complete:
            self._shown = time.monotonic()
            self._live.update(self._picture(standing))

    def _tell_news(self, standing: Standing) -> None:
        if not self._told and standing.stored:
            say(f"{len(standing.stored)} of {len(standing.rows)} runs are stored already.")
            self._told.update(standing.stored)
        for key in standing.finished:
            if key not in self._told:
                self._told.add(key)
                accuracy = self.accuracies(standing)[key]
                say(f"{len(self._told)}/{len(standing.rows)}  {name_of(standing.rows[key])}: {percent(accuracy)}")

    def _picture(self, standing: Standing) -> Group:
        progress = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=len(standing.rows), completed=standing.n_done, width=30)
        progress.add_row(bar, Text(self._progress_line(standing)))
        return Group(
            means_table(standing, self.accuracies(standing)),
            progress,
            *(Text(f"  running: {printable(name_of(standing.rows[key]))}") for key in standing.running),
        )

    def _progress_line(self, standing: Standing) -> str:
        parts = [f"{standing.n_done} of {len(standing.rows)} runs"]
        if standing.failed:
            parts.append(f"{len(standing.failed)} failed")
        if standing.elsewhere:
            parts.append(f"{len(standing.elsewhere)} in another command")
        parts.append(f"{duration(time.monotonic() - self._started)} passed")
        remaining = [standing.rows[key].spec for key in (*standing.pending, *standing.running)]
        left = seconds_left(remaining, self._runs.values(), self._workers)
        if left is not None and remaining:
            parts.append(f"about {duration(left)} left")
        return ", ".join(parts)


def means_table(standing: Standing, accuracies: dict[str, float | None]) -> Table:
    """A row for each column of the tables: those with most news where there are too many to show."""
    lines = summarise(standing.rows.values(), accuracies)
    methods = list(dict.fromkeys(row.method for row in standing.rows.values()))
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Test accuracy so far, %", title_justify="left")
    made.add_column("")
    for method in methods:
        made.add_column(METHODS[method].title, justify="right")
    begun = [line for line in lines if line.accuracies] or lines
    for line in begun[:_MOST_LINES]:
        made.add_row(printable(line.name), *(spread(list(line.accuracies.get(m, {}).values())) for m in methods))
    if len(begun) > _MOST_LINES:
        made.add_row(f"and {len(begun) - _MOST_LINES} more")
    return made


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
