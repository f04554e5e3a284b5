"""What computes runs, whatever it is made of: it takes tasks and tells what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from esupcon.experiments.modules import Module
from esupcon.experiments.spec import RunSpec

Kind = Literal["started", "finished", "failed", "stopped", "elsewhere"]


@dataclass(frozen=True)
class Task:
    """A run to be computed, with what it needs besides its specification."""

    spec: RunSpec
    store: str
    data_dir: str | None = None
    keep_models: bool = False
    command: str = ""
    modules: tuple[Module, ...] = ()
    shared_stage: str | None = None  # of a first stage that other runs of the grid share

    @property
    def key(self) -> str:
        return self.spec.key

    def message(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "spec": self.spec.model_dump(),
            "store": self.store,
            "data_dir": self.data_dir,
            "keep_models": self.keep_models,
            "command": self.command,
            "modules": [module.as_dict() for module in self.modules],
            "shared_stage": self.shared_stage,
        }


@dataclass(frozen=True)
class Event:
    """What became of a task. `elsewhere`: another command computes it. `certain`: trying again would fail again.
    `disk_full`: so would every other run, and what there is of this one is kept."""

    key: str
    kind: Kind
    error: str = ""
    certain: bool = False
    disk_full: bool = False


class Executor(Protocol):
    """`slots` tasks at once; `sees_store` where the processes that compute them can read and write it.

    After `stop` the runs in hand are saved where they can be, and tell that they stopped.
    """

    slots: int
    sees_store: bool

    def submit(self, task: Task) -> None: ...

    def events(self, timeout: float) -> list[Event]:
        """What has happened, waiting at most so many seconds for it."""
        ...

    def stop(self) -> None: ...

    def close(self) -> None: ...
