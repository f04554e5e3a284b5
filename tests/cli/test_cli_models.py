"""The commands train, evaluate, calibrate and predict."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assets import CORNERS_OPTIONS
from esupcon.classifier import load_classifier, predict_files
from esupcon.classifier.evaluation import BATCH
from esupcon.cli.models import RECOMMENDED
from esupcon.data import load
from esupcon.probability import Predictions, smoothed_temperature
from esupcon.recipes import RECIPES
from esupcon.spec import RunSpec, TrainSpec
from esupcon.training import Result
from tiny_images import CLASSES, pictures, write_folder, write_npz

QUICK = ("--encoder", "mlp-8x1", "--precision", "32", "--steps", "2")


# --- train -----------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_shown_again(esupcon, corners: Path, corners_run: Path) -> None:
    printed = esupcon("train", corners, "--out", corners_run, *CORNERS_OPTIONS)
    assert "nothing was trained" in printed.err
    assert "accuracy" in printed.out
    assert str(corners_run / "model") in printed.out.replace("\n", "")
    found = esupcon("train", corners, "--out", corners_run, *CORNERS_OPTIONS, "--json").json
    assert found["already_finished"]
    assert found["metrics"]["test"]["n"] == 45
    assert found["preparation"]["scenario"]["n_wrong_labels"] == 9


def test_only_the_first_of_several_processes_prints(
    esupcon, corners: Path, corners_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):  # as Fabric's launcher sets them
        monkeypatch.setenv(name, "1")
    assert esupcon("train", corners, "--out", corners_run, *CORNERS_OPTIONS).out == ""


def test_every_setting_has_an_option(esupcon, corners: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        **{"method": "supcon_tt", "encoder": "mlp-8x1", "epochs": 1, "steps": 2, "batch_size": 30, "micro_batch": 10},
        **{"lr": 0.01, "optimizer": "adamw", "momentum": 0.5, "weight_decay": 0.01, "warmup": 0.2, "temperature": 0.3},
        **{"prototype_weight": 2.0, "prototype_lr": 0.5, "spce_average": "batch", "projection_dim": 16, "seed": 7},
        **{"augmentation": "none", "precision": "64", "patience": 3, "class_weight": "balanced", "threads": 2},
        **{"encoder_lr": 0.5, "schedule": "linear", "label_smoothing": 0.1, "neck": "norm"},
        **{"prototype_temperature": 0.2, "cached_views": 6, "contrast_weight": 0.5, "ce_power": 0.5, "mixup": 0.2},
        **{"label_noise": 0.25},
    }
    monkeypatch.setattr(RunSpec, "check_used", lambda run, train: None)  # not all of them go together
    exclusive = {"compile", "test_time_flip", "logit_adjustment", "train_blocks", "images_per_class"}
    exclusive |= {"prototype_share", "prototype_average", "pretrained"}
    defaults = TrainSpec().model_dump()
    assert set(given) | exclusive == set(defaults)
    assert all(given[name] != defaults[name] for name in given)
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    printed = esupcon("train", corners, "--out", tmp_path / "o", *words, "--json")
    assert printed.json["run"]["train"] == {**defaults, **given}


def test_without_out_each_command_has_a_new_folder_and_says_how_to_continue_the_earlier_one(
    esupcon, corners: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = esupcon("train", corners, *QUICK)
    assert first.err.splitlines()[0] == "The run will be in runs/corners-esupcon."
    assert "earlier run" not in first.err
    for name in ("result.json", "report.html", "model/model.safetensors"):
        assert (tmp_path / "runs" / "corners-esupcon" / name).is_file()
    second = esupcon("train", corners, *QUICK)
    assert second.err.splitlines()[:2] == [
        "The run will be in runs/corners-esupcon-2.",
        "To continue or show the earlier run, add: --out runs/corners-esupcon",
    ]
    shown = esupcon("train", corners, *QUICK, "--out", "runs/corners-esupcon")
    assert "nothing was trained" in shown.err
    assert len(list(Path("runs").iterdir())) == 2


def test_small_data_are_calibrated_by_cross_fitting_unless_a_part_is_held_out(
    esupcon, corners: Path, tmp_path: Path
) -> None:
    found = esupcon("train", corners, "--out", tmp_path / "a", *QUICK, "--json").json
    assert found["calibration"]["held_out"]["protocol"] == "cross-fitted"
    assert found["preparation"]["n_held_out"] == 0
    # Every training image is predicted by a network that has not seen it: for suspicious labels.
    assert found["metrics"]["held_out"]["n"] == sum(found["preparation"]["class_counts"])
    for number, more in enumerate((("--validation-fraction", "0.1"), ("--patience", "3"))):
        found = esupcon("train", corners, "--out", tmp_path / str(number), *QUICK, *more, "--json").json
        assert found["preparation"]["n_held_out"] == 9
    refused = esupcon("calibrate", tmp_path / "a", corners, code=2)
    assert "trained with nothing held out" in refused.err


def test_dry_run_shows_settings_with_reasons_and_the_time_and_writes_nothing(
    esupcon, corners: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("train", corners, "--encoder", "mlp-8x1", "--precision", "32", "--no-mirror")
    printed = esupcon(*words, "--dry-run")
    lines = [line.split() for line in printed.out.splitlines()]
    assert ["--encoder", "mlp-8x1", "as", "given"] in lines
    assert ["--mirror", "False", "as", "given"] in lines
    assert ["--batch-size", "128", "fits", "into", "memory", "with", "most", "networks"] in lines
    assert "Training will take about" in printed.out
    assert all(len(line) <= 80 for line in printed.out.splitlines())
    found = esupcon(*words, "--dry-run", "--minutes", "0.001", "--json").json
    assert found["reasons"]["epochs"] == "what fits into 0.001 min"
    assert found["settings"]["epochs"] < 200
    assert found["seconds"] < 5
    assert list(tmp_path.iterdir()) == []
    words = (*words, "--minutes", "0.002", "--out", "o", "--json")
    assert 1 <= esupcon(*words).json["run"]["train"]["epochs"] < 200
    assert esupcon(*words).json["already_finished"], "the number of epochs is that of the first time"


def test_settings_that_recipes_choose_show_no_default(esupcon) -> None:
    chosen = {name for row in RECIPES.values() for name in row} | {"epochs", "batch_size", "test_time_flip"}
    assert chosen <= set(RECOMMENDED)
    text = " ".join(esupcon("train", "--help").out.replace("│", " ").split())
    assert text.count("recommended for the data") == 1
    options = {one[0]: one for one in (part.split() for part in text.split(" --")[1:])}
    for name in RECOMMENDED:
        option = "mirror" if name == "test_time_flip" else name.replace("_", "-")
        assert "[default:" not in options[option], option
    assert "--no-mirror" in text


def test_the_result_fits_80_columns_and_twelve_lines(esupcon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_npz(tmp_path / "d.npz", n_train=1200, n_test=60)
    monkeypatch.setattr("esupcon.cli.output._FILE_WIDTH", 80)
    monkeypatch.chdir(tmp_path)
    printed = esupcon("train", source.name, *QUICK, "--noise-rate", "0.2")
    lines = printed.out.strip().splitlines()
    assert len(lines) <= 12
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")] == [
        *("ESupCon", "accuracy", "ECE", "weakest", "labels", "model", "report", "next"),
    ]
    result = Result.read(tmp_path / "runs" / "d-esupcon")
    assert f"{100 * result.metrics.test.accuracy:.1f} %" in printed.out
    assert f"{100 * result.calibration.held_out.ece_after:.1f} %" in printed.out
    weakest = min(result.metrics.test.per_class, key=lambda one: one.accuracy)
    assert f"weakest    {weakest.name} (" in printed.out
    images = write_folder(tmp_path / "new")
    for line, data in zip(lines[-2:], (source, images), strict=True):
        esupcon(*line.removeprefix("next").split()[1:-1], data)


def test_report_shows_images_by_file_name_and_the_model_folder_none(esupcon, tmp_path: Path) -> None:
    folder, out = write_folder(tmp_path / "photos", n_each=20), tmp_path / "o"
    words = ("train", folder, "--out", out, *QUICK, "--validation-fraction", "0.3")
    esupcon(*words)
    page = (out / "report.html").read_text()
    assert "data:image/jpeg;base64," in page
    assert re.search(r"(ne|nw|se)/\d+\.png", page)
    assert {path.suffix for path in (out / "model").iterdir()} <= {".json", ".safetensors", ".md"}
    assert "data:image" not in (out / "model" / "README.md").read_text()
    esupcon(*words, "--no-thumbnails")
    assert "data:image/jpeg" not in (out / "report.html").read_text()


def test_report_shows_pairs_of_near_copies(esupcon, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (47, 4, 4), dtype=np.uint8).repeat(8, 1).repeat(8, 2)
    x_test = np.concatenate([x[:3], x[40:]])
    x_test[:3, 0, 0] ^= 1  # nearly equal
    y = np.arange(40) % 2
    np.savez(tmp_path / "d.npz", x_train=x[:40], y_train=y, x_test=x_test, y_test=y[:10])
    esupcon("train", tmp_path / "d.npz", "--out", tmp_path / "o", *QUICK)
    assert "Copies in the test part" in (tmp_path / "o" / "report.html").read_text()


def test_a_report_that_cannot_be_written_loses_nothing(
    esupcon, corners: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise KeyError("boom")

    monkeypatch.setattr("esupcon.report.run_report", fail)
    printed = esupcon("train", corners, "--out", tmp_path / "o", *QUICK)
    (line,) = [line for line in printed.err.splitlines() if line.startswith("esupcon: ")]
    assert line == "esupcon: report.html was not written (KeyError: 'boom'). The result is not affected."
    assert "accuracy" in printed.out
    assert (tmp_path / "o" / "result.json").exists()


@pytest.mark.parametrize(
    "words", ["--encoder resnet19", "--accelerator cuda", "--devices -1", "--optimizer adam", "--out {file}"]
)
def test_mistakes_are_found_before_any_image_is_read(
    esupcon, corners: Path, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("esupcon.training.train", lambda *args, **more: pytest.fail("it was read"))
    (tmp_path / "file").touch()
    words = words.format(file=tmp_path / "file")
    printed = esupcon("train", corners, "--out", tmp_path / "o", *words.split(), code=2)
    assert printed.err.count("\n") == 1


# --- evaluate and calibrate ------------------------------------------------------------------------------------------


def relabelled(path: Path, names: tuple[str, ...], labels_as: tuple[int, ...]) -> Path:
    """Write the test part of corners with other names and numbers of its classes."""
    y = np.arange(45) % 3
    x, labels = pictures(y, 4), np.array(labels_as)[y]
    np.savez(path, x_train=x, y_train=labels, x_test=x, y_test=labels, classes=np.array(names))
    return path


def test_evaluation_repeats_the_results_of_training(esupcon, corners_run: Path, corners: Path, tmp_path: Path) -> None:
    found = esupcon("evaluate", corners_run, corners, "--json", "--plot", tmp_path / "r.png").json
    stored = Predictions.load(corners_run / "predictions.npz")
    assert found["uncalibrated"]["n"] == 45
    assert found["uncalibrated"]["accuracy"] == np.mean(stored.logits.argmax(1) == stored.labels)
    assert found["calibrated"] is None
    assert found["part"] == "test"
    printed = esupcon("evaluate", corners_run / "model", corners, "--plot", tmp_path / "r.svg")
    for word in ("accuracy", "ECE", "NLL", "Brier", *CLASSES, "45 samples"):
        assert word in printed.out
    assert "Not calibrated yet" in printed.err
    assert min((tmp_path / name).stat().st_size for name in ("r.png", "r.svg")) > 5000


def test_classes_are_matched_by_name(esupcon, trained: Path, corners: Path, tmp_path: Path) -> None:
    as_trained = esupcon("evaluate", trained, corners, "--json").json["uncalibrated"]
    turned = relabelled(tmp_path / "turned.npz", ("se", "nw", "ne"), (2, 1, 0))
    found = esupcon("evaluate", trained, turned, "--json").json["uncalibrated"]
    assert found["accuracy"] == as_trained["accuracy"]
    assert found["per_class"] == as_trained["per_class"]
    printed = esupcon("evaluate", trained, relabelled(tmp_path / "d.npz", ("ne", "nw", "sw"), (0, 1, 2)), code=2)
    assert "does not know 1 class of" in printed.err
    assert "first 'sw'" in printed.err
    fewer = esupcon("evaluate", trained, write_npz(tmp_path / "two.npz", classes=("ne", "se")), "--json")
    assert fewer.json["classes_without_samples"] == ["nw"]


def test_data_without_test_part_are_measured_whole_unless_trained_on(esupcon, trained: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "new")
    printed = esupcon("evaluate", trained, folder, "--json")
    assert (printed.json["part"], printed.json["uncalibrated"]["n"]) == ("all", 12)
    printed = esupcon("evaluate", trained, folder, "--json", "--part", "test")
    assert (printed.json["part"], printed.json["uncalibrated"]["n"]) == ("test", 3)
    flat = write_npz(tmp_path / "flat.npz", n_test=0)
    esupcon("train", flat, "--out", tmp_path / "o", *QUICK, "--test-fraction", "0.3")
    printed = esupcon("evaluate", tmp_path / "o", flat, "--json")
    assert (printed.json["part"], printed.json["uncalibrated"]["n"]) == ("test", 27)
    # The split of training is the model's, not asked for: other data may have a test part.
    esupcon("evaluate", tmp_path / "o", write_npz(tmp_path / "own.npz"))


def test_calibration_uses_the_held_out_part_and_is_not_stored_if_it_makes_probabilities_worse(
    esupcon, trained: Path, corners: Path, tmp_path: Path
) -> None:
    held = Predictions.load(trained / "held_out.npz")
    printed = esupcon("calibrate", trained, corners, "--json", "--plot", tmp_path / "c.png")
    figures = printed.json["figures"]
    assert figures["temperature"] == pytest.approx(smoothed_temperature(held.logits, held.labels), rel=1e-3)
    assert figures["n_calibration"] == 9
    assert "held-out part of the training data" in printed.json["fitted_on"]
    assert "fitted on 9 samples only" in printed.err
    assert (tmp_path / "c.png").exists()
    assert figures["nll_after"] > figures["nll_before"]  # nine samples are too few
    assert not printed.json["stored"]
    assert "Not stored" in printed.err
    assert load_classifier(trained).calibration.how == "none"
    assert "fitted by the smoothed rule for few samples" in esupcon("calibrate", trained, corners).err


def test_calibration_is_stored_used_and_replaced_with_a_message(esupcon, trained: Path, corners: Path) -> None:
    printed = esupcon("calibrate", trained, corners, "--on", "all", "--json")
    figures = printed.json["figures"]
    temperature = figures["temperature"]
    assert printed.json["stored"]
    assert "figures are optimistic" in printed.err
    after = esupcon("evaluate", trained, corners, "--part", "all", "--json").json
    assert after["calibrated"]["temperature"] == temperature
    assert after["calibrated"]["ece"] == pytest.approx(figures["ece_after"])
    assert after["calibrated"]["accuracy"] == after["uncalibrated"]["accuracy"]
    shown = esupcon("evaluate", trained, corners)
    assert "before calibration" in shown.out
    assert "T was fitted on 135 samples given later." in shown.err
    x = load(corners, log=lambda line: None).x_test
    model = load_classifier(trained)
    scaled = np.exp(model.logits(x) / temperature)
    np.testing.assert_allclose(model.predict_proba(x), scaled / scaled.sum(1, keepdims=True), rtol=1e-5)
    printed = esupcon("calibrate", trained, corners, "--on", "all")
    assert "before, T = 1" in printed.out
    assert f"Replacing the temperature {temperature:.3g} (given, 135 samples)" in printed.err


def test_parts_to_calibrate_on(esupcon, trained: Path, corners: Path, tmp_path: Path) -> None:
    new = write_npz(tmp_path / "new.npz", seed=20)
    for data, words, n_fit, n_measured in (
        (corners, ("--on", "train"), 90, 45),
        (corners, ("--on", "test"), 9, 36),
        (new, (), 90, 45),
    ):
        found = esupcon("calibrate", trained, data, *words, "--json").json["figures"]
        assert (found["n_calibration"], found["n_evaluation"]) == (n_fit, n_measured)
    refused = esupcon("calibrate", trained, new, "--on", "held-out", code=2)
    assert "was not trained on" in refused.err


# --- predict ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


def test_one_line_per_image_in_order(esupcon, trained: Path, images: Path) -> None:
    printed = esupcon("predict", trained, images / "se", images / "ne" / "0.png")
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    paths = [*(str(images / "se" / f"{i}.png") for i in range(4)), str(images / "ne" / "0.png")]
    assert [row["path"] for row in rows] == paths
    model = load_classifier(trained)
    for row in rows:
        p = model.predict_proba(np.asarray(Image.open(row["path"]))[None, None])[0]
        assert row["label"] == model.classes_[int(p.argmax())]
        assert float(row["probability"]) == pytest.approx(p.max(), abs=1e-4)


def test_most_probable_classes(esupcon, corners_run: Path, images: Path) -> None:
    printed = esupcon("predict", corners_run, images, "--top-k", "9", "--format", "jsonl")
    assert printed.err.startswith("esupcon: --top-k 9: the model has 3 classes; showing all of them.\n")
    assert "not calibrated" in printed.err
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert len(lines) == 12
    for line in lines:
        p = [one["probability"] for one in line["top"]]
        assert p == sorted(p, reverse=True)
        assert sum(p) == pytest.approx(1)
        assert {one["label"] for one in line["top"]} == set(CLASSES)
        assert (line["label"], line["probability"]) == (line["top"][0]["label"], p[0])
    printed = esupcon("predict", corners_run, images / "se" / "0.png", "--top-k", "2")
    assert printed.out.splitlines()[0] == "path,label,probability,label_2,probability_2,outlier_score"


def test_images_that_resemble_no_class_are_unknown(esupcon, trained: Path, corners: Path, images: Path) -> None:
    refused = esupcon("predict", trained, images, "--unknown", code=2)
    assert "--unknown needs a calibrated model. Run: esupcon calibrate" in refused.err
    esupcon("calibrate", trained, corners, "--on", "all")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(noise).save(images / "noise.png")
    model = load_classifier(trained)
    for words, label in ((("--unknown",), "unknown"), (("--unknown=none of these",), "none of these"), ((), None)):
        printed = esupcon("predict", trained, *words, images)
        rows = list(csv.DictReader(io.StringIO(printed.out)))
        expected = model.predict([row["path"] for row in rows], unknown=label)
        assert [row["label"] for row in rows] == expected.tolist()
        scores = model.ood_score([row["path"] for row in rows])
        np.testing.assert_allclose([float(row["outlier_score"]) for row in rows], scores, rtol=1e-3)
        assert [row["label"] for row in rows if row["path"].endswith("noise.png")] == [label] or label is None
    line = json.loads(esupcon("predict", trained, images / "noise.png", "--format", "jsonl", "--unknown").out)
    assert line["label"] == "unknown"
    assert line["outlier_score"] > model.calibration.outlier_threshold
    assert "must not be one of the classes; got 'se'" in esupcon("predict", trained, images, "--unknown=se", code=2).err


def test_unreadable_files_are_named_and_skipped(esupcon, trained: Path, images: Path, tmp_path: Path) -> None:
    (images / "se" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    (tmp_path / "empty").mkdir()
    printed = esupcon("predict", trained, images / "se", tmp_path / "gone.png", tmp_path / "empty", code=1)
    assert len(printed.out.splitlines()) == 5
    for name in ("broken.png", "gone.png", "empty"):
        assert f"{name} (" in printed.err
    assert "3 could not be read, 4 predicted" in printed.err


def test_paths_from_standard_input(esupcon, corners_run: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{images / 'ne' / '1.png'}\n\n{images / 'nw'}\r\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    printed = esupcon("predict", corners_run, "-")
    assert len(printed.out.splitlines()) == 1 + 1 + 4


def test_predictions_are_written_as_paths_arrive(corners_run: Path, images: Path) -> None:
    taken: list[str] = []

    def endless():
        while True:
            taken.append(str(images / "se" / "0.png"))
            yield taken[-1]

    found = predict_files(load_classifier(corners_run), endless(), unreadable=lambda path, reason: None, workers=1)
    assert next(found).path == taken[0]
    assert len(taken) <= BATCH
    found.close()


def test_no_escape_sequence_reaches_a_terminal() -> None:
    """On a terminal names are made printable; in a pipe they are written unchanged."""
    names = ["\x1b[31mred", "\x9b2J", "\u202egnp.exe", "\x07bell", "\udcff", "a\rb", "two\nlines"]
    program = (
        "import sys; from esupcon.cli.models import _csv_writer\n"
        "from esupcon.cli.output import answer, complain, note, table\n"
        "from esupcon.classifier import Prediction\n"
        "sys.stdout.reconfigure(errors='surrogateescape')\n"
        "for name in sys.argv[1:]:\n"
        "    _csv_writer(1)(Prediction(name, ((name, 0.5),))); complain(name); note(name); answer(name)\n"
        "    answer(table(['', name], [[name, name]]))\n"
    )
    leader, follower = pty.openpty()
    words = [sys.executable, "-P", "-c", program, *names]
    done = subprocess.run(words, stdout=follower, stderr=follower, env={**os.environ, "TERM": "dumb"}, check=False)
    os.close(follower)
    shown = os.read(leader, 65536)
    os.close(leader)
    assert done.returncode == 0, shown
    text = shown.decode(errors="surrogateescape").replace("\r\n", "\n")
    assert text.count("\N{REPLACEMENT CHARACTER}") >= 5 * 8  # each of the first five names is printed eight times
    assert all(c.isprintable() or c == "\n" for c in text), text
