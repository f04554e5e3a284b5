"""Real processes: what they compute, and what becomes of it when they are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_grid import ONE_THREAD_EACH, small_rows, task_maker

from esupcon.experiments.executor import Event, Task
from esupcon.experiments.grid import Standing, run_grid
from esupcon.experiments.local import LocalExecutor, usable_cores
from esupcon.experiments.spec import Row
from esupcon.experiments.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    return made


def outcome(store: Store, key: str) -> dict[str, object]:
    """All of a result that equal runs share, and their predictions and histories."""
    run = store.read(key)
    content = {name: value for name, value in run.result.items() if name != "provenance"}
    with np.load(run.folder / "predictions.npz") as arrays:
        content["logits"] = arrays["logits"].tobytes()
    content["history"] = (run.folder / "history.jsonl").read_bytes()
    return content


def test_threads_are_the_cores_divided() -> None:
    cores = usable_cores()
    assert LocalExecutor(1).threads == cores
    assert LocalExecutor(cores).threads == 1
    assert LocalExecutor(2 * cores).threads == 1
    assert LocalExecutor().slots == cores
    assert LocalExecutor(n_gpus=3).slots == 3
    with pytest.raises(ValueError, match="workers must be at least 1; got 0"):
        LocalExecutor(0)


def test_each_worker_sees_one_gpu_of_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = LocalExecutor(3, n_gpus=2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [executor._environment(i)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert [executor._environment(i)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["4", "7", "4"]


def test_a_killed_worker_and_a_wrong_run(store: Store, tmp_path: Path) -> None:
    """SIGKILL in the middle of a run: it goes on from its checkpoint in another process, to the same end."""
    rows = small_rows(tmp_path, n_seeds=1, epochs=60)
    missing = rows[0].spec.model_copy(update={"dataset": str(tmp_path / "absent.npz")})
    rows.append(Row("small", "own", "absent", "full", "ce", 0, missing))
    killed: list[int] = []

    def kill_once(standing: Standing) -> None:
        for key in standing.running:
            history = store.work_folder(key) / "history.jsonl"
            if not killed and history.exists() and history.read_text().count("\n") >= 2:
                killed.append(_worker_of(store, key))
                os.kill(killed[0], signal.SIGKILL)

    said: list[str] = []
    standing = run_grid(
        rows, store, LocalExecutor(ONE_THREAD_EACH), task_maker(store), watch=kill_once, say=said.append
    )
    assert len(killed) == 1
    assert "its process was ended by SIGKILL" in said[0]
    assert sorted(standing.finished) == sorted(row.key for row in rows[:2])
    assert list(standing.failed) == [rows[2].key]
    assert f"there is no file or folder {tmp_path / 'absent.npz'}" in standing.failed[rows[2].key]
    undisturbed = Store(tmp_path / "undisturbed")
    undisturbed.create()
    row = next(row for row in rows if f"{row.method} on" in said[0])  # the other one was not disturbed either
    run_grid([row], undisturbed, LocalExecutor(ONE_THREAD_EACH), task_maker(undisturbed))
    assert outcome(store, row.key) == outcome(undisturbed, row.key)


def _worker_of(store: Store, key: str) -> int:
    """The process that holds the lock of a run: the one with its lock file open."""
    lock = store.root / "locks" / f"{key}.lock"
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if any(fd.readlink() == lock for fd in (process / "fd").iterdir()):
                    return int(process.name)
            except OSError:
                continue
    raise AssertionError("nobody holds the lock")


def test_stopping_saves_and_the_next_command_goes_on(store: Store, tmp_path: Path) -> None:
    row = small_rows(tmp_path, methods=("esupcon",), n_seeds=1, epochs=150)[0]
    executor = LocalExecutor(ONE_THREAD_EACH)
    history = store.work_folder(row.key) / "history.jsonl"
    standing = run_grid([row], store, executor, task_maker(store), should_stop=history.exists)
    assert standing.stopped == [row.key]
    assert store.state(row.key) == "begun"
    assert list(store.work_folder(row.key).glob("checkpoint-*.pt"))
    standing = run_grid([row], store, LocalExecutor(ONE_THREAD_EACH), task_maker(store))
    assert standing.finished == [row.key]
    assert not store.work_folder(row.key).exists()


def test_a_worker_whose_driver_dies_saves_and_leaves(store: Store, tmp_path: Path) -> None:
    row = small_rows(tmp_path, methods=("ce",), n_seeds=1, epochs=5000)[0]
    worker = subprocess.Popen(
        [sys.executable, "-m", "esupcon.experiments.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(Task(row.spec, str(store.root)).message()) + "\n")
    worker.stdin.flush()
    assert json.loads(worker.stdout.readline())["event"] == "started"
    deadline = time.monotonic() + 60
    while not (store.work_folder(row.key) / "history.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    worker.stdin.close()  # as the system does when the driver is killed
    assert json.loads(worker.stdout.readline())["event"] == "stopped"
    assert worker.wait(30) == 0
    worker.stdout.close()
    assert list(store.work_folder(row.key).glob("checkpoint-*.pt"))
    assert store.state(row.key) == "begun"


def test_events_of_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "pydantic.py").write_text("raise SystemExit('no room')")
    executor = LocalExecutor(ONE_THREAD_EACH)
    executor.submit(Task(small_rows(tmp_path)[0].spec, str(store.root)))
    events: list[Event] = []
    while not events:
        events = executor.events(1.0)
    executor.close()
    assert events[0].kind == "failed"
    assert events[0].error == "its process ended with code 1: no room"
    assert not events[0].certain
