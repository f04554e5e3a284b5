"""The script behind the picture of augmentations in the docs."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "contact_sheet.py"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return ended.value.code


def test_a_sheet_is_written_whole(tmp_path, monkeypatch):
    colours = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "mine.png")
    path = tmp_path / "new" / "sheet.png"
    assert run(monkeypatch, "--output", path, tmp_path / "mine.png") == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["sheet.png"]
    with Image.open(path) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 1000


def test_something_else_than_a_picture_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "notes.txt").write_text("no picture")
    assert run(monkeypatch, "--output", tmp_path / "sheet.png", tmp_path / "notes.txt") == 2
    assert "cannot identify image file" in capsys.readouterr().err
    assert not (tmp_path / "sheet.png").exists()
