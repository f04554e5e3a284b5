"""A run that is killed at any moment and started again ends as if nothing had happened, byte for byte."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from checks import contents
from warm import Ended, Warm

from stored_results import outcome

pytestmark = pytest.mark.reliability

RECIPE = ("--encoder", "mlp-16x1", "--precision", "32", "--batch-size", "240", "--epochs", "6")
EPOCHS = 6
EVERY_STEP = ("--checkpoint-seconds", "0")
LONG_SECONDS = 3600


def assert_same(found: Path, undisturbed: Path) -> None:
    """The same tensors, predictions and figures, and nothing left over."""
    assert outcome(found) == outcome(undisturbed)
    assert contents(found).keys() == contents(undisturbed).keys()


@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.parametrize(
    ("encoder", "more"),
    [
        ("mlp-16x1", ("--method", "supcon_ce")),
        ("resnet10-w16", ("--micro-batch", "15")),
        ("fast", ()),
        ("mlp-16x1", ("--devices", "2", "--accelerator", "cpu")),
    ],
    ids=["two stages", "micro-batches", "fast", "two processes"],
)
def test_killed_at_random_moments(
    warm: Warm, corners: Path, tmp_path: Path, long_version: bool, encoder: str, more: tuple[str, ...]
) -> None:
    def train(folder: Path, **options: Any) -> Ended:
        recipe = ("--encoder", encoder, "--epochs", str(EPOCHS), "--batch-size", "45", "--precision", "32", *more)
        return warm.esupcon("train", corners, "--out", folder, *recipe, *EVERY_STEP, **options)

    undisturbed, folder, rng = tmp_path / "undisturbed", tmp_path / "run", random.Random(20240607)
    assert train(undisturbed).code == 0
    seconds = [json.loads(line)["seconds"] for line in (undisturbed / "timing.jsonl").read_text().splitlines()]
    for round_ in range(10 if long_version else 1):
        folder = tmp_path / f"run{round_}"
        for lines in sorted(rng.sample(range(1, EPOCHS), 2)):
            moment = {
                "once": folder / "history.jsonl",
                "lines": lines,
                "kill_after": rng.choice(seconds) * rng.random(),
            }
            ended = train(folder, **moment)
            assert ended.code == -signal.SIGKILL, ended.err
        again = train(folder)
        assert again.code == 0, again.err
        assert_same(folder, undisturbed)


@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_file_operations(warm: Warm, tmp_path: Path, long_version: bool, torn: bool) -> None:
    """Before a file of the run is opened to write, renamed or removed; `torn`, with half of what was written lost.

    The long version meets every operation.
    """
    words = ("train", "digits", *RECIPE[:-1], "2", *EVERY_STEP)
    reference = tmp_path / "reference"
    assert warm.esupcon(*words, "--out", reference).code == 0
    rng = random.Random(7)
    numbers = [number for number in range(1, 1000) if long_version or rng.random() < (0.12 if torn else 0.08)]
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
    assert deaths >= 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_a_checkpoint(warm: Warm, tmp_path: Path, number: signal.Signals) -> None:
    folder, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    words = ("train", "digits", *RECIPE, "--out")
    first = warm.esupcon(*words, folder, "--overwrite", kill_after=0, send=number, once=folder / "history.jsonl")
    assert first.code == 128 + number, first.err
    assert "--overwrite" not in first.last_line
    assert first.last_line.startswith(
        f"esupcon: stopped; the run is saved in {folder}. To continue: esupcon train digits"
    )
    assert "Traceback" not in first.err
    assert list(folder.glob("checkpoint-*.pt"))
    again = warm.esupcon(*words, folder)
    assert again.code == 0, again.err
    assert "Continuing at epoch" in again.err
    assert warm.esupcon(*words, undisturbed).code == 0
    assert_same(folder, undisturbed)


def test_killed_replacement_leaves_a_loadable_model(warm: Warm, run: Path) -> None:
    """Calibration writes the model anew: before whichever file operation it is killed, a whole model is found."""
    before = json.loads((run / "model" / "config.json").read_text())
    corners = json.loads((run / "result.json").read_text())["provenance"]["source"]
    look = "import esupcon\nfor place in ({!r}, {!r}):\n    print(esupcon.load(place).about.model_dump_json())"
    deaths = 0
    for number in range(1, 200):
        die_at = {"folder": str(run), "number": number, "torn": False}
        ended = warm.esupcon("calibrate", run, corners, "--on", "all", die_at=die_at)
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.err
        deaths += 1
        found = warm.script(look.format(str(run), str(run / "model")))
        assert found.code == 0, (number, found.err)
        assert [json.loads(line) for line in found.out.splitlines()] == [before["about"]] * 2
    assert deaths >= 5
    assert warm.esupcon("evaluate", run, corners).code == 0
    assert not list(run.glob(".model.*.old"))
