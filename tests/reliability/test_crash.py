"""A run that is killed at any moment and started again ends as if nothing had happened, byte for byte."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from warm import Warm

from esupcon._io import read_sealed_json

pytestmark = pytest.mark.reliability

RECIPE = ("--encoder", "mlp-16x1", "--precision", "32", "--batch-size", "240", "--epochs", "6")
EVERY_STEP = ("--checkpoint-seconds", "0")
N_KILLS, N_KILLS_LONG = 6, 30
LONG_SECONDS = 3600


def outcome(folder: Path) -> dict[str, Any]:
    """All of a result but when, where and how long."""
    values = read_sealed_json(folder / "result.json")
    del values["provenance"]
    return values


def model_files(folder: Path) -> dict[str, bytes]:
    """Return config, without the moment at which the model was saved, and weights."""
    config = read_sealed_json(folder / "model" / "config.json")
    del config["about"]["created"]
    weights = (folder / "model" / "model.safetensors").read_bytes()
    header = int.from_bytes(weights[:8], "little")
    return {"config": json.dumps(config).encode(), "weights": weights[8 + header :]}


def assert_same(found: Path, undisturbed: Path) -> None:
    assert outcome(found) == outcome(undisturbed)
    for name in ("predictions.npz", "held_out.npz", "history.jsonl"):
        assert (found / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert model_files(found) == model_files(undisturbed)


def assert_nothing_left_over(found: Path, undisturbed: Path) -> None:
    names = {path.name for path in found.rglob("*")}
    assert names == {path.name for path in undisturbed.rglob("*")}


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The run that nothing happens to, and how long it takes."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    started = time.monotonic()
    ended = warm.esupcon("train", "digits", "--out", folder, *RECIPE, *EVERY_STEP)
    assert ended.code == 0, ended.err
    return folder, time.monotonic() - started


def moments(seconds: float, number: int) -> Iterator[float]:
    """One moment in each of `number` equal stretches of the run, so that every phase is met."""
    rng = random.Random(20240607)
    for i in range(number):
        yield seconds * (i + rng.random()) / number


@pytest.mark.timeout(LONG_SECONDS)
def test_killed_at_random_moments(
    warm: Warm, undisturbed: tuple[Path, float], tmp_path: Path, long_version: bool
) -> None:
    expected, seconds = undisturbed
    killed = 0
    for i, moment in enumerate(moments(seconds, N_KILLS_LONG if long_version else N_KILLS)):
        folder = tmp_path / f"run{i}"
        first = warm.esupcon("train", "digits", "--out", folder, *RECIPE, *EVERY_STEP, kill_after=moment)
        killed += first.code == -signal.SIGKILL
        again = warm.esupcon("train", "digits", "--out", folder, *RECIPE, *EVERY_STEP)
        assert again.code == 0, again.err
        assert_same(folder, expected)
        assert_nothing_left_over(folder, expected)
    assert killed >= 2


@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_file_operations(warm: Warm, tmp_path: Path, long_version: bool, torn: bool) -> None:
    """Before an opening, renaming or removal of a file of the run; `torn`, with half of what was written lost."""
    words = ("train", "digits", *RECIPE[:-1], "2", *EVERY_STEP)
    reference = tmp_path / "reference"
    assert warm.esupcon(*words, "--out", reference).code == 0
    rng = random.Random(7)
    numbers = [number for number in range(1, 1000) if long_version or rng.random() < (0.12 if torn else 0.04)]
    deaths = 0
    for number in numbers:
        folder = tmp_path / f"run{number}"
        die_at = {"folder": str(folder), "number": number, "torn": torn}
        first = warm.esupcon(*words, "--out", folder, die_at=die_at)
        if first.code == 0:  # it came to its end before
            break
        assert first.code == -signal.SIGKILL, first.err
        deaths += 1
        again = warm.esupcon(*words, "--out", folder)
        assert again.code == 0, again.err
        assert_same(folder, reference)
        assert_nothing_left_over(folder, reference)
    assert deaths >= 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_a_checkpoint(
    warm: Warm, undisturbed: tuple[Path, float], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    expected, _ = undisturbed
    folder = tmp_path / "run"
    words = ("train", "digits", "--out", folder, *RECIPE)
    first = warm.esupcon(*words, kill_after=0, send=number, once=folder / "history.jsonl")
    assert first.code == code, first.err
    assert first.last_line.startswith(
        f"esupcon: stopped; the run is saved in {folder}. To continue: esupcon train digits"
    )
    assert "Traceback" not in first.err
    assert json.loads((folder / "checkpoint.json").read_text())["checkpoints"]
    again = warm.esupcon(*words)
    assert again.code == 0, again.err
    assert "Continuing at epoch" in again.err
    assert_same(folder, expected)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_before_the_first_step_stops_at_once(
    warm: Warm, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Nothing is there to be saved; the folder can be used all the same."""
    die_early = f"""
import os, signal, sys
from esupcon.cli import main
from esupcon.training import loop
before = loop.start
def start(*args, **kwargs):
    os.kill(os.getpid(), {int(number)})
    return before(*args, **kwargs)
loop.start = start
sys.exit(main(["train", "digits", "--out", {str(tmp_path / "run")!r}, "--encoder", "mlp-16x1", "--epochs", "1"]))
"""
    ended = warm.script(die_early)
    assert ended.code == code
    assert ended.err.endswith(("esupcon: interrupted.\n", "esupcon: terminated.\n"))
    assert "Traceback" not in ended.err
    assert warm.esupcon("train", "digits", "--out", tmp_path / "run", *RECIPE).code == 0


def test_killed_replacement_leaves_a_loadable_model(warm: Warm, run: Path) -> None:
    """Calibration writes the model anew: whenever it is killed, the old model or the new one is found, by whoever
    looks for it."""
    before = json.loads((run / "model" / "config.json").read_text())
    corners = json.loads((run / "result.json").read_text())["provenance"]["source"]
    deaths = 0
    for number in range(1, 200):
        die_at = {"folder": str(run), "number": number, "torn": False}
        ended = warm.esupcon("calibrate", run, corners, "--on", "all", die_at=die_at)
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.err
        deaths += 1
        for place in (run, run / "model"):
            found = warm.script(
                f"import esupcon; found = esupcon.load({str(place)!r})\nprint(found.about.model_dump_json())"
            )
            assert found.code == 0, (number, found.err)
            assert json.loads(found.out) == before["about"]
    assert deaths >= 5
    assert warm.esupcon("evaluate", run, corners).code == 0
    assert not list(run.glob(".model.*.old"))
