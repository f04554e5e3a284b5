"""A model decides nothing but its predictions: evaluation reads what the caller names, in the way the caller says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_classifiers import make_classifier

import esupcon
from assets import copy_of
from esupcon._io import read_sealed_json, write_sealed_json
from esupcon.classifier import calibrate, evaluate, load_classifier, predict_files
from esupcon.cli import main
from esupcon.data import load


@pytest.fixture
def run(corners_run: Path, tmp_path: Path) -> Path:
    return copy_of(corners_run, tmp_path / "run")


def forge(run: Path, change: Any) -> None:
    values = read_sealed_json(run / "model" / "config.json")
    change(values)
    write_sealed_json(run / "model" / "config.json", values)


FORGED = {
    "data_dir": lambda v: v["about"]["data"].update(data_dir="elsewhere"),
    "a path as name": lambda v: v["about"]["data"].update(name="/etc/passwd"),
    "no about": lambda v: v.pop("about"),
    "calibration of five classes": lambda v: v["calibration"].update(target_priors=[0.2] * 5),
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("command", ["evaluate", "calibrate", "predict", "export"])
def test_forged_models_give_one_line_and_exit_code_2(
    run: Path,
    corners: Path,
    tmp_path: Path,
    name: str,
    command: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    forge(run, FORGED[name])
    more = {"predict": ["x.png"], "export": ["--out", "x.onnx"]}.get(command, [str(corners)])
    capfd.readouterr()
    assert main([command, str(run), *more]) == 2
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "config.json" in said.err
    assert not (tmp_path / "elsewhere").exists()


def test_a_model_that_claims_other_draws_changes_them_and_nothing_else(run: Path, corners: Path) -> None:
    before = evaluate(run, corners)
    forge(run, lambda v: v["about"]["data"].update(n_per_class=1, noise_rate=1.0, seed=9))
    assert evaluate(run, corners).uncalibrated == before.uncalibrated


def test_the_model_of_a_run_takes_paths_and_explains(run: Path, corners: Path, tmp_path: Path) -> None:
    classifier = esupcon.load(run)
    images = np.asarray(load(corners, log=lambda line: None).x_test[:3])
    Image.fromarray(images[0, 0]).save(tmp_path / "0.png")
    expected = classifier.predict_proba(images)
    np.testing.assert_allclose(classifier.predict_proba([tmp_path / "0.png"]), expected[:1], atol=1e-6)
    (found,) = predict_files(classifier, [str(tmp_path / "0.png")], top_k=3, unreadable=lambda path, reason: None)  # type: ignore[arg-type]
    assert dict(found.ranked) == pytest.approx(
        dict(zip(classifier.classes_.tolist(), expected[0], strict=True)), abs=1e-6
    )
    assert classifier.explain(images).neighbours.shape == (3, 5)
    assert classifier.ood_score(images).shape == (3,)
    assert len(classifier.label_issues()) > 50  # type: ignore[arg-type]


def test_calibrating_a_run_stores_the_threshold_for_unknown_images(run: Path, corners: Path) -> None:
    images = np.asarray(load(corners, log=lambda line: None).x_test)
    assert calibrate(run, corners, on="all").stored
    classifier = load_classifier(run)
    assert classifier.calibration.outlier_score == "mahalanobis"
    assert np.mean(classifier.predict(images, unknown="none") == "none") < 0.05
    noise = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    assert np.mean(classifier.predict(noise, unknown="none") == "none") > 0.5


def test_commands_for_images_refuse_models_of_tables(tmp_path: Path, corners: Path, run: Path) -> None:
    folder = make_classifier().save(tmp_path / "table")
    for use in (
        lambda: evaluate(folder, corners),
        lambda: calibrate(folder, corners),
        lambda: predict_files(load_classifier(folder), [], unreadable=lambda path, reason: None),
    ):
        with pytest.raises(ValueError, match="classifies tables; this command takes classifiers of images"):
            use()
    with pytest.raises(ValueError, match="top_k must be from 1 to the 3 classes"):
        predict_files(load_classifier(run), [], top_k=9, unreadable=lambda path, reason: None)
