"""Compute runs in processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any, Literal

from esupcon._console import printable, usable_cores
from esupcon.experiments.plan import Plugin, Record, Spec


class Task(Record):
    """A run to compute, with everything that a worker needs besides its specification."""

    spec: Spec
    store: str
    data_dir: str | None = None
    second: str | None = None  # see `Row.second`
    keep_models: bool = False
    command: str = ""
    plugins: tuple[Plugin, ...] = ()

    @property
    def key(self) -> str:
        return self.spec.key


class Event(Record):
    """How a task ended. Every task has one event.

    `running_elsewhere`: another command computes it. `permanent`: another attempt would fail, too. `disk_full`: so
    would every other run.
    """

    key: str
    kind: Literal["finished", "failed", "stopped", "running_elsewhere"]
    error: str = ""
    permanent: bool = False
    disk_full: bool = False


_GRACE_SECONDS = 60.0
# glibc returns large freed blocks, such as activations, to the system, and the next step has every page of them zeroed
# again: 15,000 page faults per step for 200 images of 32x32, about a tenth of its time.
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class LocalExecutor:
    """Computes runs in `workers` processes: by default one per GPU, or one per core.

    The number of threads is a setting of the run (`threads`, 1 in a grid), so the number of workers does not change any
    result. With several GPUs each worker sees one of them.
    """

    def __init__(self, workers: int | None = None, *, n_gpus: int = 0) -> None:
        self.slots = workers if workers is not None else (n_gpus or usable_cores())
        if self.slots < 1:
            raise ValueError(f"workers must be at least 1; got {self.slots}.")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n_gpus)))
        gpus = visible.split(",")[:n_gpus] if n_gpus > 1 else [None]
        self.workers = [_Worker(gpus[i % len(gpus)]) for i in range(self.slots)]
        self._idle = self.workers[::-1]
        self._threads: list[Thread] = []
        self._events: SimpleQueue[Event] = SimpleQueue()

    def submit(self, task: Task) -> None:
        """Start a task; called for at most `slots` tasks at a time."""
        thread = Thread(target=self._compute, args=(self._idle.pop(), task), daemon=True)
        self._threads = [thread, *(one for one in self._threads if one.is_alive())]
        thread.start()

    def _compute(self, worker: _Worker, task: Task) -> None:
        try:
            event = worker.compute(task)
        except (OSError, ValueError) as error:  # no process could be started, or its answer is not an event
            event = Event(key=task.key, kind="failed", error=printable(error))
        self._idle.append(worker)
        self._events.put(event)

    def events(self, timeout: float) -> list[Event]:
        """Return what became of tasks, after waiting for at most `timeout` seconds."""
        found: list[Event] = []
        with suppress(Empty):
            found.append(self._events.get(timeout=timeout))
            while True:
                found.append(self._events.get_nowait())
        return found

    def stop(self) -> None:
        """Tell all running tasks to save and stop; each reports `stopped`. No task is submitted afterwards."""
        for worker in self.workers:
            worker.stop()

    def close(self) -> None:
        """Stop, and wait until all processes have ended; kill those that take longer than a minute."""
        self.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in [worker.process for worker in self.workers if worker.process is not None]:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        for thread in self._threads:
            thread.join()
        for worker in self.workers:
            worker.end()


class _Worker:
    """A worker process, started for its first task and again after it has died. It saves and exits when input ends."""

    def __init__(self, gpu: str | None) -> None:
        self.environment = {"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {}
        self.process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes]  # what the process prints
        self._is_stopping = False

    def compute(self, task: Task) -> Event:
        """Return what became of a task, also if the process dies."""
        if self.process is None or self.process.poll() is not None:
            self.end()
            self._start()
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        if self._is_stopping:  # since before there was a process to tell
            self.stop()
        with suppress(BrokenPipeError, ValueError):  # the process has died, or was told to stop
            process.stdin.write(task.model_dump_json() + "\n")
            process.stdin.flush()
        if line := process.stdout.readline():
            event = Event.model_validate_json(line)
            if event.kind == "stopped":
                self.end()
            return event
        code = process.wait()
        if code == -signal.SIGTERM or self._is_stopping:  # it ended before it could report
            return Event(key=task.key, kind="stopped")
        if code < 0:
            name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
            hint = " (the system may have run out of memory)" if code == -signal.SIGKILL else ""
            return Event(key=task.key, kind="failed", error=f"its process was ended by {name}{hint}")
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 10_000))
        printed = self._errors.read().decode(errors="replace").strip().split("\n")[-1]
        return Event(key=task.key, kind="failed", error=": ".join([f"its process ended with code {code}", printed]))

    def _start(self) -> None:
        # -P: nothing is imported from the current folder. A session of its own: Ctrl-C reaches only the driver, which
        # then tells the workers to save.
        words = [sys.executable, "-P", "-m", "esupcon.experiments.worker"]
        environment = {**_KEEP_FREED_MEMORY, **os.environ, **self.environment}
        options: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
        with ExitStack() as opened:
            self._errors = opened.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                words, stderr=self._errors, env=environment, start_new_session=True, **options
            )
            opened.pop_all()  # `end` closes it

    def stop(self) -> None:
        """Tell the process to save and exit."""
        self._is_stopping = True  # first: a process that starts now looks at it
        process = self.process
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()

    def end(self) -> None:
        """Wait until the process has ended, and close its pipes."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(BrokenPipeError), self._errors, process:
                pass
