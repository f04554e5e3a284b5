"""A classifier that comes to know more classes, without training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esupcon.estimator.inference import outputs
from esupcon.estimator.insight import Examples, unit
from esupcon.estimator.labels import as_labels, class_array, codes_of, distinct
from esupcon.estimator.priors import set_priors
from esupcon.heads import PrototypeHead
from esupcon.models import Network

__all__ = ["add_class"]

Rows = NDArray[Any]


def add_class(estimator: Any, rows: Rows, y: Any) -> None:
    head = estimator.network_.head
    if not isinstance(head, PrototypeHead):
        raise ValueError(  # noqa: TRY004 - it is the method that was chosen, not a type
            f"add_class needs a classifier with prototypes; method {estimator.method!r} has a linear head. "
            "Train with method='esupcon', or any other with prototypes."
        )
    single = isinstance(y, str | bytes) or np.ndim(y) == 0
    labels = as_labels([y] * len(rows) if single else y, rows)
    new = distinct(labels)
    known = estimator.classes_.tolist()
    for label in new.tolist():
        if label in known:
            raise ValueError(f"add_class is for new classes; {label!r} is known already. Use partial_fit for it.")
    codes = codes_of(labels, new)
    z = unit(outputs(estimator.network_, estimator.form_, rows)[0])
    means = np.stack([z[codes == k].mean(axis=0) for k in range(len(new))])
    if not np.isfinite(means).all() or not means.any(axis=1).all():
        raise ValueError("the samples of a new class must have a common direction in the embedding; these have none.")
    classes = class_array([*known, *new.tolist()])
    if classes.dtype.kind == "O" and estimator.classes_.dtype.kind in "US":
        classes = classes.astype(str)
    # Old columns move where the sorted order of the classes puts them.
    place = codes_of(estimator.classes_, classes), codes_of(new, classes)
    larger = PrototypeHead(head.weight.shape[1], len(classes), head.temperature).to(head.weight.dtype)
    with torch.no_grad():
        larger.weight[torch.from_numpy(place[0])] = head.weight
        larger.weight[torch.from_numpy(place[1])] = torch.from_numpy(unit(means)).float().to(head.weight.dtype)
    estimator.network_ = Network(estimator.network_.encoder, larger.eval(), estimator.network_.projector)
    counts, weights = np.zeros(len(classes), np.int64), np.ones(len(classes))
    counts[place[0]], counts[place[1]] = estimator._class_counts, np.bincount(codes)
    weights[place[0]] = estimator.class_weight_
    estimator.classes_, estimator.class_weight_ = classes, weights
    if estimator.examples_ is not None:
        old = estimator.examples_
        estimator.examples_ = Examples(
            np.concatenate([old.embedding, z.astype(np.float32)]),
            np.concatenate([place[0][old.codes], place[1][codes]]),
        )
    set_priors(estimator, counts)
