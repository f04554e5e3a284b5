"""Before training: what the data and the batch size will do to the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esupcon.doctor.batch_checks import batch_findings
from esupcon.doctor.duplicates import duplicate_findings
from esupcon.doctor.finding import SEVERITIES, Finding, class_name, class_names, percent
from esupcon.doctor.rows import Scan, scan
from esupcon.probability.validation import IntArray, as_count, as_labels
from esupcon.validation import check_weight

# The largest class over the smallest. Long-tail benchmarks call 10 mild and 100 severe.
IMBALANCE_NOTE, IMBALANCE_WARNING = 10.0, 100.0
# A few blank images are normal in collected sets; one in a hundred means that a source of them is broken.
CONSTANT_WARNING = 0.01


def check_data(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike | None,
    y_test: ArrayLike | None,
    *,
    n_classes: int,
    batch_size: int,
    n_views: int = 2,
    method_uses_positives: bool,
    prototypes: int | None,
    prototype_weight: float = 1.0,
    classes: Sequence[Any] | None = None,
) -> list[Finding]:
    """What is wrong with the data, or with batches of this size, the worst first.

    x: images (n, C, H, W) or tables (n, d), in memory or memory-mapped; test data may be None or empty.
    y: labels 0 .. n_classes - 1; `classes` are their names.
    batch_size: images in a step, each in `n_views` views.
    method_uses_positives: whether the loss compares samples with others of their class (supcon, spce, esupcon).
    prototypes: how many prototypes are part of a contrastive objective (esupcon), None where none are.
    """
    n_classes, n_views = as_count(n_classes, name="n_classes"), as_count(n_views, name="n_views")
    batch_size, weight = as_count(batch_size, name="batch_size"), check_weight("prototype_weight", prototype_weight)
    if classes is not None and len(classes) != n_classes:
        raise ValueError(f"classes must name each of the {n_classes} classes; got {len(classes)} names.")
    if prototypes is not None and prototypes < n_classes:
        raise ValueError(f"prototypes must be at least one for each of {n_classes} classes; got {prototypes}.")
    x, other = _samples(x_train, x_test)
    y = as_labels(y_train, n=len(x), n_classes=n_classes, name="y_train")
    no_labels = np.zeros(0, np.int64)
    y_other = no_labels if y_test is None else as_labels(y_test, n=len(other), n_classes=n_classes, name="y_test")

    dtype = np.result_type(x.dtype, other.dtype)
    train, test = scan(x, dtype), scan(other, dtype)
    class_counts = np.bincount(y, minlength=n_classes).astype(np.int64)
    found = [
        *_not_finite(train, test),
        *duplicate_findings(train, y, test, table=x.ndim == 2, classes=classes),
        *_constant_images(train, test),
        *_class_sizes(class_counts, y_other, classes),
        *batch_findings(
            class_counts,
            min(batch_size, len(x)),
            n_views,
            uses_positives=method_uses_positives,
            has_prototypes=prototypes is not None,
            prototype_weight=weight,
        ),
    ]
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def _samples(x_train: ArrayLike, x_test: ArrayLike | None) -> tuple[NDArray[Any], NDArray[Any]]:
    x: NDArray[Any] = np.asanyarray(x_train)  # a memory map stays one
    other: NDArray[Any] = x[:0] if x_test is None else np.asanyarray(x_test)
    for name, part in (("x_train", x), ("x_test", other)):
        if part.ndim < 2 or part.dtype.kind not in "biuf" or 0 in part.shape[1:]:
            raise ValueError(
                f"{name} must hold images (n, C, H, W) or a table (n, d), of numbers; got {part.dtype} {part.shape}."
            )
    if len(x) == 0 or x.shape[1:] != other.shape[1:]:
        raise ValueError(
            f"x_train must hold samples, of the same shape as those of x_test; got {x.shape} and {other.shape}."
        )
    return x, other


def _not_finite(train: Scan, test: Scan) -> list[Finding]:
    parts = [(name, np.flatnonzero(part.not_finite)) for name, part in (("training", train), ("test", test))]
    said = [f"{len(rows):,} {name} samples (the first is {rows[0]})" for name, rows in parts if len(rows)]
    if not said:
        return []
    return [
        Finding(
            "data-not-finite",
            "error",
            f"{' and '.join(said)} hold NaN or infinite values; a single one makes the loss of its batch NaN.",
            "Drop them, or fill the gaps before training, for example with the median of the column.",
        )
    ]


def _constant_images(train: Scan, test: Scan) -> list[Finding]:
    n_train, n_test = int(train.constant.sum()), int(test.constant.sum())
    if n_train + n_test == 0:
        return []
    part, name = (train, "training") if n_train else (test, "test")
    share = (n_train + n_test) / (len(train.constant) + len(test.constant))
    return [
        Finding(
            "constant-images",
            "warning" if share >= CONSTANT_WARNING else "note",
            f"{n_train:,} training and {n_test:,} test images ({percent(share)}) are of one colour throughout, "
            f"{name} image {int(part.constant.argmax())} the first: they say nothing about their class.",
            "Look at the files they came from, which may be damaged or placeholders, and leave them out.",
        )
    ]


def _class_sizes(class_counts: IntArray, y_test: IntArray, classes: Sequence[Any] | None) -> list[Finding]:
    filled, empty = np.flatnonzero(class_counts), np.flatnonzero(class_counts == 0).tolist()
    largest, smallest = int(class_counts.argmax()), int(filled[class_counts[filled].argmin()])
    ratio = class_counts[largest] / class_counts[smallest]
    found = []
    if len(filled) == 1:
        found.append(
            Finding(
                "one-class",
                "error",
                f"all {class_counts.sum():,} training samples are of {class_name(classes, largest)}: there is nothing "
                "to tell apart, and the best embedding of one class is a single point.",
                "Add samples of another class, or check the column or folder that the labels come from.",
            )
        )
    if empty:
        missed = int(np.isin(y_test, empty).sum())
        found.append(
            Finding(
                "empty-class",
                "warning",
                f"{len(empty)} of {len(class_counts)} classes have no training sample ({class_names(classes, empty)})"
                + (f"; {missed:,} of {len(y_test):,} test samples can only be missed." if len(y_test) else "."),
                "Add training samples for them, or take them out of the list of classes.",
            )
        )
    if ratio >= IMBALANCE_NOTE:
        found.append(
            Finding(
                "imbalance",
                "warning" if ratio >= IMBALANCE_WARNING else "note",
                f"the largest class, {class_name(classes, largest)}, has {class_counts[largest]:,} training samples, "
                f"the smallest, {class_name(classes, smallest)}, {class_counts[smallest]:,}: {ratio:.0f} to 1.",
                "Judge by the accuracy of each class, not by the overall one; if classes are balanced where the model "
                "will be used, train with class_weight=balanced or correct its probabilities for the shift of priors.",
            )
        )
    return found
