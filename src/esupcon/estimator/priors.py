"""Class shares as users give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esupcon.probability.validation import as_priors

__all__ = ["given_priors", "posterior_weights", "set_priors"]

Floats = NDArray[np.float64]


def given_priors(priors: ArrayLike | Mapping[Any, float], classes: NDArray[Any]) -> Floats:
    """A share for each class, in the order of `classes`; a dict names them, and leaves out those that are absent."""
    if isinstance(priors, Mapping):
        unknown = [label for label in priors if label not in classes.tolist()]
        if unknown:
            raise ValueError(f"priors name {unknown[0]!r}, which is not one of the classes {classes.tolist()}.")
        priors = [priors.get(label, 0.0) for label in classes.tolist()]
    return as_priors(priors, n_classes=len(classes), name="priors")


def posterior_weights(class_weight: str | Mapping[Any, float] | None, classes: NDArray[Any]) -> Floats:
    """The factor of each class's posterior: 1 but for those that a dict names."""
    if not isinstance(class_weight, Mapping):
        return np.ones(len(classes))
    labels = classes.tolist()
    unknown = [label for label in class_weight if label not in labels]
    if unknown:
        raise ValueError(f"The classes, {unknown}, are not in class_weight's data; the classes are {labels}.")
    weights = np.array([float(class_weight.get(label, 1.0)) for label in labels])
    if not np.isfinite(weights).all() or (weights <= 0).any():
        raise ValueError(f"class_weight must hold finite numbers above 0; got {dict(class_weight)}.")
    return weights


def set_priors(estimator: Any, counts: NDArray[np.int64]) -> None:
    """The class shares that probabilities are for: as drawn in training, times the weights of the posteriors."""
    estimator._class_counts = counts
    shares = (counts > 0) if estimator.class_weight == "balanced" else counts
    weighted = shares * estimator.class_weight_
    estimator.priors_ = weighted / weighted.sum()
    estimator.target_priors_ = None
