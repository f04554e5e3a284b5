from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from esupcon.data import load
from esupcon.pipeline.evaluate import calibrate
from esupcon.pipeline.trained import load_trained
from esupcon.probability import Predictions, fit_temperature
from tiny_images import CLASSES, pictures, write_folder, write_npz


def relabelled(path: Path, names: tuple[str, ...], labels_as: tuple[int, ...], seed: int = 4) -> Path:
    """The test part of corners, its classes called and numbered otherwise."""
    y = np.arange(45) % 3
    np.savez(
        path,
        x_train=pictures(y, seed),
        y_train=np.array(labels_as)[y],
        x_test=pictures(y, 4),
        y_test=np.array(labels_as)[y],
        classes=np.array(names),
    )
    return path


def test_figures_are_those_of_training(esupcon, trained: Path, corners: Path) -> None:
    said = esupcon("evaluate", trained, corners, "--json")
    assert said.code == 0
    stored = Predictions.load(trained / "predictions.npz")
    figures = said.json["uncalibrated"]
    assert figures["n"] == 45
    assert figures["accuracy"] == np.mean(stored.logits.argmax(1) == stored.labels)
    assert said.json["calibrated"] is None
    assert said.json["part"] == "test"


def test_the_table(esupcon, trained: Path, corners: Path) -> None:
    said = esupcon("evaluate", trained / "model", corners)
    assert said.code == 0
    for word in ("accuracy", "ECE", "NLL", "Brier score", *CLASSES, "45 samples"):
        assert word in said.out
    assert "Not calibrated yet" in said.err


def test_classes_are_matched_by_name(esupcon, trained: Path, corners: Path, tmp_path: Path) -> None:
    as_trained = esupcon("evaluate", trained, corners, "--json").json["uncalibrated"]
    turned = relabelled(tmp_path / "turned.npz", ("se", "nw", "ne"), (2, 1, 0))
    found = esupcon("evaluate", trained, turned, "--json").json["uncalibrated"]
    assert found["accuracy"] == as_trained["accuracy"]
    assert found["per_class"] == as_trained["per_class"]


def test_a_class_the_model_does_not_know_is_refused(esupcon, trained: Path, tmp_path: Path) -> None:
    said = esupcon("evaluate", trained, relabelled(tmp_path / "d.npz", ("ne", "nw", "sw"), (0, 1, 2)))
    assert said.code == 2
    assert "does not know 1 of the classes" in said.err
    assert "'sw' the first" in said.err


def test_fewer_classes_are_measured_on_those(esupcon, trained: Path, tmp_path: Path) -> None:
    said = esupcon("evaluate", trained, write_npz(tmp_path / "two.npz", classes=("ne", "se")), "--json")
    assert said.code == 0
    assert said.json["classes_without_samples"] == ["nw"]


def test_a_flat_folder_is_measured_whole_and_training_data_on_their_test_part(
    esupcon, trained: Path, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "new")
    said = esupcon("evaluate", trained, folder, "--json")
    assert said.code == 0, said.err
    assert (said.json["part"], said.json["uncalibrated"]["n"]) == ("all", 12)
    said = esupcon("evaluate", trained, folder, "--json", "--part", "test")
    assert (said.json["part"], said.json["uncalibrated"]["n"]) == ("test", 3)
    flat = write_npz(tmp_path / "flat.npz", n_test=0)
    words = ("--encoder", "mlp-8x1", "--precision", "32", "--steps", "2", "--test-fraction", "0.3")
    assert esupcon("train", flat, "--out", tmp_path / "o", *words).code == 0
    said = esupcon("evaluate", tmp_path / "o", flat, "--json")
    assert (said.json["part"], said.json["uncalibrated"]["n"]) == ("test", 27)


@pytest.mark.parametrize("name", ["r.png", "r.svg"])
def test_the_diagram(esupcon, trained: Path, corners: Path, tmp_path: Path, name: str) -> None:
    assert esupcon("evaluate", trained, corners, "--plot", tmp_path / name).code == 0
    assert (tmp_path / name).stat().st_size > 5000
    assert esupcon("evaluate", trained, corners, "--plot", tmp_path / "r.bmp").code == 2


def test_calibration_uses_what_training_held_out(esupcon, trained: Path, corners: Path, tmp_path: Path) -> None:
    held = Predictions.load(trained / "held_out.npz")
    said = esupcon("calibrate", trained, corners, "--json", "--plot", tmp_path / "c.png")
    assert said.code == 0
    temperature = said.json["temperature"]
    assert temperature == pytest.approx(fit_temperature(held.logits, held.labels), rel=1e-3)
    assert said.json["n_calibration"] == 9
    assert (tmp_path / "c.png").exists()
    after = esupcon("evaluate", trained, corners, "--json").json
    assert after["calibrated"]["temperature"] == temperature
    assert after["calibrated"]["ece"] == pytest.approx(said.json["ece_after"])
    assert after["calibrated"]["accuracy"] == after["uncalibrated"]["accuracy"]
    shown = esupcon("evaluate", trained, corners)
    assert "before calibration" in shown.out
    x = load(corners, log=lambda line: None).x_test
    model = load_trained(trained)
    scaled = np.exp(model.logits(x) / temperature)
    np.testing.assert_allclose(model.probabilities(x), scaled / scaled.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("on", "n_fit", "n_measured"), [("train", 90, 45), ("test", 9, 36), ("all", 135, 135)])
def test_other_parts_to_calibrate_on(
    esupcon, trained: Path, corners: Path, on: str, n_fit: int, n_measured: int
) -> None:
    said = esupcon("calibrate", trained, corners, "--on", on, "--json")
    assert said.code == 0
    assert (said.json["n_calibration"], said.json["n_evaluation"]) == (n_fit, n_measured)


def test_new_data_are_calibrated_on_their_train_part(esupcon, trained: Path, tmp_path: Path) -> None:
    said = esupcon("calibrate", trained, write_npz(tmp_path / "new.npz", seed=20), "--json")
    assert said.code == 0
    assert said.json["n_calibration"] == 90
    refused = esupcon("calibrate", trained, tmp_path / "new.npz", "--on", "held-out")
    assert refused.code == 2
    assert "was not trained on" in refused.err


def test_nothing_held_out_is_said(esupcon, corners: Path, tmp_path: Path) -> None:
    words = ("--encoder", "mlp-8x1", "--precision", "32", "--steps", "2", "--validation-fraction", "0")
    assert esupcon("train", corners, "--out", tmp_path / "o", *words).code == 0
    said = esupcon("calibrate", tmp_path / "o", corners)
    assert said.code == 2
    assert "nothing held out" in said.err
    assert load_trained(tmp_path / "o").calibration_temperature is None


def test_a_failed_calibration_leaves_the_model_whole(trained: Path, corners: Path, monkeypatch) -> None:
    def no_space(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("esupcon.artifact.folder.write_weights", no_space)
    with pytest.raises(OSError, match="No space"):
        calibrate(trained, corners)
    assert load_trained(trained).calibration_temperature is None


def test_the_table_of_calibration(esupcon, trained: Path, corners: Path) -> None:
    said = esupcon("calibrate", trained, corners)
    assert "before, T = 1" in said.out
    assert "held-out part of the training data" in said.err


def test_words_that_are_none(esupcon, trained: Path, corners: Path, tmp_path: Path) -> None:
    assert "part must be one of" in esupcon("evaluate", trained, corners, "--part", "some").err
    assert "on must be one of" in esupcon("calibrate", trained, corners, "--on", "some").err
    assert esupcon("evaluate", tmp_path, corners).code == 2
