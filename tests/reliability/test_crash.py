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

pytestmark = pytest.mark.reliability

RECIPE = ("--encoder", "mlp-16x1", "--precision", "32", "--batch-size", "240", "--epochs", "6")
EVERY_STEP = ("--checkpoint-seconds", "0")
N_KILLS, N_KILLS_LONG = 6, 30


def outcome(folder: Path) -> dict[str, Any]:
    """All of a result but when, where and how long."""
    values: dict[str, Any] = json.loads((folder / "result.json").read_text())
    del values["provenance"]
    return values


def model_files(folder: Path) -> dict[str, bytes]:
    """The model, without the moment at which it was saved, which the digest in the weights follows."""
    config = json.loads((folder / "model" / "config.json").read_text())
    del config["created"]
    weights = (folder / "model" / "model.safetensors").read_bytes()
    header = int.from_bytes(weights[:8], "little")
    return {"config": json.dumps(config).encode(), "weights": weights[8 + header :]}


def assert_same(found: Path, undisturbed: Path) -> None:
    assert outcome(found) == outcome(undisturbed)
    for name in ("predictions.npz", "held_out.npz", "history.jsonl"):
        assert (found / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert model_files(found) == model_files(undisturbed)


def assert_nothing_left_over(found: Path, undisturbed: Path) -> None:
    assert sorted(path.name for path in found.rglob("*")) == sorted(path.name for path in undisturbed.rglob("*"))


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


@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_file_operations(
    warm: Warm, undisturbed: tuple[Path, float], tmp_path: Path, long_version: bool, torn: bool
) -> None:
    """Before each opening, renaming or removal of a file of the run; `torn`, with half of what was written lost."""
    expected, _ = undisturbed
    short = (*RECIPE[:-1], "2", *EVERY_STEP)
    reference = tmp_path / "reference"
    assert warm.esupcon("train", "digits", "--out", reference, *short).code == 0
    rng = random.Random(7)
    numbers = [number for number in range(1, 400) if long_version or number <= 6 or rng.random() < 0.09]
    deaths = 0
    for number in numbers:
        folder = tmp_path / f"run{number}"
        die_at = {"folder": str(folder), "number": number, "torn": torn}
        first = warm.esupcon("train", "digits", "--out", folder, *short, die_at=die_at)
        if first.code == 0:  # there are no so many operations
            break
        assert first.code == -signal.SIGKILL, first.err
        deaths += 1
        again = warm.esupcon("train", "digits", "--out", folder, *short)
        assert again.code == 0, again.err
        assert_same(folder, reference)
        assert_nothing_left_over(folder, reference)
    assert deaths >= 8
