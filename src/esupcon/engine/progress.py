"""Progress of a run on a terminal: loss, held-out accuracy, images per second, time left. Silent elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """`shown=None` shows the bar where standard error is a terminal."""

    def __init__(self, shown: bool | None = None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("epochs  {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self.shown,
        )
        self._accuracy: float | None = None
        self._last = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start_stage(self, title: str, stage: int, n_stages: int, n_epochs: int) -> None:
        name = title if n_stages == 1 else f"{title} {stage + 1}/{n_stages}"
        for task in self._bar.task_ids:
            self._bar.stop_task(task)
        self._task = self._bar.add_task(name, total=n_epochs, figures="")
        self._last = time.monotonic()

    def step(self, epoch: int, step: int, n_steps: int, loss: float, images: int) -> None:
        """After one step of `images` images; `loss` is the mean of the epoch so far."""
        if not self.shown:
            return
        now = time.monotonic()
        rate, self._last = images / max(now - self._last, 1e-9), now
        figures = f"loss {loss:.4f}"
        if self._accuracy is not None:
            figures += f"  held-out {100 * self._accuracy:.1f} %"
        self._bar.update(self._task, completed=epoch + step / n_steps, figures=f"{figures}  {rate:,.0f} images/s")

    def epoch(self, epoch: int, accuracy: float | None) -> None:
        self._accuracy = accuracy
        if self.shown:
            self._bar.update(self._task, completed=epoch + 1)

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
