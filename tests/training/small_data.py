"""Small data that a network can learn in seconds, and runs on it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from esupcon.spec import TrainSpec
from esupcon.training import TrainData


def blobs(n: int = 48, n_classes: int = 3, size: int = 8, channels: int = 1, seed: int = 0) -> TrainData:
    """Images that show a bright patch where their class says, under noise; a quarter more is held out."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n + n // 4) % n_classes
    images = rng.integers(0, 120, (len(labels), channels, size, size))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[:, row * size // 2 : (row + 1) * size // 2, column * size // 2 : (column + 1) * size // 2] += 110
    x, y = images.astype(np.uint8), labels.astype(np.int64)
    return TrainData(x[:n], y[:n], n_classes, x[n:], y[n:])


def quick_spec(**changes: Any) -> TrainSpec:
    settings = {
        "encoder": "resnet10-w8",
        "epochs": 2,
        "batch_size": 16,
        "precision": "32",
        "augmentation": "digits",
        "projection_dim": 8,
    }
    return TrainSpec(**(settings | changes))


def changes(words: list[str]) -> dict[str, Any]:
    """Return the settings of a job of two processes: `frozen`, a share of wrong labels, or none."""
    if words == ["frozen"]:
        return {"train_blocks": 0, "cached_views": 5}
    return {"label_noise": float(words[0])} if words else {}


def rowwise_encoder() -> nn.Module:
    """An encoder whose rows do not depend on each other: no batch normalisation."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 12))
