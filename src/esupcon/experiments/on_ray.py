"""Runs as tasks of a Ray cluster. Their files come back with the answer, so nothing but the network is shared."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from esupcon.experiments.executor import Event, Task
from esupcon.experiments.store import Store
from esupcon.files import write_bytes

_LOST_WORKERS = 3  # so many dead workers or nodes a run survives before it counts as failed
_PATIENCE_SECONDS = 10.0
_CHECKPOINT_PREFIX = "checkpoint"


class RayExecutor:
    """`address` of a cluster, or `local` for one on this machine. Each run asks for `cpus` and `gpus`.

    The driver holds the lock of each run it has given out, and brings finished ones into the store. A run whose worker
    dies is started again by Ray, on another worker, from its beginning: its checkpoints died with the worker.
    """

    def __init__(self, address: str, *, cpus: float = 1.0, gpus: float = 0.0) -> None:
        try:
            import ray  # noqa: PLC0415 - an extra, and slow to import
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "--ray needs the package ray. Install it with: pip install 'esupcon[ray]'"
            ) from None
        self._ray: Any = ray
        self._started_here = not ray.is_initialized()
        if self._started_here:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False}
            if address != "local":
                _check_that_someone_listens(address)
                options = {"address": address, "log_to_driver": False, "logging_level": "error"}
            try:
                ray.init(**options)
            except (ConnectionError, ValueError, RuntimeError) as error:
                line = " ".join(str(error).split())
                raise ConnectionError(f"there is no Ray cluster at {address}: {line}. Check the address.") from None
        self.sees_store = False  # a worker may be anywhere; only finished runs travel
        self.slots = _slots(self._ray.cluster_resources(), cpus, gpus)
        # Fractions of a CPU are Ray's bookkeeping; a run computes with whole threads.
        environment = {"env_vars": {"OMP_NUM_THREADS": str(max(1, int(cpus)))}}
        self._function = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_retries=_LOST_WORKERS, runtime_env=environment, max_calls=0
        )(compute_remotely)
        self._tasks: dict[Any, Task] = {}
        self._locks: dict[str, ExitStack] = {}
        self._waiting: list[Event] = []

    def submit(self, task: Task) -> None:
        store, lock = Store(task.store), ExitStack()
        held = lock.enter_context(store.locked(task.key))
        if held is False or store.is_done(task.key):
            lock.close()
            self._waiting.append(Event(task.key, "elsewhere" if held is False else "finished"))
            return
        self._locks[task.key] = lock
        self._tasks[self._function.remote(task.message())] = task

    def events(self, timeout: float) -> list[Event]:
        found, self._waiting = self._waiting, []
        if not self._tasks:
            if not found:
                time.sleep(timeout)
            return found
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=0.0 if found else timeout)
        return [*found, *(self._take_in(reference) for reference in ready)]

    def stop(self) -> None:
        """Tasks are cancelled: what they computed lies on other machines and ends with them."""
        for reference, task in list(self._tasks.items()):
            self._ray.cancel(reference, force=True)
            del self._tasks[reference]
            self._release(task)
            self._waiting.append(Event(task.key, "stopped"))

    def close(self) -> None:
        self.stop()
        if self._started_here:
            self._ray.shutdown()

    def _take_in(self, reference: Any) -> Event:
        task = self._tasks.pop(reference)
        try:
            answer: dict[str, Any] = self._ray.get(reference)
            if "error" in answer:
                return Event(task.key, "failed", answer["error"], answer["certain"])
            bring_in(task, answer["files"])
            return Event(task.key, "finished")
        except self._ray.exceptions.RayError as error:
            return Event(task.key, "failed", f"lost on the cluster: {' '.join(str(error).split())[:300]}")
        except OSError as error:
            return Event(task.key, "failed", f"its result could not be stored: {error}")
        finally:
            self._release(task)

    def _release(self, task: Task) -> None:
        self._locks.pop(task.key).close()


def _check_that_someone_listens(address: str) -> None:
    """Ray itself asks for minutes before it gives up; a wrong address is said at once."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # `auto`, or a form that Ray alone understands
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"there is no Ray cluster at {address}: {error}. Check the address.") from None


def _slots(resources: dict[str, float], cpus: float, gpus: float) -> int:
    fitting = [resources.get(name, 0.0) / wanted for name, wanted in (("CPU", cpus), ("GPU", gpus)) if wanted > 0]
    slots = int(min(fitting)) if fitting else 1
    if slots < 1:
        has = f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
        raise ValueError(f"a run asks for {cpus:g} CPUs and {gpus:g} GPUs; the cluster has {has}. Ask for less.")
    return slots


def compute_remotely(task: dict[str, Any]) -> dict[str, Any]:
    """On a worker: the run in a folder of its own; its files, or the error that ended it."""
    from esupcon.experiments.execution import execute  # noqa: PLC0415 - slow to import
    from esupcon.experiments.modules import Module, run_modules  # noqa: PLC0415
    from esupcon.experiments.spec import RunSpec  # noqa: PLC0415
    from esupcon.experiments.worker import describe  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="esupcon-run-") as place:
        folder = Path(place) / task["key"]
        lines: list[str] = []
        try:
            run_modules(Module(**module) for module in task["modules"])
            execute(
                RunSpec.model_validate(task["spec"]),
                folder,
                data_dir=task["data_dir"],
                keep_model=task["keep_models"],
                command=task["command"],
                should_stop=lambda: False,
                log=lines.append,
            )
        except Exception as error:
            return describe(error)
        (folder / "log.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(_CHECKPOINT_PREFIX)]
        return {"files": {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}}


def bring_in(task: Task, files: dict[str, bytes]) -> None:
    """Writes the files of a run beside the others, then renames their folder into the store."""
    store = Store(task.store)
    beside = store.root / "work" / f".{task.key}-{uuid.uuid4().hex[:8]}"
    try:
        for name, content in files.items():
            path = beside / name
            if not path.resolve().is_relative_to(beside.resolve()):
                raise OSError(f"a worker sent a file outside its folder: {name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        store.finish(task.key, beside)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    shutil.rmtree(store.work_folder(task.key), ignore_errors=True)  # what a local process had begun is not needed now
