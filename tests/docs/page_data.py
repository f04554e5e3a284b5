"""Small data in the forms that the pages expect in the current folder."""

from __future__ import annotations

import csv
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pages import blocks
from PIL import Image

from esupcon.data import named

CLASSES = ("cat", "dog", "owl")
_CIFAR10_NAMES = b"airplane automobile bird cat deer dog frog horse ship truck".split()


def prepare(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the empty `folder` for the commands of a page. Data sets by name lie in `folder`/datasets."""
    if page.name == "getting-started.md":
        exec(compile(blocks(page, "python")[0], page.name, "exec"), {})  # writes photos/; the shown output is of them
        write_new(folder / "new")
        return
    write_photos(folder / "photos")
    write_new(folder / "new")
    write_csv(folder / "labels.csv", folder / "photos")
    write_cifar(folder / "datasets", monkeypatch)
    for table in blocks(page, "toml"):
        (folder / "mine.toml").write_text(table)
        if '"mine.py"' in table:
            registering = [code for code in blocks(page, "python") if "register" in code]
            (folder / "mine.py").write_text("\n\n".join(registering))


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


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, n: int = 60, n_of_100: int = 400) -> None:
    """Write both sets as the official files, with n images of noise per batch, and accept their checksums."""
    rng = np.random.default_rng(2)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels = (np.arange(n) % 10).tolist()
        _pickle(root / "cifar-10-batches-py" / name, {b"labels": labels, b"data": _rows(rng, n)})
    _pickle(root / "cifar-10-batches-py" / "batches.meta", {b"label_names": _CIFAR10_NAMES})
    for name in ("train", "test"):
        labels = (np.arange(n_of_100) % 100).tolist()
        _pickle(root / "cifar-100-python" / name, {b"fine_labels": labels, b"data": _rows(rng, n_of_100)})
    names = [f"fine {k}".encode() for k in range(100)]
    _pickle(root / "cifar-100-python" / "meta", {b"fine_label_names": names})
    for name, files in named._CIFAR_FILES.items():
        folder = root / named.PUBLISHED[name].folder
        written = {file: hashlib.md5((folder / file).read_bytes()).hexdigest() for file in files}
        monkeypatch.setitem(named._CIFAR_FILES, name, written)


def _rows(rng: np.random.Generator, n: int) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (n, 3072)).astype(np.uint8)


def _pickle(path: Path, content: dict[bytes, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=3))
