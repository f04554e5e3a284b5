"""The temperature of an estimator: which samples it is found on, and how few of them are kept from misleading."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.probability import smoothed_temperature

__all__ = ["CalibrateParameter", "draw_held_out", "folds", "smoothed_temperature"]

Codes = NDArray[np.int64]


class CalibrateSetting(int):
    """The parameter `calibrate`, a truth value, which on a fitted classifier can also be called with (X, y)."""

    owner: Any

    def __call__(self, X: Any, y: Any) -> Any:
        """Find the temperature on held-out samples instead, keep it, and return the classifier."""
        return self.owner._calibrate_on(X, y)

    def __repr__(self) -> str:
        return repr(bool(self))


class CalibrateParameter:
    """Lets `calibrate` be a constructor's parameter and a method: the instance stores the plain value it was given."""

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__["calibrate"] = value

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__["calibrate"]
        if not isinstance(value, bool | np.bool_):  # what it should have been is for `fit` to say
            return value
        setting = CalibrateSetting(bool(value))
        setting.owner = instance
        return setting


def draw_held_out(codes: Codes, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A mask of about `fraction` of each class; at least one sample of every class stays in training.

    A class of n gives fraction * n, rounded up or down by chance so that this is its expectation.
    """
    held = np.zeros(len(codes), bool)
    for k in np.unique(codes):
        members = rng.permutation(np.flatnonzero(codes == k))
        count = min(int(fraction * len(members) + rng.uniform()), len(members) - 1)
        held[members[:count]] = True
    return held


def folds(codes: Codes, n_folds: int, rng: np.random.Generator) -> Codes:
    """A fold for each sample, classes spread evenly; -1 for classes of one, which no fold can do without."""
    fold = np.full(len(codes), -1, np.int64)
    for k in np.unique(codes):
        members = rng.permutation(np.flatnonzero(codes == k))
        if len(members) > 1:
            fold[members] = (np.arange(len(members)) + rng.integers(n_folds)) % n_folds
    return fold
