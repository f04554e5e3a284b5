"""Train and test parts drawn from one body of labels: pure functions of the labels and a seed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def stratified_split(labels: NDArray[np.int64], test_fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Indices of train and test, each ascending. A class of n gives round(test_fraction * n) to the test
    part, at least one and at most n - 1; a class of one stays in train."""
    check_test_fraction(test_fraction)
    return _draw(labels, {k: _share(n, test_fraction) for k, n in _sizes(labels).items()}, seed)


def n_per_class_split(
    labels: NDArray[np.int64],
    n_per_class: int,
    seed: int,
    classes: Sequence[str],
    *,
    otherwise: float | None = None,
) -> tuple[Indices, Indices]:
    """Indices of train, `n_per_class` of each class, and of test, all the others; each ascending.

    A class of `n_per_class` or fewer has nothing left to test on: it is split as `stratified_split` would
    with test_fraction `otherwise`, or where that is None refused.
    """
    if n_per_class < 1:
        raise ValueError(f"n_per_class must be at least 1; got {n_per_class}")
    sizes = _sizes(labels)
    smallest = min(sizes, key=lambda k: sizes[k])
    if otherwise is None and sizes[smallest] <= n_per_class:
        raise ValueError(
            f"n_per_class={n_per_class} leaves nothing to test on: class {classes[smallest]!r} has "
            f"{sizes[smallest]} image(s). Pass less than the smallest class holds."
        )
    n_test = {k: n - n_per_class if n > n_per_class else _share(n, otherwise or 0.0) for k, n in sizes.items()}
    return _draw(labels, n_test, seed)


def check_test_fraction(test_fraction: float) -> None:
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction must lie between 0 and 1, both excluded; got {test_fraction}")


def _sizes(labels: NDArray[np.int64]) -> dict[int, int]:
    present, counts = np.unique(labels, return_counts=True)
    return dict(zip(present.tolist(), counts.tolist(), strict=True))


def _share(n: int, fraction: float) -> int:
    return 0 if n < 2 else min(max(round(fraction * n), 1), n - 1)


def _draw(labels: NDArray[np.int64], n_test: dict[int, int], seed: int) -> tuple[Indices, Indices]:
    rng = np.random.default_rng(seed)
    chosen = np.zeros(labels.size, bool)
    for k in sorted(n_test):
        members = np.flatnonzero(labels == k)
        chosen[rng.permutation(members)[: n_test[k]]] = True
    return np.flatnonzero(~chosen).astype(np.int64), np.flatnonzero(chosen).astype(np.int64)
