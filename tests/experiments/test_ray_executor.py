"""A real Ray cluster on 127.0.0.1, and what happens to a grid when one of its workers is killed."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from small_grid import small_plan, task

from esupcon.experiments.executors import RayExecutor, write_files
from esupcon.experiments.grid import GridState, run_grid
from esupcon.experiments.store import Store

# A cluster with its own secret, whatever other clusters this user has; Ray reads it when it is imported.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
# Ray leaves sockets, files and processes to the end of the interpreter, and warns of its own future.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Start a cluster in a session of its own and end only that: `ray stop` would end every cluster of this user.

    A driver whose cluster disappears exits, so `ray stop` would also end other processes that run these tests.
    """
    place = tmp_path_factory.mktemp("r")
    here = os.pathsep.join([*(str(Path(__file__).parents[n]) for n in (0, 1)), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": here.rstrip(os.pathsep), "RAY_DISABLE_IMPORT_WARNING": "1"}
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--port=0", "--node-ip-address=127.0.0.1",
        "--num-cpus=2", "--num-gpus=0", "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={place}",
        "--object-store-memory=99999999",
    ]  # fmt: skip
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": environment, "start_new_session": True}
    with subprocess.Popen(command, text=True, **options) as start:  # type: ignore[call-overload]
        try:
            output, _ = start.communicate(timeout=120)
            assert start.returncode == 0, output
            yield (place / "ray_current_cluster").read_text().strip(), start.pid
        finally:
            for process in processes_of(start.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    return made


def processes_of(session: int, title: str = "") -> list[int]:
    """Return the processes of a session whose command line starts with a title."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(process.name)
            if os.getsid(pid) == session and (process / "cmdline").read_bytes().startswith(title.encode()):
                found.append(pid)
    return found


def test_grid_survives_the_death_of_a_worker_and_imports_nothing_from_the_current_folder(
    cluster: tuple[str, int], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in one grid: a worker of Ray takes seconds to start."""
    address, session = cluster
    plan = small_plan(tmp_path, n_seeds=3, epochs=40)
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("numpy", "torch", "pydantic", "filelock", "sitecustomize"):
        (hostile / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').write({name!r})")
    monkeypatch.chdir(hostile)
    killed: list[int] = []

    def kill_once(state: GridState) -> None:
        if not killed and state.n_done >= 1:
            for worker in processes_of(session, "ray::compute_remotely")[:1]:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)

    try:
        executor = RayExecutor(address)
        assert executor.slots == 2
        state = run_grid([plan], store, executor, watch=kill_once)
    finally:
        ray.shutdown()
    assert killed
    assert state.is_complete, state
    assert not (tmp_path / "executed").exists()
    assert sorted(state.finished) == store.keys() == sorted(row.key for row in plan.rows), "every key once"
    for key in store.keys():  # noqa: SIM118 - a method of the store
        assert store.read(key).accuracy is not None
    assert not list((store.root / "work").iterdir())


def test_failures_locks_and_stopping(cluster: tuple[str, int], store: Store, tmp_path: Path) -> None:
    address, _ = cluster
    first, second = small_plan(tmp_path, n_seeds=1, epochs=100_000).rows
    absent = first.with_spec(first.spec.model_copy(update={"source": str(tmp_path / "absent.npz"), "content": "0"}))
    try:
        executor = RayExecutor(address)
        executor.submit(task(store, absent))
        events = []
        deadline = time.monotonic() + 60
        while not events and time.monotonic() < deadline:
            events = executor.events(1.0)
        assert [(event.kind, event.permanent) for event in events] == [("failed", True)]
        assert "there is no file or folder" in events[0].error
        with store.locked(first.key) as held:
            assert held
            executor.submit(task(store, first))
            assert [event.kind for event in executor.events(0.1)] == ["running_elsewhere"]
        executor.submit(task(store, second))
        assert store.is_running(second.key)
        executor.stop()
        assert [event.kind for event in executor.events(0.1)] == ["stopped"]
        assert not store.is_running(second.key)
        with pytest.raises(ValueError, match="asks for 64 CPUs and 0 GPUs; the cluster has 2 CPUs and 0 GPUs"):
            RayExecutor(address, cpus=64)
    finally:
        ray.shutdown()


def test_wrong_address_is_reported_at_once() -> None:
    with pytest.raises(ConnectionError, match=r"there is no Ray cluster at 127\.0\.0\.1:1: .* Check the address"):
        RayExecutor("127.0.0.1:1")


def test_worker_cannot_write_outside_its_folder(store: Store, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"outside its folder: \.\./\.\./out"):
        store.add("key", lambda folder: write_files(folder, {"../../out": b"x"}))
    assert not list((store.root / "work").iterdir())
