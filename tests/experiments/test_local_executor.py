"""Real worker processes: what they compute, and what happens when they are killed, terminated or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_grid import small_plan, task

from esupcon._console import usable_cores
from esupcon.experiments.executors import Event, LocalExecutor
from esupcon.experiments.grid import GridState, run_grid
from esupcon.experiments.store import Store
from stored_results import outcome

CHECKPOINTS = "checkpoint-*.pt"


def wait_for(condition: Callable[[], object], seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def has_started(store: Store, key: str, n_epochs: int = 1) -> bool:
    history = store.work_folder(key) / "history.jsonl"
    return history.exists() and history.read_text().count("\n") >= n_epochs


def process_of(store: Store, key: str) -> int:
    """Return the process that holds the lock of a run: the one with its lock file open."""
    lock = store.root / "locks" / f"{key}.lock"
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if any(fd.readlink() == lock for fd in (process / "fd").iterdir()):
                    return int(process.name)
            except OSError:
                continue
    raise AssertionError("no process holds the lock")


def test_number_of_workers() -> None:
    assert LocalExecutor().slots == usable_cores()
    assert LocalExecutor(n_gpus=3).slots == 3
    with pytest.raises(ValueError, match="workers must be at least 1; got 0"):
        LocalExecutor(0)


def test_each_worker_sees_one_of_the_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, expected in (("", ["0", "1", "0"]), ("4,7", ["4", "7", "4"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        workers = LocalExecutor(3, n_gpus=2).workers
        assert [worker.environment["CUDA_VISIBLE_DEVICES"] for worker in workers] == expected


def test_number_of_workers_and_environment_do_not_change_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is wide enough for the threads of torch to matter."""
    plan = small_plan(tmp_path, n_seeds=1, encoder="mlp-512x2", batch_size=60)
    outcomes = []
    for workers, threads in ((1, "2"), (2, "1")):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        store = Store(tmp_path / f"store-{workers}-{threads}")
        state = run_grid([plan], store, LocalExecutor(workers))
        assert state.is_complete, state.failed
        outcomes.append([outcome(store.run_folder(row.key)) for row in plan.rows])
    assert outcomes[0] == outcomes[1]


def test_killed_run_continues_in_another_process_to_the_same_result(store: Store, tmp_path: Path) -> None:
    plan = small_plan(tmp_path, n_seeds=1, epochs=60)
    killed: list[int] = []

    def kill_once(state: GridState) -> None:
        for key in state.running:
            if not killed and has_started(store, key, 2):
                killed.append(process_of(store, key))
                os.kill(killed[0], signal.SIGKILL)

    lines: list[str] = []
    state = run_grid([plan], store, LocalExecutor(), watch=kill_once, log=lines.append)
    assert len(killed) == 1
    assert state.is_complete, state.failed
    (line,) = (line for line in lines if "its process was ended by SIGKILL" in line)
    undisturbed = Store(tmp_path / "undisturbed")
    row = next(row for row in plan.rows if line.startswith(f"{row.method} on"))
    run_grid([plan.model_copy(update={"rows": (row,)})], undisturbed, LocalExecutor())
    assert outcome(store.run_folder(row.key)) == outcome(undisturbed.run_folder(row.key))


DRIVER = """
import signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from esupcon.experiments.executors import LocalExecutor
from esupcon.experiments.grid import run_grid
from esupcon.experiments.store import Store
from small_grid import small_plan
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
plan = small_plan(Path(sys.argv[1]), n_seeds=1, epochs=2000)
state = run_grid([plan], Store(sys.argv[2]), LocalExecutor(2), should_stop=lambda: bool(asked))
print(len(state.stopped) + len(state.pending), len(state.failed))
"""


def test_sigterm_to_driver_and_workers_leaves_checkpoints_and_no_failure(store: Store, tmp_path: Path) -> None:
    plan = small_plan(tmp_path, n_seeds=1, epochs=2000)
    tests = Path(__file__).parents[1]
    words = [sys.executable, "-P", "-c", DRIVER, str(tmp_path), str(store.root), str(tests / "experiments"), str(tests)]
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: all(has_started(store, row.key) for row in plan.rows))
    for pid in [process_of(store, row.key) for row in plan.rows] + [driver.pid]:  # as a scheduler does
        os.kill(pid, signal.SIGTERM)
    output, _ = driver.communicate(timeout=60)
    assert (driver.returncode, output.split()) == (0, ["2", "0"])
    for row in plan.rows:
        assert store.state(row.key) == "begun"
        assert list(store.work_folder(row.key).glob(CHECKPOINTS))


def test_worker_whose_driver_dies_saves_and_exits(store: Store, tmp_path: Path) -> None:
    (row,) = small_plan(tmp_path, methods=("ce",), n_seeds=1, epochs=5000).rows
    words = [sys.executable, "-P", "-m", "esupcon.experiments.worker"]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, text=True, **options) as process:  # type: ignore[call-overload]
        process.stdin.write(task(store, row).model_dump_json() + "\n")
        process.stdin.flush()
        wait_for(lambda: has_started(store, row.key))
        process.stdin.close()  # as the system does when the driver is killed
        assert Event.model_validate_json(process.stdout.readline()).kind == "stopped"
        assert process.wait(30) == 0
    assert list(store.work_folder(row.key).glob(CHECKPOINTS))
    assert store.state(row.key) == "begun"


def test_process_that_cannot_start_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store) -> None:
    plan = small_plan(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "pydantic.py").write_text("raise SystemExit('no memory')")
    executor = LocalExecutor(1)
    for _ in range(2):  # the second task needs another process
        executor.submit(task(store, plan.rows[0]))
        (event,) = executor.events(60.0)
        assert (event.kind, event.permanent) == ("failed", False)
        assert event.error == "its process ended with code 1: no memory"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    executor.submit(task(store, plan.rows[0]))
    (event,) = executor.events(60.0)
    assert event.kind == "failed" and "No such file or directory" in event.error
    executor.close()
