"""A process that computes runs for a driver: one line of JSON a task on standard input, lines of JSON as answers.

It takes the lock of each run itself, so that the lock lives exactly as long as the work. When its input ends, because
the driver asks it to stop or has died, it saves the run it is at and leaves.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO, Any

from esupcon.experiments.execution import execute
from esupcon.experiments.modules import Module, run_modules
from esupcon.experiments.spec import RunSpec
from esupcon.experiments.store import LOG_FILE, Store

Answer = Callable[[dict[str, Any]], None]


@dataclass
class _Inbox:
    """Tasks as they come; None once there will be no more."""

    tasks: SimpleQueue[dict[str, Any] | None] = field(default_factory=SimpleQueue)
    closed: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> None:
        for line in sys.stdin:
            self.tasks.put(json.loads(line))
        self.closed.set()
        self.tasks.put(None)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    channel = _private_channel()

    def answer(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    inbox = _Inbox()
    threading.Thread(target=inbox.listen, daemon=True).start()
    while (task := inbox.tasks.get()) is not None and not inbox.closed.is_set():
        try:
            answer(compute(task, inbox.closed.is_set, answer))
        except BrokenPipeError:
            return  # the driver is gone; what was computed is stored


def compute(task: dict[str, Any], should_stop: Callable[[], bool], answer: Answer) -> dict[str, Any]:
    """The run of a task, under its lock. The answer says what became of it; nothing is raised for a failed run."""
    from esupcon.engine import TrainingInterrupted  # noqa: PLC0415 - slow to import

    key = task["key"]
    store = Store(task["store"])
    with store.locked(key) as held:
        if held is False:
            return {"key": key, "event": "elsewhere"}
        if store.is_done(key):
            return {"key": key, "event": "finished"}
        answer({"key": key, "event": "started"})
        work = store.work_folder(key)
        try:
            work.mkdir(parents=True, exist_ok=True)
            run_modules(Module(**module) for module in task["modules"])
            with (work / LOG_FILE).open("a", encoding="utf-8") as log:
                execute(
                    RunSpec.model_validate(task["spec"]),
                    work,
                    data_dir=task["data_dir"],
                    keep_model=task["keep_models"],
                    command=task["command"],
                    shared_stage=None if task["shared_stage"] is None else store.stage_file(task["shared_stage"]),
                    should_stop=should_stop,
                    log=lambda line: print(line, file=log, flush=True),
                )
            store.finish(key, work)
        except TrainingInterrupted:
            return {"key": key, "event": "stopped"}
        except Exception as error:
            return {"key": key, "event": "failed", **describe(error), "disk_full": _is_disk_full(error)}
    return {"key": key, "event": "finished"}


def describe(error: Exception) -> dict[str, Any]:
    """An error as a driver needs it: its line, and whether the same run would meet it again."""
    text = " ".join(str(error).split()) or type(error).__name__
    certain = isinstance(error, ValueError | FileNotFoundError | ModuleNotFoundError)
    known = isinstance(error, ValueError | OSError)
    return {"error": text if known else f"{type(error).__name__}: {text}", "certain": certain}


def _is_disk_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _private_channel() -> IO[str]:
    """Standard output for our answers alone: whatever else prints goes to standard error."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


if __name__ == "__main__":
    main()
