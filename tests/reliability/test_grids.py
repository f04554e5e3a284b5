"""Grids that are killed, shared and damaged."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checks import outcome
from small_grid import small_plan
from warm import children_of

from esupcon.experiments.plan import Row
from esupcon.experiments.store import Store

pytestmark = pytest.mark.reliability

DRIVER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from esupcon.experiments.grid import run_grid
from esupcon.experiments.executors import LocalExecutor
from esupcon.experiments.store import Store
from small_grid import small_plan
store = Store(sys.argv[2])
plan = small_plan(Path(sys.argv[1]), n_seeds=3, epochs=40)
state = run_grid([plan], store, LocalExecutor(int(sys.argv[3])), log=print)
assert state.is_complete, state
"""
N_KILLS, N_KILLS_LONG = 2, 30
N_RUNS = 6
LONG_SECONDS = 3600  # thirty kills on a busy machine


def start(home: Path, store: Store, workers: int = 2) -> subprocess.Popen[str]:
    tests = Path(__file__).parents[1]
    words = [sys.executable, "-c", DRIVER, home, store.root, workers, tests / "experiments", tests]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def planned(home: Path) -> list[Row]:
    return list(small_plan(home, n_seeds=3, epochs=40).rows)


@pytest.mark.timeout(LONG_SECONDS)
def test_a_grid_killed_at_random_moments(tmp_path: Path, long_version: bool) -> None:
    """Driver and workers at once, as when a machine goes down; then the same command to its end.

    Takes over 10 s: each of the four starts has three processes that import torch.
    """
    rng = random.Random(3)
    undisturbed, store = Store(tmp_path / "undisturbed"), Store(tmp_path / "store")
    rows = planned(tmp_path)
    started = time.monotonic()
    driver = start(tmp_path, undisturbed)
    output, _ = driver.communicate(timeout=200)
    assert driver.returncode == 0, output
    took = time.monotonic() - started
    for number in range(N_KILLS_LONG if long_version else N_KILLS):
        if len(store.keys()) == N_RUNS:  # all done before the last kill: once more from the beginning
            store = Store(tmp_path / f"store-{number}")
        driver = start(tmp_path, store)
        # Most of the time is spent on starting: the moments lie where the work is.
        time.sleep(took * rng.uniform(0.3, 0.9))
        for pid in [*children_of(driver.pid), driver.pid]:
            os.kill(pid, signal.SIGKILL)
        driver.communicate(timeout=60)
    driver = start(tmp_path, store)
    output, _ = driver.communicate(timeout=200)
    assert driver.returncode == 0, output
    assert store.keys() == sorted(row.key for row in rows)
    for row in rows:
        assert outcome(store.run_folder(row.key)) == outcome(undisturbed.run_folder(row.key))
    assert not list((store.root / "work").iterdir())


def test_four_commands_on_one_store(tmp_path: Path) -> None:
    """Takes over 10 s: eight processes import torch."""
    store, rows = Store(tmp_path / "store"), planned(tmp_path)
    drivers = [start(tmp_path, store, workers=1) for _ in range(4)]
    for driver in drivers:
        output, _ = driver.communicate(timeout=250)
        assert driver.returncode == 0, output
    assert store.keys() == sorted(row.key for row in rows)
    for row in rows:
        assert store.read(row.key).accuracy is not None
        # A line for each epoch that was trained, by whoever trained it: more would mean that a run was done twice.
        assert len((store.run_folder(row.key) / "timing.jsonl").read_text().splitlines()) == 40
    assert not list((store.root / "work").iterdir())
