"""Compute runs in local processes or on a Ray cluster.

Both kinds of executor compute `slots` tasks at a time and have the same methods. `is_local`: its processes see the
files of this machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any, Literal

from esupcon._console import printable, usable_cores
from esupcon._io import write_bytes
from esupcon.experiments.plan import Plugin, Record, Spec
from esupcon.experiments.store import Store


class Task(Record):
    """A run to compute, with everything that a worker needs besides its specification."""

    spec: Spec
    store: str
    data_dir: str | None = None
    second: str | None = None  # see `Row.second`
    keep_models: bool = False
    command: str = ""
    plugins: tuple[Plugin, ...] = ()
    shared_stage: str | None = None  # key of a first stage that other runs of the grid share

    @property
    def key(self) -> str:
        return self.spec.key


class Event(Record):
    """What became of a task; every task gives one event.

    `running_elsewhere`: another command computes it. `permanent`: another attempt would fail, too. `disk_full`: so
    would every other run.
    """

    key: str
    kind: Literal["finished", "failed", "stopped", "running_elsewhere"]
    error: str = ""
    permanent: bool = False
    disk_full: bool = False


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
        """Stop, and wait until all processes have ended."""
        self.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self.workers:
            worker.wait(max(0.0, deadline - time.monotonic()))
        for thread in self._threads:
            thread.join()
        for worker in self.workers:
            worker.end()


class _Worker:
    """A worker process, started for its first task and again after it has died. It saves and exits when input ends."""

    def __init__(self, gpu: str | None) -> None:
        self.environment = {"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {}
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes]  # what the process prints
        self._is_stopping = False

    def compute(self, task: Task) -> Event:
        """Return what became of a task, also if the process dies."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._process = self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
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

    def _start(self) -> subprocess.Popen[str]:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            # -P: nothing is imported from the current folder. A session of its own: Ctrl-C reaches only the driver,
            # which then tells the workers to save.
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "esupcon.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
                env={**_KEEP_FREED_MEMORY, **os.environ, **self.environment},
                start_new_session=True,
            )
        except OSError:
            self._errors.close()
            raise

    def stop(self) -> None:
        """Tell the process to save and exit."""
        self._is_stopping = True  # first: a process that starts now looks at it
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended; kill it if it takes longer."""
        if (process := self._process) is not None:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()

    def end(self) -> None:
        """Wait until the process has ended, and close its pipes."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(BrokenPipeError), self._errors, process:
                pass


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
        self._tasks: dict[Any, tuple[Task, ExitStack]] = {}  # with the lock of the run
        self._waiting: list[Event] = []

    def submit(self, task: Task) -> None:
        store, lock = Store(task.store), ExitStack()
        held = lock.enter_context(store.locked(task.key))
        if held is False or store.is_done(task.key):
            lock.close()
            self._waiting.append(Event(key=task.key, kind="running_elsewhere" if held is False else "finished"))
        else:
            self._tasks[self._function.remote(task.model_dump_json())] = task, lock

    def events(self, timeout: float) -> list[Event]:
        found, self._waiting = self._waiting, []
        if not self._tasks and not found:
            time.sleep(timeout)
        if not self._tasks:
            return found
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=0.0 if found else timeout)
        return [*found, *map(self._receive, ready)]

    def stop(self) -> None:
        for reference, (task, lock) in self._tasks.items():
            self._ray.cancel(reference, force=True)  # its checkpoints lie on another machine and end with it
            lock.close()
            self._waiting.append(Event(key=task.key, kind="stopped"))
        self._tasks.clear()

    def close(self) -> None:
        self.stop()
        if self._started_here:
            self._ray.shutdown()

    def _receive(self, reference: Any) -> Event:
        task, lock = self._tasks.pop(reference)
        with lock:
            try:
                message, files = self._ray.get(reference)
                event = Event.model_validate_json(message)
                if event.kind == "finished":
                    Store(task.store).add(task.key, lambda folder: write_files(folder, files))
            except self._ray.exceptions.RayError as error:
                reason = " ".join(str(error).split())[:300]
                return Event(key=task.key, kind="failed", error=f"lost on the cluster: {reason}")
            except OSError as error:
                return Event(key=task.key, kind="failed", error=f"its result could not be stored: {error}")
        return event


Executor = LocalExecutor | RayExecutor


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
        reason = " ".join(str(error).split())
        raise ConnectionError(f"there is no Ray cluster at {address}: {reason}. Check the address.") from None


def compute_remotely(message: str) -> tuple[str, dict[str, bytes]]:
    """Compute a task on a Ray worker, in a store of its own; return the event and the files of the finished run."""
    from esupcon.experiments.worker import compute  # noqa: PLC0415 - the worker module imports this one

    task = Task.model_validate_json(message)
    with tempfile.TemporaryDirectory(prefix="esupcon-run-") as place:
        store = Store(place)
        store.create()
        event = compute(task.model_copy(update={"store": place}), lambda: False)
        folder = store.run_folder(task.key)  # there is none if the run has failed
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return event.model_dump_json(), files


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a remote run; refuse names outside the folder."""
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise OSError(f"a worker sent a file outside its folder: {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
