"""What a sample of embeddings shows: do they point the same way, and in how many directions do they spread?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.probability.validation import FloatArray, IntArray

# Enough rows for stable averages; the cost of a look does not grow with the data.
MAX_ROWS = 512
# The spectrum of so many rows takes a few milliseconds, that of 512 ten times as many.
SPECTRUM_ROWS = 256


def as_sample(embedding: Any, labels: Any, logits: Any) -> tuple[FloatArray, IntArray, FloatArray | None]:
    """At most MAX_ROWS rows, spread evenly, of arrays or tensors of any precision on any device."""
    z, y = _array(embedding), _array(labels)
    if z.ndim != 2 or len(z) < 2 or y.shape != (len(z),):
        raise ValueError(
            "embedding must hold two or more rows (n, d) and labels one number a row; "
            f"got shapes {z.shape} and {y.shape}."
        )
    rows = np.linspace(0, len(z) - 1, min(MAX_ROWS, len(z))).round().astype(int)
    if logits is None:
        return z[rows].astype(np.float64), y[rows].astype(np.int64), None
    scores = _array(logits)
    if scores.ndim != 2 or len(scores) != len(z):
        raise ValueError(
            f"logits must hold a row for each of the {len(z)} rows of embedding; got shape {scores.shape}."
        )
    return z[rows].astype(np.float64), y[rows].astype(np.int64), scores[rows].astype(np.float64)


def unit_rows(z: FloatArray) -> FloatArray:
    """z_i / |z_i|, zero for zero."""
    length = np.linalg.norm(z, axis=1, keepdims=True)
    unit: FloatArray = np.divide(z, length, out=np.zeros_like(z), where=length > 0)
    return unit


def mean_cosine(unit: FloatArray) -> float:
    """1/(n(n-1)) sum_{i != j} cos(z_i, z_j) in O(n d). Zero vectors, which are all alike, count 1 among themselves."""
    n, n_zero = len(unit), int((~unit.any(1)).sum())
    total = float(np.square(unit.sum(0)).sum()) + n_zero**2
    return (total - n) / (n * (n - 1))


def effective_rank(unit: FloatArray) -> float:
    """exp(-sum_j p_j log p_j), p the singular values of the centred rows over their sum: 1 for a line."""
    centred = unit - unit.mean(0)
    gram = centred @ centred.T if len(centred) <= centred.shape[1] else centred.T @ centred
    spread = np.sqrt(np.clip(np.linalg.eigvalsh(gram), 0, None))
    # Rounding leaves eigenvalues of about 1e-16 where there are none, singular values of 1e-8.
    spread = spread[spread > 1e-6 * spread.max(initial=0.0)]
    if spread.sum() <= 1e-6 * len(unit):
        return 0.0
    p = spread / spread.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def confidence(logits: FloatArray) -> float:
    """The median over rows of the largest softmax probability."""
    return float(np.median(1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)))


def _array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor: NumPy knows neither its graph, nor its device, nor bfloat16
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
        return np.asarray(values.numpy())
    return np.asarray(values)
