from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esupcon.artifact import load_artifact
from esupcon.cli import train as command
from esupcon.cli.stopping import Interrupted, Stopper, Terminated
from esupcon.engine import TrainSpec
from esupcon.methods import METHODS
from tiny_images import write_npz

RECIPE = ("--encoder", "mlp-16x1", "--batch-size", "27", "--precision", "32", "--epochs", "12", "--noise-rate", "0.1")


def test_again_shows_the_finished_run(esupcon, corners: Path, shared_run: Path) -> None:
    said = esupcon("train", corners, "--out", shared_run, *RECIPE)
    assert said.code == 0
    assert "nothing was trained" in said.err
    assert "accuracy" in said.out
    assert str(shared_run / "model") in said.out.replace("\n", "")


def test_json_is_all_there_is_on_standard_output(esupcon, corners: Path, shared_run: Path) -> None:
    said = esupcon("train", corners, "--out", shared_run, *RECIPE, "--json")
    assert said.json["already_finished"]
    assert said.json["metrics"]["test"]["n"] == 45
    assert said.json["preparation"]["scenario"]["n_wrong_labels"] == 9


def test_other_settings_in_the_same_folder_are_refused(esupcon, corners: Path, shared_run: Path) -> None:
    said = esupcon("train", corners, "--out", shared_run, *RECIPE, "--temperature", "0.2")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert said.err.startswith("esupcon: ")
    assert "temperature was 0.1, now 0.2" in said.err


def test_only_the_first_of_several_processes_answers(
    esupcon, corners: Path, shared_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    for more in ((), ("--json",)):
        said = esupcon("train", corners, "--out", shared_run, *RECIPE, *more)
        assert (said.code, said.out) == (0, "")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(esupcon, corners: Path, tmp_path: Path, method: str) -> None:
    said = esupcon(
        *("train", corners, "--out", tmp_path / "o", "--method", method, "--encoder", "mlp-8x1", "--precision", "32"),
        *("--steps", "3", "--json"),
    )
    assert said.code == 0, said.err
    assert said.json["spec"]["method"] == method
    assert load_artifact(tmp_path / "o" / "model").config.method == method


def test_every_setting_of_a_run_is_reachable(esupcon, corners: Path, tmp_path: Path) -> None:
    given = {
        "method": "supcon_tt",
        "encoder": "mlp-8x1",
        "epochs": 1,
        "steps": 2,
        "batch_size": 30,
        "micro_batch": 10,
        "lr": 0.01,
        "optimizer": "adamw",
        "momentum": 0.5,
        "weight_decay": 0.01,
        "warmup": 0.2,
        "temperature": 0.3,
        "prototype_weight": 2.0,
        "prototype_lr": 0.5,
        "spce_average": "batch",
        "projection_dim": 16,
        "augmentation": "none",
        "precision": "64",
        "patience": 3,
        "seed": 7,
        "class_weight": "balanced",
    }
    defaults = TrainSpec().model_dump()
    assert set(given) | {"compile"} == set(defaults)
    assert all(given[name] != defaults[name] for name in given)
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    said = esupcon("train", corners, "--out", tmp_path / "o", *words, "--json")
    assert said.code == 0, said.err
    assert said.json["spec"] == {**defaults, **given}


def test_defaults_in_help_are_those_of_the_engine() -> None:
    import inspect

    defaults = TrainSpec().model_dump()
    for name, parameter in inspect.signature(command.train, eval_str=True).parameters.items():
        if name in defaults and name not in ("epochs", "precision", "lr") and defaults[name] is not None:
            assert parameter.annotation.__metadata__[0].show_default == str(defaults[name]), name


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ("--epochs", "0", "--temperature", "-1"),
            "--epochs: Input should be greater than or equal to 1; got 0; --t",
        ),
        (("--method", "resnet"), "method must be one of ce, supcon_ce"),
        (("--augmentation", "magic"), "augmentation must be auto or one of"),
        (("--encoder", "resnet19"), "unknown encoder 'resnet19'"),
        (("--n-train", "1000"), "n_train asks for 1000 samples and there are 90"),
        (("--noise-rate", "2"), "noise_rate is a share between 0 and 1"),
        (("--noise-kind", "pink"), "kind of noise is one of"),
        (("--validation-fraction", "1"), "validation_fraction must lie between"),
        (("--layout", "HWCN"), "layout must be 'NHWC' or 'NCHW'"),
        (("--epochs", "many"), "--epochs"),
        (("--n-per-class", "3"), "n_per_class applies to caltech256"),
    ],
)
def test_mistakes_are_one_line(esupcon, corners: Path, tmp_path: Path, words: tuple[str, ...], complaint: str) -> None:
    said = esupcon("train", corners, "--out", tmp_path / "o", "--precision", "32", *words)
    assert said.code == 2
    assert said.out == ""
    line = said.err.splitlines()[-1]
    assert line.startswith("esupcon: ")
    assert complaint in line
    assert "Traceback" not in said.err


def test_missing_data_and_places_that_cannot_be(esupcon, corners: Path, tmp_path: Path) -> None:
    assert "there is no file or folder" in esupcon("train", tmp_path / "none.npz", "--out", tmp_path / "o").err
    (tmp_path / "file").write_text("")
    said = esupcon("train", corners, "--out", tmp_path / "file", "--precision", "32")
    assert said.code == 2
    assert said.err.splitlines()[-1].startswith("esupcon: ")


def test_debug_shows_the_traceback(esupcon, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a known set"):
        esupcon("--debug", "train", "dogits", "--out", tmp_path)


def test_a_signal_before_training_ends_at_once_and_one_during_it_asks() -> None:
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests are a job in the background
    with Stopper() as stopper:
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        assert stopper.exit_code == 143
    with Stopper() as stopper:
        assert not stopper()
        signal.raise_signal(signal.SIGINT)
        assert stopper()
        assert stopper.exit_code == 130
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "d.npz", n_train=30, n_test=15)
    words = ["train", str(source), "--out", str(tmp_path / "o"), "--encoder", "mlp-8x1", "--precision", "32"]
    words += ["--batch-size", "9", "--epochs", "100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "esupcon", *words, "--overwrite"], stderr=subprocess.PIPE, text=True, env=environment
    )
    history = tmp_path / "o" / "history.jsonl"
    give_up = time.monotonic() + 120
    while not (history.exists() and history.stat().st_size) and time.monotonic() < give_up:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    line = err.splitlines()[-1]
    assert line.startswith("esupcon: stopped, and saved in ")
    assert "To go on: esupcon train " in line
    assert "--overwrite" not in line
    assert (tmp_path / "o" / "checkpoint.json").exists()
    assert not (tmp_path / "o" / "result.json").exists()
