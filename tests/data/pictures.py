"""Images and folders for the tests of the data sources."""

from pathlib import Path

import numpy as np
from PIL import Image

from esupcon.data import Dataset, load


def picture(width=24, height=24, seed=0):
    """A smooth colour gradient with a bright corner, so that every turn and flip of it differs."""
    y, x = np.mgrid[0:height, 0:width]
    shift = 17 * seed % 97
    red = 40 + 180 * x / max(width - 1, 1)
    green = 30 + 190 * y / max(height - 1, 1)
    blue = np.full_like(red, 60.0 + shift)
    pixels = np.stack([red, green, blue], -1)
    pixels[: max(1, height // 4), : max(1, width // 4)] = 250
    return Image.fromarray(pixels.round().astype(np.uint8))


def saved(path: Path, image=None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture()).save(path, **options)
    return path


def class_folder(root: Path, counts: dict[str, int], **options) -> Path:
    """root/<class>/<i>.png, every picture another."""
    seed = 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            seed += 1
            saved(root / name / f"{i:03}.png", picture(seed=seed, **options))
    return root


def quietly(source, tmp_path: Path, **options) -> Dataset:
    """`load` with its cache in tmp_path and its lines kept in the notes alone."""
    options.setdefault("cache_dir", tmp_path / "the cache")
    options.setdefault("data_dir", tmp_path)
    return load(source, log=lambda line: None, **options)


def said(dataset: Dataset, *words: str) -> bool:
    """Whether one note has all the words."""
    return any(all(word in line for word in words) for line in dataset.notes)
