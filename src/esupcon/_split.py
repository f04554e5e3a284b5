"""Draw stratified parts of a labelled set: pure functions of the labels and a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


def stratified_split(labels: Labels, test_fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Return ascending indices of a train and a test part.

    A class with n samples gives round(test_fraction * n) of them to the test part, at least one and at most n - 1. A
    class with one sample stays in train.
    """
    return _draw(labels, lambda n: 0 if n < 2 else min(max(round(test_fraction * n), 1), n - 1), seed)


def n_per_class_split(labels: Labels, n_per_class: int, seed: int, classes: Sequence[str]) -> tuple[Indices, Indices]:
    """Return ascending indices of a train part with `n_per_class` samples of each class, and of the rest."""
    present, sizes = np.unique(labels, return_counts=True)
    if sizes.min() <= n_per_class:
        raise ValueError(
            f"n_per_class={n_per_class} leaves nothing to test on: class {classes[present[sizes.argmin()]]!r} has "
            f"{sizes.min()} image(s). Pass less than the smallest class holds."
        )
    return _draw(labels, lambda n: n - n_per_class, seed)


def folds(labels: Labels, n_folds: int, rng: np.random.Generator) -> Labels:
    """Return a fold number for each sample, classes spread evenly.

    The only sample of a class is in no fold (-1): every training part needs it.
    """
    fold = np.full(len(labels), -1, np.int64)
    for k in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == k))
        if len(members) > 1:
            fold[members] = (np.arange(len(members)) + rng.integers(n_folds)) % n_folds
    return fold


def _draw(labels: Labels, n_test: Callable[[int], int], seed: int) -> tuple[Indices, Indices]:
    """Return the rest and the test part, which holds `n_test(n)` samples of a class with n."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros(labels.size, bool)
    for k in np.unique(labels):
        members = np.flatnonzero(labels == k)
        chosen[rng.permutation(members)[: n_test(len(members))]] = True
    return np.flatnonzero(~chosen).astype(np.int64), np.flatnonzero(chosen).astype(np.int64)
