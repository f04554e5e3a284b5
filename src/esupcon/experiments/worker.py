"""A process that computes runs for a driver. Tasks arrive as JSON lines on standard input, events leave as JSON lines.

The process holds the lock of each run itself, so the lock lasts exactly as long as the work. It saves its run and exits
when its input ends (the driver stops it, or has died) or when it receives SIGTERM.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

from esupcon._io import open_to_append, refuse_link
from esupcon.experiments.executors import Event, Task
from esupcon.experiments.store import LOG_FILE, Store
from esupcon.spec import RunSpec


def main() -> None:
    """Compute the tasks of standard input, one after the other."""
    lines: SimpleQueue[str | None] = SimpleQueue()  # None: there will be no more
    stopping = threading.Event()

    def stop(number: int = 0, frame: FrameType | None = None) -> None:
        stopping.set()
        lines.put(None)

    def read_input() -> None:
        for line in sys.stdin:
            lines.put(line)
        stop()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=read_input, daemon=True).start()
    # Standard output carries events only; whatever else is printed goes to standard error.
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    try:
        while (line := lines.get()) is not None and not stopping.is_set():
            channel.write(compute(Task.model_validate_json(line), stopping.is_set).model_dump_json() + "\n")
            channel.flush()
    except BrokenPipeError:
        return  # the driver has died; what was computed is stored


def compute(task: Task, should_stop: Callable[[], bool]) -> Event:
    """Compute a run under its lock and move it into the store. A failed run is an event, not an exception."""
    from esupcon.training import TrainingInterrupted  # noqa: PLC0415 - slow to import

    store, key = Store(task.store), task.key
    with store.locked(key) as held:
        if not held:
            return Event(key=key, kind="running_elsewhere")
        try:
            if not store.is_done(key):
                _train(task, store, should_stop)
        except TrainingInterrupted:
            return Event(key=key, kind="stopped")
        except (Exception, SystemExit) as error:  # a plugin may exit
            text = " ".join(str(error).split())
            return Event(
                key=key,
                kind="failed",
                error=text if text and isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {text}",
                permanent=isinstance(error, ValueError | FileNotFoundError | ModuleNotFoundError),
                disk_full=isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT),
            )
    return Event(key=key, kind="finished")


def _train(task: Task, store: Store, should_stop: Callable[[], bool]) -> None:
    from esupcon.experiments.measures import figures  # noqa: PLC0415 - slow to import
    from esupcon.training import train  # noqa: PLC0415

    work = store.work_folder(task.key)
    refuse_link(work)
    work.mkdir(parents=True, exist_ok=True)
    for plugin in task.plugins:
        plugin.execute()
    spec = RunSpec.model_validate(task.spec.model_dump())  # its method must be known now
    # One thread decodes: the other cores are busy with other runs.
    data = spec.data.model_copy(update={"data_dir": task.data_dir, "workers": 1})
    with open_to_append(work / LOG_FILE) as log:
        result = train(
            spec.model_copy(update={"data": data}),
            work,
            keep_model=task.keep_models,
            should_stop=should_stop,
            log=lambda line: print(line, file=log, flush=True),
            progress=False,
            command=task.command,
            extra=lambda fitted, dataset: figures(fitted, dataset, task.second, task.data_dir),
        )
    if result.run.key != task.key:
        change = result.run.difference(task.spec)
        raise ValueError(f"the run has changed since it was planned: {change}. Repeat the command.")
    store.finish(task.key, work)


if __name__ == "__main__":
    main()
