"""Check arrays of logits, probabilities and labels; turn logits into probabilities; store logits with their labels.

No function guesses from the values whether they are logits or probabilities: the caller chooses the function.
"""

import os
from dataclasses import dataclass
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


def as_logits(values: ArrayLike, *, name: str = "logits") -> FloatArray:
    """Return (n, K) float64 logits, K >= 2. -inf masks a class; NaN, +inf and rows without a class are refused."""
    logits = _class_table(values, name)
    too_large = (np.abs(logits) > LARGEST_LOGIT) & (logits != -np.inf)
    if too_large.any():
        where = _first(too_large)
        raise ValueError(
            f"{name} must be finite, within ±{LARGEST_LOGIT:.0e}; got {logits[where]} at {where}. "
            "Look for a division by zero upstream; to mask a class, use -inf."
        )
    all_masked = (logits == -np.inf).all(axis=1)
    if all_masked.any():
        raise ValueError(
            f"{name} must leave at least one class unmasked in every row; row {int(all_masked.argmax())} "
            "is -inf throughout. Drop the row or unmask a class."
        )
    return logits


def as_probabilities(values: ArrayLike, *, name: str = "probabilities") -> FloatArray:
    """Return (n, K) float64 probabilities, K >= 2: not negative, every row sum within 1e-3 of one, values unchanged."""
    probabilities = _class_table(values, name)
    remedy = "If these are logits, turn them into probabilities with softmax(logits)."
    negative = probabilities < 0
    if negative.any():
        where = _first(negative)
        raise ValueError(f"{name} must not be negative; got {probabilities[where]} at {where}. {remedy}")
    sums = probabilities.sum(axis=1)
    unnormalised = np.abs(sums - 1.0) > ROW_SUM_TOLERANCE
    if unnormalised.any():
        row = int(unnormalised.argmax())
        raise ValueError(
            f"{name} must sum to 1 within {ROW_SUM_TOLERANCE} in every row; row {row} sums to {sums[row]:.6g}. {remedy}"
        )
    return probabilities


def as_labels(
    labels: ArrayLike, *, n: int | None = None, n_classes: int | None = None, name: str = "labels"
) -> IntArray:
    """Return int64 labels, one for each of n rows, in 0 .. n_classes - 1; None leaves that side unchecked."""
    array = np.asarray(labels)
    if array.ndim != 1 or (n is not None and len(array) != n):
        expected = "" if n is None else f", shape ({n},)"
        raise ValueError(
            f"{name} must be one class index per row{expected}; got shape {array.shape}. "
            "Pass the labels of exactly these rows, not one-hot vectors."
        )
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must be integers, the column index of each row's class; got dtype {array.dtype}. "
            "Encode them first, or convert with .astype(int) if they are whole numbers."
        )
    outside = (array < 0) if n_classes is None else (array < 0) | (array >= n_classes)
    if outside.any():
        row = int(outside.argmax())
        allowed = "not be negative" if n_classes is None else f"lie in 0..{n_classes - 1} for {n_classes} classes"
        raise ValueError(
            f"{name} must {allowed}; got {array[row]} at row {row}. Labels are column indices, counted from 0."
        )
    return array.astype(np.int64)


def as_logits_and_labels(logits: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, IntArray]:
    """Return checked logits and their labels."""
    checked = as_logits(logits)
    return checked, as_labels(labels, n=len(checked), n_classes=checked.shape[1])


def as_probabilities_and_labels(probabilities: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, IntArray]:
    """Return checked probabilities and their labels."""
    checked = as_probabilities(probabilities)
    return checked, as_labels(labels, n=len(checked), n_classes=checked.shape[1])


def as_priors(priors: ArrayLike, *, n_classes: int, name: str) -> FloatArray:
    """Return (K,) float64 priors, not negative, rescaled to sum to exactly one."""
    array = as_numbers(priors, name=name)
    if array.shape != (n_classes,):
        raise ValueError(
            f"{name} must be one number per class, shape ({n_classes},); got shape {array.shape}. "
            "Use class_priors(labels, n_classes) to count them."
        )
    if not np.isfinite(array).all() or (array < 0).any() or abs(array.sum() - 1.0) > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"{name} must be non-negative and sum to 1 within {ROW_SUM_TOLERANCE}; got {array.tolist()}. "
            "Divide class counts by their sum."
        )
    normalised: FloatArray = array / array.sum()
    return normalised


