"""Grids that are killed and shared."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from checks import assert_same_runs, small_grid
from warm import Warm

from esupcon.experiments.store import Store

pytestmark = pytest.mark.reliability

N_KILLS, N_KILLS_LONG = 3, 30
N_RUNS = 6
EPOCHS = 40
LONG_SECONDS = 3600  # thirty kills on a busy machine

FOUR_COMMANDS = """
import os
from esupcon.cli import main
started = []
for _ in range(4):
    started.append(os.fork())
    if not started[-1]:
        raise SystemExit(main({words!r}))
assert [os.waitpid(pid, 0)[1] for pid in started] == [0] * 4
"""


@pytest.mark.timeout(LONG_SECONDS)
def test_a_grid_killed_at_random_moments(warm: Warm, corners: Path, tmp_path: Path, long_version: bool) -> None:
    """Driver and workers at once, as when a machine goes down; then the same command to its end."""
    rng = random.Random(3)
    undisturbed, store = Store(tmp_path / "undisturbed"), Store(tmp_path / "store")
    words, keys = small_grid(tmp_path, corners, seeds=N_RUNS // 2, epochs=EPOCHS)
    words = [words[0], "--workers", "2", *words[1:]]
    started = time.monotonic()
    ended = warm.esupcon(*words, undisturbed.root)
    assert ended.code == 0, ended.err
    took = time.monotonic() - started
    for number in range(N_KILLS_LONG if long_version else N_KILLS):
        if len(store.keys()) == N_RUNS:  # all done before the last kill: once more from the beginning
            store = Store(tmp_path / f"store-{number}")
        killed = warm.esupcon(*words, store.root, kill_after=took * rng.uniform(0.1, 0.6))
        assert killed.code in (0, -signal.SIGKILL), killed.err
    ended = warm.esupcon(*words, store.root)
    assert ended.code == 0, ended.err
    assert_same_runs(store, undisturbed, keys)


def test_four_commands_on_one_store(warm: Warm, corners: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    words, keys = small_grid(tmp_path, corners, seeds=N_RUNS // 2, epochs=EPOCHS)
    ended = warm.script(FOUR_COMMANDS.format(words=[*words, str(store.root), "--workers", "1"]))
    assert ended.code == 0, ended.err
    assert store.keys() == keys
    for key in keys:
        assert store.read(key).accuracy is not None
        # A line for each epoch that was trained, by whoever trained it: more would mean that a run was done twice.
        assert len((store.run_folder(key) / "timing.jsonl").read_text().splitlines()) == EPOCHS
    assert not list((store.root / "work").iterdir())
