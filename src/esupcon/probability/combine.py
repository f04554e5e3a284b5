"""Combine the posteriors of several classifiers into one (Kittler, Hatef, Duin and Matas, 1998)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.predictions import FloatArray, as_numbers, as_priors, as_probabilities, refuse, softmax


def combine_posteriors(
    posteriors: Sequence[ArrayLike],
    rule: Literal["product", "sum"] = "product",
    *,
    weights: ArrayLike | None = None,
    priors: ArrayLike | None = None,
) -> FloatArray:
    """Return one table of posteriors (n, K) from R tables of the same samples.

    "sum":      p_k = Σ_r w_r p_rk,   weights rescaled to sum to one; priors are not used.
    "product":  p_k ∝ priors_k^(1 - Σ_r w_r) Π_r p_rk^w_r,   for classifiers with independent evidence.

    Weights are 1 by default, priors equal; a product with weights that sum to one is a geometric mean. Calibrate the
    result: products of overlapping evidence are overconfident and means of diverse classifiers underconfident, even if
    each one is calibrated. `np.log` of the result are logits for `smoothed_temperature`.
    """
    tables = [as_probabilities(table, name=f"posteriors[{r}]") for r, table in enumerate(posteriors)]
    if len({table.shape for table in tables}) != 1 or rule not in ("product", "sum"):
        raise ValueError(
            f"posteriors must be tables of the same samples and classes, rule 'product' or 'sum'; got shapes "
            f"{[table.shape for table in tables]}, rule {rule!r}. Predict the same rows with every classifier."
        )
    p = np.stack([table / table.sum(axis=1, keepdims=True) for table in tables])
    w = np.ones(len(p)) if weights is None else as_numbers(weights, name="weights")
    if w.shape != (len(p),) or not ((w >= 0) & (w < np.inf)).all() or w.sum() == 0:
        raise ValueError(f"weights must be {len(p)} non-negative numbers, not all 0; got {w.tolist()}.")
    if rule == "sum":
        mean: FloatArray = np.tensordot(w / w.sum(), p, axes=1)
        return mean
    prior = np.ones(p.shape[2]) if priors is None else as_priors(priors, n_classes=p.shape[2], name="priors")
    refuse(prior == 0, "priors must be positive in a product", prior, "Leave the class out.", axes=("class",))
    # A probability of 0 excludes its class in a product; logarithms keep long products from underflowing.
    excluded = ((p == 0) & (w > 0)[:, None, None]).any(axis=0)
    remedy = "Calibrate the classifiers first, or use rule='sum'."
    refuse(excluded.all(axis=1), "a product must be positive for some class", np.zeros(len(excluded)), remedy)
    log_p = np.tensordot(w, np.log(np.where(p == 0, 1.0, p)), axes=1) + (1.0 - w.sum()) * np.log(prior)
    return softmax(np.where(excluded, -np.inf, log_p))
