"""What a sample of embeddings shows: do they point the same way, and in how many directions do they spread?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.probability.validation import FloatArray, IntArray

# Enough rows for stable averages; the cost of a look does not grow with the data.
MAX_ROWS = 512
# The spectrum of so many rows takes a millisecond, that of 512 twenty.
SPECTRUM_ROWS = 128

Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sample:
    z: Floats
    y: IntArray
    logits: Floats | None

    @property
    def n_not_finite(self) -> int:
        # The largest value is NaN or infinite if any is: one pass where, as nearly always, none is.
        return 0 if np.isfinite(np.abs(self.z).max()) else int((~np.isfinite(self.z)).any(1).sum())

    @property
    def accuracy(self) -> float | None:
        return None if self.logits is None else float((self.logits.argmax(1) == self.y).mean())


def as_sample(embedding: Any, labels: Any, logits: Any) -> Sample:
    """At most MAX_ROWS rows, spread evenly, of arrays or tensors of any precision on any device."""
    z, y, scores = _array(embedding), _array(labels), None if logits is None else _array(logits)
    if z.ndim != 2 or len(z) < 2 or z.shape[1] == 0 or y.shape != (len(z),):
        raise ValueError(
            "embedding must hold two or more rows (n, d) and labels one number a row; "
            f"got shapes {z.shape} and {y.shape}."
        )
    if scores is not None and (scores.ndim != 2 or len(scores) != len(z)):
        raise ValueError(
            f"logits must hold a row for each of the {len(z)} rows of embedding; got shape {scores.shape}."
        )
    if len(z) > MAX_ROWS:
        rows = np.linspace(0, len(z) - 1, MAX_ROWS).round().astype(int)
        z, y, scores = z[rows], y[rows], None if scores is None else scores[rows]
    return Sample(_floats(z), y.astype(np.int64), None if scores is None else _floats(scores))


def lengths(z: Floats) -> Floats:
    result: Floats = np.sqrt(np.einsum("ij,ij->i", z, z))
    return result


def unit_rows(z: Floats) -> FloatArray:
    """z_i / |z_i|, zero for zero."""
    z = np.asarray(_scaled(z), dtype=np.float64)
    length = lengths(z)[:, None]
    unit: FloatArray = np.divide(z, length, out=np.zeros_like(z), where=length > 0)
    return unit


def mean_cosine(z: Floats) -> float:
    """1/(n(n-1)) sum_{i != j} cos(z_i, z_j) in O(n d). Zero vectors, which are all alike, count 1 among themselves."""
    z = _scaled(z)
    length = lengths(z)
    inverse = np.divide(1, length, out=np.zeros_like(length), where=length > 0)
    n, n_zero = len(z), int((length == 0).sum())
    total = float(np.square(inverse @ z, dtype=np.float64).sum()) + n_zero**2
    return (total - n) / (n * (n - 1))


def effective_rank(unit: FloatArray) -> float:
    """exp(-sum_j p_j log p_j), p the singular values of the centred rows over their sum: 1 for a line."""
    centred = unit - unit.mean(0)
    gram = centred @ centred.T if len(centred) <= centred.shape[1] else centred.T @ centred
    spread = np.sqrt(np.clip(np.linalg.eigvalsh(gram), 0, None))
    if spread.max() < 1e-6:  # what rounding leaves where all rows are the same
        return 0.0
    p = spread[spread > 1e-6 * spread.max()]
    p /= p.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def confidence(logits: Floats) -> float:
    """The median over rows of the largest softmax probability."""
    return float(np.median(1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)))


def _scaled(z: Floats) -> Floats:
    """Rows whose squares can be summed: a diverging network's embeddings are finite but may be near the limit."""
    top = np.abs(z).max()
    return z if 1e-12 < top < 1e12 or top == 0 else z / top


def _floats(values: NDArray[Any]) -> Floats:
    if values.dtype in (np.float32, np.float64):
        return values
    return values.astype(np.float32)


def _array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor: NumPy knows neither its graph, nor its device, nor bfloat16
        values = values.detach().cpu()
        if values.is_floating_point() and values.element_size() < 4:
            values = values.float()
        return np.asarray(values.numpy())
    return np.asarray(values)
