"""Caltech-256 in its official tree: 256_ObjectCategories/001.ak47/001_0001.jpg and so on."""

from functools import partial
from pathlib import Path

import numpy as np

from esupcon.data.listing import ImageFiles, Listing
from esupcon.data.progress import Say
from esupcon.data.split import n_per_class_split

_CLUTTER = "257.clutter"
_N_PER_CLASS = 60
_OFFICIAL = 30_607  # images, clutter among them


def list_caltech256(
    folder: Path,
    note: Say,
    *,
    seed: int,
    n_per_class: int | None,
    include_clutter: bool,
    test_fraction: float,
) -> Listing:
    """No official split exists: `n_per_class` images of each class train, the others test."""
    categories = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[:3].isdigit())
    files = {category: sorted(category.glob("[0-9]*.jpg")) for category in categories}
    n_found = sum(map(len, files.values()))
    if n_found != _OFFICIAL:
        note(f"{folder} holds {n_found:,} images; the official set has {_OFFICIAL:,}")
    others = sum(1 for category in categories for _ in category.iterdir()) - n_found
    if others:
        note(f"{others} entries in the class folders are not images of the set and were not read")
    if not include_clutter:
        n_clutter = sum(len(files.pop(category)) for category in categories if category.name == _CLUTTER)
        if n_clutter:
            note(f"the clutter class ({n_clutter} images) is left out; include_clutter=True keeps it")
    classes = tuple(category.name.partition(".")[2] or category.name for category in files)
    labels = np.repeat(np.arange(len(files)), [len(of_class) for of_class in files.values()])
    if n_per_class is None and any(len(of_class) <= _N_PER_CLASS for of_class in files.values()):
        note(f"a class of {_N_PER_CLASS} images or fewer is split by test_fraction={test_fraction} instead")
    split = partial(
        n_per_class_split,
        n_per_class=_N_PER_CLASS if n_per_class is None else n_per_class,
        seed=seed,
        classes=classes,
        otherwise=test_fraction if n_per_class is None else None,
    )
    images = ImageFiles([str(path) for of_class in files.values() for path in of_class])
    return Listing(images, labels.astype(np.int64), classes, split=split)
