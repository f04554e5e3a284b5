"""What the functions of this package accept, checked in one place.

Nothing looks at values to find out whether they are logits or probabilities: the caller names them, and each
kind has its own check here.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

ROW_SUM_TOLERANCE = 1e-3
"""How far a row of probabilities may be from one: the rounding of half- and single-precision softmax."""

LARGEST_LOGIT = 1e100
"""Larger numbers come of a mistake and would overflow further on; -inf is the way to mask a class."""


def as_logits(values: ArrayLike, *, name: str = "logits") -> FloatArray:
    """(n, K) float64, K >= 2. -inf masks a class (probability zero); NaN, +inf and all-masked rows are refused."""
    logits = _table(values, name=name, columns="classes")
    _require_classes(logits, name=name)
    _refuse_nan(logits, name=name)
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
    """(n, K) float64, K >= 2, no negative entry, every row sum within 1e-3 of one; values stay as they are."""
    probabilities = _table(values, name=name, columns="classes")
    _require_classes(probabilities, name=name)
    _refuse_nan(probabilities, name=name)
    negative = probabilities < 0
    if negative.any():
        where = _first(negative)
        raise ValueError(
            f"{name} must not be negative; got {probabilities[where]} at {where}. "
            "If these are logits, turn them into probabilities with softmax(logits)."
        )
    sums = probabilities.sum(axis=1)
    unnormalised = np.abs(sums - 1.0) > ROW_SUM_TOLERANCE
    if unnormalised.any():
        row = int(unnormalised.argmax())
        raise ValueError(
            f"{name} must sum to 1 within {ROW_SUM_TOLERANCE} in every row; row {row} sums to {sums[row]:.6g}. "
            "If these are logits, turn them into probabilities with softmax(logits)."
        )
    return probabilities


def as_labels(labels: ArrayLike, *, n: int, n_classes: int, name: str = "labels") -> IntArray:
    """(n,) int64 with values in 0 .. K-1."""
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) != n:
        raise ValueError(
            f"{name} must be one class index per row, shape ({n},); got shape {array.shape}. "
            "Pass the labels of exactly these rows, not one-hot vectors."
        )
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must be integers, the column index of each row's class; got dtype {array.dtype}. "
            "Encode them first, or convert with .astype(int) if they are whole numbers."
        )
    outside = (array < 0) | (array >= n_classes)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(
            f"{name} must lie in 0..{n_classes - 1} for {n_classes} classes; got {array[row]} at row {row}. "
            "Labels are column indices, counted from 0."
        )
    return array.astype(np.int64)


def as_logits_and_labels(logits: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, IntArray]:
    checked = as_logits(logits)
    return checked, as_labels(labels, n=len(checked), n_classes=checked.shape[1])


def as_probabilities_and_labels(probabilities: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, IntArray]:
    checked = as_probabilities(probabilities)
    return checked, as_labels(labels, n=len(checked), n_classes=checked.shape[1])


def as_priors(priors: ArrayLike, *, n_classes: int, name: str) -> FloatArray:
    """(K,) float64, no negative entry, rescaled to sum to exactly one."""
    array = _numbers(priors, name=name)
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


def as_embeddings(values: ArrayLike, *, name: str = "embeddings", width: int | None = None) -> FloatArray:
    """(n, d) finite float64; `width` asks for d columns."""
    embeddings = _table(values, name=name, columns="dimensions")
    if not np.isfinite(embeddings).all():
        where = _first(~np.isfinite(embeddings))
        raise ValueError(
            f"{name} must be finite; got {embeddings[where]} at {where}. Find out where the encoder diverged."
        )
    if width is not None and embeddings.shape[1] != width:
        raise ValueError(
            f"{name} must have {width} dimensions like what they are compared with; got {embeddings.shape[1]}. "
            "Take both from the same layer."
        )
    return embeddings


def as_scores(values: ArrayLike, *, name: str) -> FloatArray:
    """(n,) float64, n >= 1, no NaN; infinities keep their order and are allowed."""
    scores = _numbers(values, name=name)
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(
            f"{name} must be a non-empty vector, one score per sample; got shape {scores.shape}. "
            "Pass what one of the *_score functions returns."
        )
    _refuse_nan(scores, name=name)
    return scores


def as_temperature(temperature: float) -> float:
    if not (np.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite; got {temperature}. 1.0 leaves logits unchanged.")
    return float(temperature)


def as_count(value: int, *, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}. Pass a positive int.")
    return int(value)


def as_fraction(value: float, *, name: str) -> float:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1; got {value}. For 10 % pass 0.1.")
    return float(value)


def _numbers(values: ArrayLike, *, name: str) -> FloatArray:
    try:
        array: NDArray[Any] = np.asarray(values)
    except ValueError:  # NumPy cannot make an array of it: the rows differ in length
        raise ValueError(
            f"{name} must be an array of numbers; got rows of unequal length. Give every row the same columns."
        ) from None
    if array.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} must be real numbers; got dtype {array.dtype}. Convert them first, with .astype(float) if they "
            "are numbers stored as something else."
        )
    return array.astype(np.float64)


def _table(values: ArrayLike, *, name: str, columns: str) -> FloatArray:
    table = _numbers(values, name=name)
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
    return table


def _require_classes(table: FloatArray, *, name: str) -> None:
    if table.shape[1] < 2:
        raise ValueError(
            f"{name} must have one column per class and at least two classes; got shape {table.shape}. "
            "For a binary problem pass both columns."
        )


def _refuse_nan(values: FloatArray, *, name: str) -> None:
    missing = np.isnan(values)
    if missing.any():
        raise ValueError(
            f"{name} must not contain NaN; found {int(missing.sum())}, the first at {_first(missing)}. "
            "Find out where the model diverged, or drop these samples."
        )


def _first(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(index[0]) for index in np.nonzero(mask))
