from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from esupcon.cli.predict import _FORMULA_MARKS, _write_csv
from esupcon.pipeline.predict import BATCH, Prediction, predict_files
from esupcon.pipeline.trained import load_trained
from tiny_images import CLASSES, write_folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


def test_one_line_for_each_image_in_order(esupcon, trained: Path, images: Path) -> None:
    said = esupcon("predict", trained, images / "se", images / "ne" / "0.png")
    assert said.code == 0
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [row["path"] for row in rows] == [
        *(str(images / "se" / f"{i}.png") for i in range(4)),
        str(images / "ne" / "0.png"),
    ]
    model = load_trained(trained)
    for row in rows:
        pixels = np.asarray(Image.open(row["path"]))[None, None]
        p = model.probabilities(pixels)[0]
        assert row["label"] == model.classes[int(p.argmax())]
        assert float(row["probability"]) == pytest.approx(p.max(), abs=1e-4)


def test_the_likeliest_classes_as_json_lines(esupcon, trained: Path, images: Path) -> None:
    said = esupcon("predict", trained, images, "--top-k", "3", "--format", "jsonl")
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert len(lines) == 12
    for line in lines:
        p = [one["probability"] for one in line["top"]]
        assert p == sorted(p, reverse=True)
        assert sum(p) == pytest.approx(1)
        assert {one["label"] for one in line["top"]} == set(CLASSES)
        assert (line["label"], line["probability"]) == (line["top"][0]["label"], p[0])
    said = esupcon("predict", trained, images / "se" / "0.png", "--top-k", "2")
    assert said.out.splitlines()[0] == "path,label,probability,label_2,probability_2"


def test_unreadable_files_are_named_and_left_out(esupcon, trained: Path, images: Path, tmp_path: Path) -> None:
    (images / "se" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    (tmp_path / "empty").mkdir()
    said = esupcon("predict", trained, images / "se", tmp_path / "gone.png", tmp_path / "empty")
    assert said.code == 1
    assert len(said.out.splitlines()) == 5
    for name in ("broken.png", "gone.png", "empty"):
        assert f"{name} (" in said.err
    assert "3 could not be used, 4 predicted" in said.err


def test_paths_from_standard_input(esupcon, trained: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{images / 'ne' / '1.png'}\n\n{images / 'nw'}\r\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    said = esupcon("predict", trained, "-")
    assert said.code == 0
    assert len(said.out.splitlines()) == 1 + 1 + 4


def test_predictions_come_as_the_paths_do(trained: Path, images: Path) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield str(images / "se" / "0.png")

    found = predict_files(load_trained(trained), endless(), unreadable=lambda path, reason: None, workers=1)
    first = next(found)
    assert first.path == str(images / "se" / "0.png")
    assert taken <= BATCH
    found.close()


@pytest.mark.parametrize("top_k", [0, 4, -1])
def test_more_classes_than_there_are(esupcon, trained: Path, images: Path, top_k: int) -> None:
    said = esupcon("predict", trained, images, "--top-k", top_k)
    assert said.code == 2
    assert "top_k must be from 1 to the 3 classes" in said.err


def test_a_format_that_is_none(esupcon, trained: Path, images: Path) -> None:
    assert "--format must be csv or jsonl" in esupcon("predict", trained, images, "--format", "xml").err


def test_no_cell_is_a_formula(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["=1+1", "+x", "-x", "@x", "\tx", "plain", 'a,"b"', "two\nlines", "'x"]
    _write_csv([Prediction(name, ((name, 0.5),)) for name in names], 1)
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:]
    assert len(rows) == len(names)
    for name, (path, label, _) in zip(names, rows, strict=True):
        assert not path.startswith(_FORMULA_MARKS)
        assert not label.startswith(_FORMULA_MARKS)
        assert path in (name, f"./{name}")
        assert label in (name, f"'{name}")
        if not name.startswith(_FORMULA_MARKS):
            assert (path, label) == (name, name)
