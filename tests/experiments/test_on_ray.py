"""A real Ray cluster on 127.0.0.1, and what becomes of a grid when one of its workers is killed."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_grid import small_rows, task_maker

from esupcon.experiments.executor import Task
from esupcon.experiments.grid import Standing, run_grid
from esupcon.experiments.on_ray import RayExecutor, bring_in
from esupcon.experiments.store import Store

# A cluster of our own with a secret of its own, whatever this user's other clusters have; Ray reads it when imported.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
# Ray leaves sockets, files and processes to the interpreter's end, and warns of its own future.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ray start --head`, in processes of its own."""
    place = tmp_path_factory.mktemp("r")
    command = [str(Path(sys.executable).with_name("ray"))]
    here = os.pathsep.join(str(Path(__file__).parents[n]) for n in (0, 1))
    environment = {**os.environ, "PYTHONPATH": here, "RAY_DISABLE_IMPORT_WARNING": "1"}
    started = subprocess.run(
        [*command, "start", "--head", "--port=0", "--node-ip-address=127.0.0.1", "--num-cpus=2", "--num-gpus=0",
         "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={place}", "--object-store-memory=99999999"],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert started.returncode == 0, started.stdout + started.stderr
    found = (place / "ray_current_cluster").read_text().strip()
    yield found
    subprocess.run([*command, "stop", "--force"], capture_output=True, timeout=60, check=False)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    return made


def busy_workers() -> list[int]:
    """Processes that compute a run: Ray gives them the name of the function."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "cmdline").read_bytes().startswith(b"ray::compute_remotely"):
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def test_a_worker_killed_in_the_middle_of_a_grid(address: str, store: Store, tmp_path: Path) -> None:
    rows = small_rows(tmp_path, n_seeds=3, epochs=40)
    killed: list[int] = []

    def kill_once(standing: Standing) -> None:
        workers = busy_workers()
        if not killed and standing.n_done >= 1 and workers:
            os.kill(workers[0], signal.SIGKILL)
            killed.append(workers[0])

    try:
        executor = RayExecutor(address)
        assert executor.slots == 2
        standing = run_grid(rows, store, executor, task_maker(store), watch=kill_once)
    finally:
        ray.shutdown()
    assert killed
    assert standing.is_complete, standing
    assert store.keys() == sorted(row.key for row in rows)
    assert sorted(standing.finished) == store.keys(), "every key once"
    for key in store.keys():  # noqa: SIM118 - a method of the store
        assert store.read(key).accuracy is not None
    assert not list((store.root / "work").iterdir())
    assert not list((store.root / "locks").iterdir())


def test_failures_requests_and_stopping(address: str, store: Store, tmp_path: Path) -> None:
    rows = small_rows(tmp_path, n_seeds=1, epochs=100_000)
    absent = rows[0].spec.model_copy(update={"dataset": str(tmp_path / "absent.npz")})
    try:
        executor = RayExecutor(address)
        executor.submit(Task(absent, str(store.root)))
        events = []
        deadline = time.monotonic() + 60
        while not events and time.monotonic() < deadline:
            events = executor.events(1.0)
        assert [event.kind for event in events] == ["failed"]
        assert "there is no file or folder" in events[0].error
        assert events[0].certain
        with store.locked(rows[0].key) as held:
            assert held
            executor.submit(Task(rows[0].spec, str(store.root)))
            assert [event.kind for event in executor.events(0.1)] == ["elsewhere"]
        executor.submit(Task(rows[1].spec, str(store.root)))
        assert store.is_running(rows[1].key)
        executor.stop()
        assert [event.kind for event in executor.events(0.1)] == ["stopped"]
        assert not store.is_running(rows[1].key)
        with pytest.raises(ValueError, match="asks for 64 CPUs and 0 GPUs; the cluster has 2 CPUs and 0 GPUs"):
            RayExecutor(address, cpus=64)
    finally:
        ray.shutdown()


def test_no_cluster_there() -> None:
    with pytest.raises(ConnectionError, match=r"there is no Ray cluster at 127\.0\.0\.1:1: .* Check the address"):
        RayExecutor("127.0.0.1:1")


def test_a_worker_cannot_write_outside_its_folder(store: Store, tmp_path: Path) -> None:
    task = Task(small_rows(tmp_path)[0].spec, str(store.root))
    with pytest.raises(OSError, match=r"outside its folder: \.\./\.\./out"):
        bring_in(task, {"../../out": b"x"})
    assert not list((store.root / "work").iterdir())
