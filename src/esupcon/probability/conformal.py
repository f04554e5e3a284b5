"""Predict sets of classes that contain the true one with a chosen probability (split conformal prediction)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.predictions import BoolArray, as_probabilities, with_labels


@dataclass(frozen=True)
class ConformalSets:
    """The least probability of a class in a set, fitted by `fit_conformal`; -inf if too few samples support one."""

    threshold: float
    n_classes: int

    def predict(self, probabilities: ArrayLike) -> BoolArray:
        """Return (n, K): True where the class belongs to the row's set. A set can be empty: no class fits."""
        p = as_probabilities(probabilities)
        if p.shape[1] != self.n_classes:
            raise ValueError(f"probabilities must have {self.n_classes} columns, as for fitting; got shape {p.shape}.")
        return p >= self.threshold


def fit_conformal(probabilities: ArrayLike, labels: ArrayLike, *, miscoverage: float = 0.1) -> ConformalSets:
    """Choose the threshold on held-out samples so that new sets miss the label with probability at most `miscoverage`.

    For exchangeable samples the coverage lies in [1 - miscoverage, 1 - miscoverage + 1/(n + 1)].
    """
    if not 0 < miscoverage < 1:
        raise ValueError(f"miscoverage must lie strictly between 0 and 1; got {miscoverage}. For 10 % pass 0.1.")
    p, y = with_labels(as_probabilities(probabilities), labels)
    of_labels = np.sort(p[np.arange(len(p)), y])[::-1]
    # 11 · 0.9 is 9.900000000000000355: only what exceeds rounding may move the rank up.
    rank = int(np.ceil((len(p) + 1) * (1.0 - miscoverage) - 1e-9))
    return ConformalSets(float(of_labels[rank - 1]) if rank <= len(p) else -np.inf, p.shape[1])
