"""An executor without processes, for tests of what runs come to rather than of who computes them."""

from __future__ import annotations

from esupcon.experiments.executor import Event, Task
from esupcon.experiments.worker import compute


class InThisProcess:
    """The executor of local runs without its worker processes, whose start costs more than these runs."""

    slots = 1
    sees_store = True

    def __init__(self, workers: int | None = None, *, n_gpus: int = 0) -> None:
        self._told: list[Event] = []

    def submit(self, task: Task) -> None:
        message = compute(task.message(), lambda: False, lambda answer: None)
        self._told.append(Event(task.key, message["event"], message.get("error", "")))

    def events(self, timeout: float) -> list[Event]:
        told, self._told = self._told, []
        return told

    def stop(self) -> None: ...

    def close(self) -> None: ...
