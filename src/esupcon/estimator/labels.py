"""Labels of any hashable type as columns 0 .. K-1, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

__all__ = ["as_labels", "class_array", "codes_of", "distinct"]

Codes = NDArray[np.int64]


def as_labels(y: Any, X: Any) -> NDArray[Any]:
    """y as a vector with one class label for each row of X; scikit-learn's own errors for what is none."""
    if y is None:
        raise ValueError("This ContrastiveClassifier estimator requires y to be passed, but the target y is None.")
    labels: NDArray[Any] = column_or_1d(_vector(y), warn=True)
    check_consistent_length(X, labels)
    assert_all_finite(labels, input_name="y")
    if labels.dtype.kind == "O":
        if any(label is None for label in labels.tolist()):
            raise ValueError("Input y contains None. Leave unlabelled samples out.")
        if not all(isinstance(label, str | int | float | np.number | np.bool_) for label in labels.tolist()):
            return labels
    check_classification_targets(labels)
    return labels


def distinct(labels: NDArray[Any]) -> NDArray[Any]:
    """The classes: sorted where they can be, else in the order in which they appear."""
    if labels.dtype.kind != "O":
        return np.unique(labels)
    return class_array(labels.tolist())


def class_array(values: Iterable[Any]) -> NDArray[Any]:
    """Distinct values as an array of theirs, sorted where they can be; tuples and the like as objects."""
    try:
        seen = list(dict.fromkeys(values))
    except TypeError as error:
        raise ValueError(f"Unknown label type: class labels must be hashable ({error}).") from error
    with suppress(TypeError):  # values that have no order keep that of their appearance
        seen = sorted(seen)
    kinds = {type(value) for value in seen}
    if len(kinds) == 1 and kinds <= {str, int, bool, float}:
        return np.array(seen, dtype=object if kinds == {str} else None)
    objects = np.empty(len(seen), dtype=object)
    objects[:] = seen
    return objects


def codes_of(labels: NDArray[Any], classes: NDArray[Any]) -> Codes:
    """The column of each label; a label that is no class is a ValueError."""
    column: dict[Hashable, int] = {label: k for k, label in enumerate(classes.tolist())}
    try:
        return np.array([column[label] for label in labels.tolist()], dtype=np.int64)
    except KeyError as error:
        raise ValueError(
            f"y contains the label {error.args[0]!r}, which is not one of the {len(classes)} classes of training. "
            "Add it with add_class(X, y), or fit again."
        ) from None


def _vector(y: Any) -> Any:
    """Lists of tuples would become matrices in NumPy: they are made a vector of objects here."""
    if isinstance(y, list) and y and all(isinstance(label, tuple | frozenset) for label in y):
        objects = np.empty(len(y), dtype=object)
        objects[:] = y
        return objects
    return y
