"""Labels as a source has them, numbers or names, become 0..K-1 and the names of the K classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.data.listing import in_class_order

RawLabels = NDArray[Any]


def encode_labels(
    train: RawLabels, test: RawLabels | None, classes: Sequence[str] | None, source: object
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, tuple[str, ...]]:
    """With `classes`, whole numbers index them and text must be one of them. Without, the classes are the
    values found in `train`, in order. A label that is on test images alone is refused."""
    parts = [_plain(train, source), *([] if test is None else [_plain(test, source)])]
    textual = any(part.dtype.kind == "U" for part in parts)
    if textual:
        parts = [part.astype(str) for part in parts]
    if classes is not None and len(set(classes)) != len(classes):
        twice = next(name for name in classes if list(classes).count(name) > 1)
        raise ValueError(f"{source} names the class {twice!r} twice. Class names must differ.")
    if classes is not None and not textual:
        for part in parts:
            _within(part, len(classes), source)
        coded = [part.astype(np.int64) for part in parts]
        names = tuple(classes)
    else:
        names = tuple(classes) if classes is not None else in_class_order({str(v) for v in np.unique(parts[0])})
        coded = [_looked_up(part, names, source, given=classes is not None) for part in parts]
    return coded[0], coded[1] if test is not None else None, names


def _plain(labels: RawLabels, source: object) -> RawLabels:
    """(n,) of int64 or text."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"{source}: labels must be one number or name per image; got shape {labels.shape}. "
            "Turn one-hot rows into numbers with argmax(axis=1)."
        )
    kind = labels.dtype.kind
    if kind == "S":
        return np.char.decode(labels, "utf-8", "replace")
    if kind == "f":
        whole = (np.abs(labels) < 2.0**53) & (labels == np.floor(labels))  # so written, NaN is none either
        if not whole.all():
            raise ValueError(f"{source}: labels must be whole numbers or names; {labels[~whole][0]} is neither.")
    elif kind not in "iubU":
        raise ValueError(f"{source}: labels must be whole numbers or names; got dtype {labels.dtype}.")
    return labels if kind == "U" else labels.astype(np.int64)


def _within(labels: RawLabels, n_classes: int, source: object) -> None:
    if labels.size and not (labels.min() >= 0 and labels.max() < n_classes):
        raise ValueError(
            f"{source} names {n_classes} classes, so labels run from 0 to {n_classes - 1}; "
            f"found {labels.min()} to {labels.max()}."
        )


def _looked_up(labels: RawLabels, names: tuple[str, ...], source: object, *, given: bool) -> NDArray[np.int64]:
    index = {name: k for k, name in enumerate(names)}
    values, inverse = np.unique(labels, return_inverse=True)
    unknown = [str(value) for value in values if str(value) not in index]
    if unknown:
        where = "not among its classes" if given else "on test images alone; give it training images too"
        raise ValueError(f"{source}: the label {unknown[0]!r} is {where}.")
    return np.array([index[str(value)] for value in values], np.int64)[inverse]
