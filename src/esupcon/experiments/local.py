"""Runs in processes of this machine, each with its share of the cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from esupcon.experiments.executor import Event, Task

_GRACE_SECONDS = 60.0
_LAST_LINES = 5
# glibc gives large blocks, such as activations, back to the system when they are freed, and the next step
# has every page of them zeroed anew: 15,000 faults a step for 200 images of 32x32, about a tenth of its time.
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


def usable_cores() -> int:
    """Those this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalExecutor:
    """`workers` processes with cores / workers threads each.

    Threads that outnumber the cores wait for each other at every step: two processes of two threads on two cores are
    many times slower than two of one thread. With accelerators, each worker sees one of them.
    """

    def __init__(self, workers: int | None = None, *, n_gpus: int = 0) -> None:
        cores = usable_cores()
        self.sees_store = True
        self.slots = workers if workers is not None else (n_gpus or cores)
        if self.slots < 1:
            raise ValueError(f"workers must be at least 1; got {self.slots}.")
        self.threads = max(1, cores // self.slots)
        self._n_gpus = n_gpus
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._processes: list[_Worker | None] = [None] * self.slots
        self._stopped = False

    def submit(self, task: Task) -> None:
        index = next(i for i, worker in enumerate(self._processes) if worker is None or worker.is_idle)
        worker = self._processes[index]
        if worker is not None and not worker.is_alive:
            worker.end(time.monotonic())
            worker = None
        if worker is None:
            worker = _Worker(self._environment(index), self._events)
            self._processes[index] = worker
        worker.give(task)

    def events(self, timeout: float) -> list[Event]:
        found: list[Event] = []
        with suppress(Empty):
            found.append(self._events.get(timeout=timeout))
            while True:
                found.append(self._events.get_nowait())
        return found

    def stop(self) -> None:
        """Closing their input asks the workers to save and leave."""
        for worker in self._processes:
            if worker is not None:
                worker.ask_to_stop()

    def close(self) -> None:
        self.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self._processes:
            if worker is not None:
                worker.end(deadline)

    def _environment(self, index: int) -> dict[str, str]:
        threads = str(self.threads)
        environment = {**_KEEP_FREED_MEMORY, **os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if self._n_gpus > 1:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self._n_gpus)))
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index % self._n_gpus]
        return environment


class _Worker:
    """One process, and the thread that hears it."""

    def __init__(self, environment: dict[str, str], events: SimpleQueue[Event]) -> None:
        # A session of its own: Ctrl-C reaches the driver alone, which then asks the workers to save.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "esupcon.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._events = events
        self._task: Task | None = None
        self._last_words: deque[str] = deque(maxlen=_LAST_LINES)
        self._hearing = [threading.Thread(target=target, daemon=True) for target in (self._hear, self._overhear)]
        for thread in self._hearing:
            thread.start()

    @property
    def is_idle(self) -> bool:
        return self._task is None

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def give(self, task: Task) -> None:
        self._task = task
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died; the thread that hears it tells so
            self._process.stdin.write(json.dumps(task.message()) + "\n")
            self._process.stdin.flush()

    def ask_to_stop(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self, deadline: float) -> None:
        self.ask_to_stop()
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._hearing:
            thread.join(timeout=5)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message["event"] != "started":
                self._task = None
            about = {name: message[name] for name in ("error", "certain", "disk_full") if name in message}
            self._events.put(Event(message["key"], message["event"], **about))
        code = self._process.wait()
        task, self._task = self._task, None
        if task is not None:
            self._events.put(Event(task.key, "failed", self._epitaph(code)))
        self._process.stdout.close()

    def _overhear(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                if line.strip():
                    self._last_words.append(line.strip())

    def _epitaph(self, code: int) -> str:
        if code < 0:
            with suppress(ValueError):
                name = signal.Signals(-code).name
                hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
                return f"its process was ended by {name}{hint}"
        words = f": {self._last_words[-1]}" if self._last_words else ""
        return f"its process ended with code {code}{words}"
