"""An executor without processes, for tests of what runs give rather than of who computes them."""

from __future__ import annotations

from esupcon.experiments.executors import Event, Task
from esupcon.experiments.worker import compute


class InThisProcess:
    """Replaces LocalExecutor: starting worker processes costs more than the runs of most tests."""

    slots = 1

    def __init__(self, workers: int | None = None, *, n_gpus: int = 0) -> None:
        self._events: list[Event] = []

    def submit(self, task: Task) -> None:
        self._events.append(compute(task, lambda: False))

    def events(self, timeout: float) -> list[Event]:
        found, self._events = self._events, []
        return found

    def stop(self) -> None: ...

    def close(self) -> None: ...
