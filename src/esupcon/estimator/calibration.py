"""The temperature of an estimator: which samples it is found on, and how few of them are kept from misleading."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.probability import fit_temperature

__all__ = ["CalibrateParameter", "draw_held_out", "folds", "smoothed_temperature"]

Codes = NDArray[np.int64]
Logits = NDArray[np.float64]
#: How often the rows of a rare class may be counted, so that a handful does not decide alone.
_MOST_REPEATS = 20


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


def smoothed_temperature(logits: Logits, codes: Codes, *, balance: bool = False) -> float:
    """The temperature of `fit_temperature` with one imagined mistake added.

    A classifier that ranks every one of n held-out labels first would be given certainty by likelihood alone. The
    rule of succession allows for an error not seen yet: the row of median margin is added once more with its second
    choice as the label. Its weight is 1/(n+1). With `balance` the rows of each class count the same in all.
    """
    ranked = np.sort(logits, axis=1)
    margins = ranked[:, -1] - ranked[:, -2]
    typical = int(np.argsort(margins, kind="stable")[len(margins) // 2])
    second = int(np.argsort(logits[typical], kind="stable")[-2])
    rows = _balanced_rows(codes) if balance else np.arange(len(codes))
    return fit_temperature(np.concatenate([logits[rows], logits[[typical]]]), np.concatenate([codes[rows], [second]]))


def _balanced_rows(codes: Codes) -> Codes:
    counts = np.bincount(codes)
    most = min(int(counts.max()), _MOST_REPEATS * int(counts[counts > 0].min()))
    rows = [np.resize(np.flatnonzero(codes == k), max(most, n)) for k, n in enumerate(counts) if n]
    return np.concatenate(rows).astype(np.int64)
