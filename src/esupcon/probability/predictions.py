"""Check arrays of logits, probabilities and labels; turn logits into probabilities; store logits with their labels.

No function guesses from the values whether they are logits or probabilities: the caller chooses the function.
"""

import os
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esupcon._io import NotPlainArrays, read_arrays, write_whole

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: How far a row of probabilities may be from one: the rounding error of half- and single-precision softmax.
ROW_SUM_TOLERANCE = 1e-3
#: Larger logits indicate a bug and would overflow later; use -inf to mask a class.
LARGEST_LOGIT = 1e100


def refuse(
    bad: BoolArray, expected: str, values: NDArray[Any], remedy: str, axes: tuple[str, ...] = ("row", "column")
) -> None:
    """Raise ValueError if an entry is bad, in one line: what is expected, the first bad value, its place, a remedy."""
    if bad.any():
        where = tuple(int(index[0]) for index in np.nonzero(bad))
        place = ", ".join(f"{axis} {i}" for axis, i in zip(axes, where, strict=False))
        raise ValueError(f"{expected}; got {values[where]:.6g} at {place}. {remedy}")


def as_numbers(values: ArrayLike, *, name: str) -> FloatArray:
    """Return an array of real numbers as float64."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be real numbers; got dtype {array.dtype}. Convert them with .astype(float).")
    return array.astype(np.float64)


def as_table(values: ArrayLike, *, name: str, columns: str, fewest: int = 1) -> FloatArray:
    """Return a non-empty (samples, columns) array without NaN as float64."""
    table = as_numbers(values, name=name)
    if table.ndim != 2 or len(table) == 0 or table.shape[1] < fewest:
        expected = f"{name} must be a table (samples, {columns}) of at least one row and {fewest} column(s)"
        raise ValueError(f"{expected}; got shape {table.shape}. Pass one sample as one row, {columns} as columns.")
    refuse(np.isnan(table), f"{name} must not contain NaN", table, "Drop these rows, or find where the model diverged.")
    return table


def as_logits(values: ArrayLike) -> FloatArray:
    """Return (n, K) float64 logits, K >= 2. -inf masks a class; NaN, +inf and rows without a class are refused."""
    logits = as_table(values, name="logits", columns="classes", fewest=2)
    masked = logits == -np.inf
    expected = f"logits must be within ±{LARGEST_LOGIT:.0e}, or -inf for a masked class"
    refuse((np.abs(logits) > LARGEST_LOGIT) & ~masked, expected, logits, "Look for a division by zero upstream.")
    refuse(masked.all(axis=1), "logits must leave a class unmasked", logits.max(axis=1), "Drop the row.")
    return logits


def as_probabilities(values: ArrayLike) -> FloatArray:
    """Return (n, K) float64 probabilities, K >= 2: not negative, every row sum within 1e-3 of one, values unchanged."""
    probabilities = as_table(values, name="probabilities", columns="classes", fewest=2)
    remedy = "If these are logits, turn them into probabilities with softmax(logits)."
    refuse(probabilities < 0, "probabilities must not be negative", probabilities, remedy)
    sums = probabilities.sum(axis=1)
    expected = f"probabilities must sum to 1 within {ROW_SUM_TOLERANCE} in every row"
    refuse(np.abs(sums - 1.0) > ROW_SUM_TOLERANCE, expected, sums, remedy)
    return probabilities


def as_labels(
    labels: ArrayLike, *, n: int | None = None, n_classes: int | None = None, name: str = "labels"
) -> IntArray:
    """Return int64 labels, one for each of n rows, in 0 .. n_classes - 1; None leaves that side unchecked."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or n not in (None, len(array)):
        expected = f"{name} must be one integer per row, shape ({n or 'n'},); got {array.dtype} of shape {array.shape}"
        raise ValueError(f"{expected}. Pass the column index of each row's class, not names or one-hot vectors.")
    last = np.iinfo(np.int64).max if n_classes is None else n_classes - 1
    refuse((array < 0) | (array > last), f"{name} must lie in 0..{last}", array, "Labels are column indices.")
    return array.astype(np.int64)


def with_labels(table: FloatArray, labels: ArrayLike) -> tuple[FloatArray, IntArray]:
    """Return a checked table of logits or probabilities, and its checked labels."""
    return table, as_labels(labels, n=len(table), n_classes=table.shape[1])


def as_priors(priors: ArrayLike, *, n_classes: int, name: str) -> FloatArray:
    """Return (K,) float64 priors, not negative, rescaled to sum to exactly one."""
    array = as_numbers(priors, name=name)
    if array.shape != (n_classes,) or not (array >= 0).all() or not abs(array.sum() - 1.0) <= ROW_SUM_TOLERANCE:
        raise ValueError(
            f"{name} must be {n_classes} numbers, one per class, not negative, that sum to 1; got {array.tolist()}."
        )
    return np.asarray(array / array.sum())


def softmax(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return p_k = exp(z_k / T) / Σ_j exp(z_j / T) of every row. A logit of -inf gives p_k = 0."""
    p = np.exp(log_softmax(logits, temperature))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def log_softmax(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return log p_k = z_k / T - log Σ_j exp(z_j / T), also where p_k is too small for a float."""
    z = as_logits(logits)
    if not 0 < temperature < np.inf:
        raise ValueError(f"temperature must be positive and finite; got {temperature}. 1.0 leaves logits unchanged.")
    # Subtract the maximum before dividing: z / T alone overflows for large logits and small T.
    with np.errstate(over="ignore"):
        shifted = (z - z.max(axis=1, keepdims=True)) / temperature
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


class Predictions:
    """Logits (n, K), in the floating type they were given in, and labels (n,)."""

    def __init__(self, logits: ArrayLike, labels: ArrayLike) -> None:
        checked, self.labels = with_labels(as_logits(logits), labels)
        given = np.asarray(logits)
        self.logits: NDArray[np.floating[Any]] = np.array(given) if given.dtype.kind == "f" else checked

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        return int(self.logits.shape[1])

    def probabilities(self, temperature: float = 1.0) -> FloatArray:
        """Return softmax(logits / temperature)."""
        return softmax(self.logits, temperature)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an .npz file (two plain arrays, no pickle) at exactly `path`; an existing file is replaced."""
        arrays: dict[str, Any] = {"logits": self.logits, "labels": self.labels}
        return write_whole(path, lambda file: np.savez_compressed(file, **arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote. Raise ValueError for any other file; nothing in a file is ever executed."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"no predictions at {path}. Pass the .npz file that Predictions.save wrote.")
        try:
            arrays = read_arrays(Path(path), ("logits", "labels"))
        except NotPlainArrays as reason:
            expected = "must be an .npz file with plain arrays 'logits' and 'labels'"
            raise ValueError(f"{path} {expected}; got {reason}. Write it with Predictions.save.") from reason
        return cls(arrays["logits"], arrays["labels"])
