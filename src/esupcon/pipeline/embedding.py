"""What the embedding looks like: some test samples and the prototypes, kept to be drawn later without the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from esupcon.data import Dataset
from esupcon.files import write_whole
from esupcon.heads import PrototypeHead
from esupcon.training import Fitted

EMBEDDING_FILE = "embedding.npz"
_SAMPLES = 600  # enough to see clusters, few enough for a file of some hundred kilobytes


def save_embedding(path: Path, fitted: Fitted, dataset: Dataset) -> None:
    """`z` (n, d) unit embeddings, `labels` (n,), and `prototypes` (K, d) of unit length where the head has some."""
    n = len(dataset.x_test)
    if n == 0:
        return
    rows = np.sort(np.random.default_rng(0).choice(n, min(n, _SAMPLES), replace=False))
    arrays: dict[str, Any] = {
        "z": _unit(fitted.classifier.transform(np.asarray(dataset.x_test[rows]))).astype(np.float16),
        "labels": dataset.y_test[rows],
    }
    head = fitted.network.head
    if isinstance(head, PrototypeHead):
        arrays["prototypes"] = _unit(head.weight.detach().float().numpy()).astype(np.float16)
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def _unit(rows: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: np.ndarray[Any, np.dtype[np.float32]] = rows / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit
