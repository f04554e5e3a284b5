"""Compute runs in local processes or on a Ray cluster. Both take tasks and report events."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol

from esupcon._console import usable_cores
from esupcon._io import write_bytes
from esupcon.experiments.plan import Plugin, Record, Spec
from esupcon.experiments.store import Store


class Task(Record):
    """A run to compute, with everything that a worker needs besides its specification."""

    spec: Spec
    store: str
    data_dir: str | None = None
    keep_models: bool = False
    command: str = ""
    plugins: tuple[Plugin, ...] = ()
    shared_stage: str | None = None  # key of a first stage that other runs of the grid share

    @property
    def key(self) -> str:
        return self.spec.key


class Event(Record):
    """What happened to a task.

    `running_elsewhere`: another command computes it. `permanent`: another attempt would fail, too. `disk_full`: so
    would every other run.
    """

    key: str
    kind: Literal["started", "finished", "failed", "stopped", "running_elsewhere"]
    error: str = ""
    permanent: bool = False
    disk_full: bool = False


class Executor(Protocol):
    """Computes `slots` tasks at a time. `is_local`: its processes see the files of this machine."""

    slots: int
    is_local: bool

    def submit(self, task: Task) -> None:
        """Start a task; called for at most `slots` tasks at a time."""

    def events(self, timeout: float) -> list[Event]:
        """Return what has happened, after waiting for at most `timeout` seconds."""

    def stop(self) -> None:
        """Tell all running tasks to save and stop; each reports `stopped`."""

    def close(self) -> None:
        """Stop, and wait until all processes have ended."""


# --- Processes of this machine ---------------------------------------------------------------------------------------

_GRACE_SECONDS = 60.0
# glibc returns large freed blocks, such as activations, to the system, and the next step has every page of them zeroed
# again: 15,000 page faults per step for 200 images of 32x32, about a tenth of its time.
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class LocalExecutor:
    """Computes runs in `workers` processes: by default one per GPU, or one per core.

    The number of threads is a setting of the run (`threads`, 1 in a grid), so the number of workers does not change any
    result. With several GPUs each worker sees one of them.
    """

    is_local = True

    def __init__(self, workers: int | None = None, *, n_gpus: int = 0) -> None:
        self.slots = workers if workers is not None else (n_gpus or usable_cores())
        if self.slots < 1:
            raise ValueError(f"workers must be at least 1; got {self.slots}.")
        self._n_gpus = n_gpus
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._workers: dict[int, _Worker] = {}

    def submit(self, task: Task) -> None:
        index = next(i for i in range(self.slots) if i not in self._workers or self._workers[i].task is None)
        if index in self._workers and self._workers[index].is_ending:
            self._workers.pop(index).end(time.monotonic() + _GRACE_SECONDS)
        if index not in self._workers:
            self._workers[index] = _Worker(self._environment(index), self._events)
        self._workers[index].give(task)

    def events(self, timeout: float) -> list[Event]:
        found: list[Event] = []
        with suppress(Empty):
            found.append(self._events.get(timeout=timeout))
            while True:
                found.append(self._events.get_nowait())
        return found

    def stop(self) -> None:
        for worker in self._workers.values():
            worker.close_input()

    def close(self) -> None:
        self.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self._workers.values():
            worker.end(deadline)

    def _environment(self, index: int) -> dict[str, str]:
        environment = {**_KEEP_FREED_MEMORY, **os.environ}
        if self._n_gpus > 1:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self._n_gpus)))
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index % self._n_gpus]
        return environment


class _Worker:
    """A worker process, and the thread that reads its events."""

    def __init__(self, environment: dict[str, str], events: SimpleQueue[Event]) -> None:
        self.task: Task | None = None
        self._stopped = False
        self._end: Event | None = None  # what to report of a task after the process has ended
        self._lock = threading.Lock()  # the process may end at the moment in which it is given a task
        self._events = events
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process has ended
        # -P: nothing is imported from the current folder. A session of its own: Ctrl-C reaches only the driver, which
        # then tells the workers to save.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "esupcon.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self._input = self.process.stdin
        self._reader = threading.Thread(target=self._read_events, daemon=True)
        self._reader.start()

    @property
    def is_ending(self) -> bool:
        """Whether the process has ended, or ends because it was terminated."""
        return self._stopped or self.process.poll() is not None

    def give(self, task: Task) -> None:
        with self._lock:
            self.task = task
            self._report_end()
        with suppress(BrokenPipeError):  # the process has died, which `_read_events` reports
            self._input.write(task.model_dump_json() + "\n")
            self._input.flush()

    def close_input(self) -> None:
        """Tell the process to save and exit, which it does when its input ends."""
        with suppress(BrokenPipeError):
            self._input.close()

    def end(self, deadline: float) -> None:
        self.close_input()
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(timeout=5)

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines, self._errors:
            for line in lines:
                event = Event.model_validate_json(line)
                if event.kind != "started":
                    self.task, self._stopped = None, event.kind == "stopped"
                self._events.put(event)
            code = self.process.wait()
            if code == -signal.SIGTERM:  # it came before the process could handle it
                end = Event(key="", kind="stopped")
            elif code < 0:
                hint = " (the system may have run out of memory)" if code == -signal.SIGKILL else ""
                name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
                end = Event(key="", kind="failed", error=f"its process was ended by {name}{hint}")
            else:
                self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 10_000))
                printed = self._errors.read().decode(errors="replace").strip().split("\n")[-1]
                error = f"its process ended with code {code}" + (f": {printed}" if printed else "")
                end = Event(key="", kind="failed", error=error)
        with self._lock:
            self._end = end
            self._report_end()

    def _report_end(self) -> None:
        if self.task is not None and self._end is not None:
            self._events.put(self._end.model_copy(update={"key": self.task.key}))
            self.task = None


# --- Ray -------------------------------------------------------------------------------------------------------------

_MAX_RETRIES = 3  # how many dead workers or nodes a run survives before it counts as failed
_CONNECT_SECONDS = 10.0


class RayExecutor:
    """Computes runs as tasks of the Ray cluster at `address`, or of a new one on this machine (`local`).

    Each run asks for `cpus` and `gpus`. The driver holds the lock of each run that it has submitted and moves the files
    of finished runs into the store, so only the network is shared. Ray restarts a run whose worker dies, from its
    beginning: the checkpoints are lost with the worker.
    """

    is_local = False

    def __init__(self, address: str, *, cpus: float = 1.0, gpus: float = 0.0) -> None:
        try:
            import ray  # noqa: PLC0415 - an extra, and slow to import
        except ModuleNotFoundError:
            raise ModuleNotFoundError("--ray needs the package ray: pip install 'esupcon[ray]'") from None
        self._ray: Any = ray
        self._started_here = not self._ray.is_initialized()
        if self._started_here:
            _connect(self._ray, address)
        has, wanted = self._ray.cluster_resources(), {"CPU": cpus, "GPU": gpus}
        self.slots = int(min((has.get(name, 0.0) / n for name, n in wanted.items() if n > 0), default=1))
        if self.slots < 1:
            amounts = "{:g} CPUs and {:g} GPUs".format
            found = amounts(has.get("CPU", 0), has.get("GPU", 0))
            raise ValueError(f"a run asks for {amounts(cpus, gpus)}; the cluster has {found}. Ask for less.")
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": _MAX_RETRIES, "max_calls": 0}
        self._function = self._ray.remote(**options)(compute_remotely)
        self._tasks: dict[Any, Task] = {}
        self._locks: dict[str, ExitStack] = {}
        self._waiting: list[Event] = []

    def submit(self, task: Task) -> None:
        store, lock = Store(task.store), ExitStack()
        held = lock.enter_context(store.locked(task.key))
        if held is False or store.is_done(task.key):
            lock.close()
            self._waiting.append(Event(key=task.key, kind="running_elsewhere" if held is False else "finished"))
            return
        self._locks[task.key] = lock
        self._tasks[self._function.remote(task.model_dump_json())] = task

    def events(self, timeout: float) -> list[Event]:
        found, self._waiting = self._waiting, []
        if not self._tasks:
            if not found:
                time.sleep(timeout)
            return found
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=0.0 if found else timeout)
        return [*found, *(self._receive(reference) for reference in ready)]

    def stop(self) -> None:
        for reference, task in list(self._tasks.items()):
            self._ray.cancel(reference, force=True)  # its checkpoints lie on another machine and end with it
            del self._tasks[reference]
            self._locks.pop(task.key).close()
            self._waiting.append(Event(key=task.key, kind="stopped"))

    def close(self) -> None:
        self.stop()
        if self._started_here:
            self._ray.shutdown()

    def _receive(self, reference: Any) -> Event:
        task = self._tasks.pop(reference)
        try:
            message, files = self._ray.get(reference)
            event = Event.model_validate_json(message)
            if event.kind == "finished":
                store_files(task, files)
        except self._ray.exceptions.RayError as error:
            return Event(key=task.key, kind="failed", error=f"lost on the cluster: {_one_line(error)[:300]}")
        except OSError as error:
            return Event(key=task.key, kind="failed", error=f"its result could not be stored: {error}")
        finally:
            self._locks.pop(task.key).close()
        return event


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _connect(ray: Any, address: str) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    options |= {"include_dashboard": False} if address == "local" else {"address": address}
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # Ray itself would try a wrong address for minutes
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        # Ray puts the folder in which it is initialised first on the import path of its workers.
        with tempfile.TemporaryDirectory(prefix="esupcon-ray-") as empty, contextlib.chdir(empty):
            ray.init(**options)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise ConnectionError(f"there is no Ray cluster at {address}: {_one_line(error)}. Check the address.") from None


def compute_remotely(message: str) -> tuple[str, dict[str, bytes]]:
    """Compute a task on a Ray worker, in a store of its own; return the event and the files of the finished run."""
    from esupcon.experiments.worker import compute  # noqa: PLC0415 - the worker module imports this one

    task = Task.model_validate_json(message)
    with tempfile.TemporaryDirectory(prefix="esupcon-run-") as place:
        store = Store(place)
        store.create()
        event = compute(task.model_copy(update={"store": place}), lambda: False, lambda event: None)
        folder = store.run_folder(task.key)
        paths = [path for path in folder.rglob("*") if path.is_file()] if event.kind == "finished" else []
        return event.model_dump_json(), {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def store_files(task: Task, files: dict[str, bytes]) -> None:
    """Write the files of a remote run beside the others, then rename their folder into the store."""
    store = Store(task.store)
    folder = store.root / "work" / f".{task.key}-{uuid.uuid4().hex[:8]}"
    try:
        for name, content in files.items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise OSError(f"a worker sent a file outside its folder: {name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        store.finish(task.key, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(store.work_folder(task.key), ignore_errors=True)  # what a local process may have started
