"""Small data in the forms that the pages expect in the current folder."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from pages import blocks
from pictures import cifar10, cifar100, take_for_official
from PIL import Image

from esupcon.data import named

CLASSES = ("cat", "dog", "owl")


def prepare(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the empty `folder` for the commands of a page. Data sets by name lie in `folder`/datasets."""
    if page.name == "quickstart.md":
        exec(compile(blocks(page, "python")[0], page.name, "exec"), {})  # writes photos/; the shown output is of them
        write_new(folder / "new")
        return
    write_photos(folder / "photos")
    write_new(folder / "new")
    write_csv(folder / "labels.csv", folder / "photos")
    write_cifar(folder / "datasets", monkeypatch)
    for table in blocks(page, "toml"):
        (folder / "mine.toml").write_text(table)


def write_photos(root: Path, n_each: int = 20) -> None:
    """Write photos/cat/003.jpg and so on: 16x16, one colour per class."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(n_each):
            _photo(rng, k).save(root / name / f"{i:03}.jpg")


def write_new(root: Path) -> None:
    root.mkdir()
    rng = np.random.default_rng(1)
    for k in range(len(CLASSES)):
        _photo(rng, k).save(root / f"{k}.jpg")
        _photo(rng, k).save(root / f"{k}.png")


def _photo(rng: np.random.Generator, k: int) -> Image.Image:
    pixels = rng.integers(0, 120, (16, 16, 3))
    pixels[..., k] += 120
    return Image.fromarray(pixels.astype(np.uint8))


def write_csv(path: Path, photos: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "species"])
        writer.writerows(
            [photo.relative_to(path.parent), photo.parent.name] for photo in sorted(photos.glob("*/*.jpg"))
        )


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write both sets as the official files, with images of noise, and accept their checksums."""
    cifar10(root, 60)
    cifar100(root, 400)
    for name in named._CIFAR_FILES:
        take_for_official(monkeypatch, name, root / named.PUBLISHED[name].folder)