def as_count(value: int, *, name: str) -> int:
    """Return a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}. Pass a positive int.")
    return int(value)


def as_fraction(value: float, *, name: str) -> float:
    """Return a number strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1; got {value}. For 10 % pass 0.1.")
    return float(value)


def as_numbers(values: ArrayLike, *, name: str) -> FloatArray:
    """Return an array of real numbers as float64."""
    try:
        array: NDArray[Any] = np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name} must be an array of numbers; got rows of unequal length. Give every row the same columns."
        ) from None
    if array.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} must be real numbers; got dtype {array.dtype}. Convert them first, with .astype(float) if they "
            "are numbers stored as something else."
        )
    return array.astype(np.float64)


def as_table(values: ArrayLike, *, name: str, columns: str) -> FloatArray:
    """Return a non-empty (samples, columns) array without NaN as float64."""
    table = as_numbers(values, name=name)
    if table.ndim != 2:
        raise ValueError(
            f"{name} must be a table (samples, {columns}); got shape {table.shape}. "
            f"For one sample pass one row, shape (1, {columns})."
        )
    if table.size == 0:
        raise ValueError(
            f"{name} must hold at least one sample and one column; got shape {table.shape}. "
            "Check the filter that selected the samples."
        )
    missing = np.isnan(table)
    if missing.any():
        raise ValueError(
            f"{name} must not contain NaN; found {int(missing.sum())}, the first at {_first(missing)}. "
            "Check where the model diverged, or drop these samples."
        )
    return table


def softmax(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return p_k = exp(z_k / T) / Σ_j exp(z_j / T) of every row. A logit of -inf gives p_k = 0."""
    probabilities: FloatArray = np.exp(log_softmax(logits, temperature))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return probabilities


def log_softmax(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return log p_k = z_k / T - log Σ_j exp(z_j / T), also where p_k is too small for a float."""
    z = as_logits(logits)
    if not (np.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite; got {temperature}. 1.0 leaves logits unchanged.")
    # Subtract the maximum before dividing: z / T alone overflows for large logits and small T.
    with np.errstate(over="ignore"):
        shifted = (z - z.max(axis=1, keepdims=True)) / temperature
    normalised: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


@dataclass(frozen=True, eq=False, init=False)
class Predictions:
    """Logits (n, K), in the floating type they were given in, and labels (n,), the column of each row's class."""

    logits: NDArray[np.floating[Any]]
    labels: IntArray

    def __init__(self, logits: ArrayLike, labels: ArrayLike) -> None:
        checked, given = as_logits(logits), np.asarray(logits)
        object.__setattr__(self, "logits", np.array(given) if given.dtype.kind == "f" else checked)
        object.__setattr__(self, "labels", as_labels(labels, n=len(checked), n_classes=checked.shape[1]))

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
        source = Path(path)
        if not source.is_file():
            raise FileNotFoundError(f"no predictions at {source}. Pass the .npz file that Predictions.save wrote.")
        try:
            arrays = read_arrays(source, ("logits", "labels"))
        except NotPlainArrays as reason:
            raise ValueError(
                f"{source} must be an .npz file with plain arrays 'logits' and 'labels'; it could not be read as one "
                f"({reason}). Write it with Predictions.save."
            ) from reason
        return cls(arrays["logits"], arrays["labels"])


def _class_table(values: ArrayLike, name: str) -> FloatArray:
    table = as_table(values, name=name, columns="classes")
    if table.shape[1] < 2:
        raise ValueError(
            f"{name} must have one column per class and at least two classes; got shape {table.shape}. "
            "For a binary problem pass both columns."
        )
    return table


def _first(mask: BoolArray) -> tuple[int, ...]:
    return tuple(int(index[0]) for index in np.nonzero(mask))
