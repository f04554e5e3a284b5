"""A small set of pictures that a small network learns in a second: bright quarters of 8x8 images, a class each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("ne", "nw", "se")
CORNERS = {"ne": (0, 4), "nw": (0, 0), "se": (4, 4)}


def pictures(labels: NDArray[np.int64], seed: int, classes: tuple[str, ...] = CLASSES) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 120, (len(labels), 1, 8, 8))
    for i, k in enumerate(labels):
        row, column = CORNERS[classes[k]]
        x[i, :, row : row + 4, column : column + 4] += 90
    return x.astype(np.uint8)


def write_npz(
    path: Path, *, n_train: int = 90, n_test: int = 45, seed: int = 0, classes: tuple[str, ...] = CLASSES
) -> Path:
    """With a test part, or without one where n_test is 0."""
    arrays = {}
    for part, n in (("train", n_train), ("test", n_test)):
        if n:
            labels = np.arange(n) % len(classes)
            arrays |= {f"x_{part}": pictures(labels, seed + len(part), classes), f"y_{part}": labels}
    np.savez(path, classes=np.array(classes), **arrays)
    return path


def write_folder(root: Path, n_each: int = 4, seed: int = 3) -> Path:
    for k, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i, image in enumerate(pictures(np.full(n_each, k), seed + k)):
            Image.fromarray(image[0]).save(root / name / f"{i}.png")
    return root
