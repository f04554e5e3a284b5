"""Small data and quick settings that the tests of the estimator share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_blobs

from esupcon import ContrastiveClassifier

Array = NDArray[Any]


def quick(**parameters: Any) -> ContrastiveClassifier:
    """Return an estimator that fits in a fraction of a second, separates blobs and learns something about digits."""
    return ContrastiveClassifier(**{"epochs": 25, "lr": 0.01, "random_state": 0, "auto_calibrate": False, **parameters})


def blobs(n: int = 90, centers: int = 3, seed: int = 0) -> tuple[Array, Array]:
    X, y = make_blobs(n, centers=centers, n_features=5, cluster_std=1.0, random_state=seed)
    return X, y


def digit_images(n: int = 200) -> tuple[Array, Array]:
    """Return uint8 (n, 8, 8) and labels."""
    data = load_digits()
    return np.rint(data.images[:n] * (255 / 16)).astype(np.uint8), data.target[:n]
