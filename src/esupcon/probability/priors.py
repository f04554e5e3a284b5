"""Adapt posteriors to other class priors than those of training (Saerens, Latinne and Decaestecker, 2002).

All functions assume calibrated posteriors: calibrate first. If the mean posterior of a class on unchanged data differs
from its training prior, the difference is taken for a shift.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.predictions import FloatArray, as_labels, as_priors, as_probabilities, refuse

#: The search for priors ends this close to the maximum of the mean log likelihood, or after this many steps.
TOLERANCE, MOST_STEPS = 1e-7, 10_000


class PriorEstimate(NamedTuple):
    """Estimated class priors, and whether they are within the tolerance of the maximum."""

    priors: FloatArray
    converged: bool


class PriorShiftTest(NamedTuple):
    """Likelihood-ratio test of "the priors are those of training"; a small `p_value` indicates a shift."""

    statistic: float
    degrees_of_freedom: int
    p_value: float
    estimate: PriorEstimate


def class_priors(labels: ArrayLike, n_classes: int) -> FloatArray:
    """Return the share of each class among the labels, (K,)."""
    if np.size(labels) == 0:
        raise ValueError("labels must hold at least one sample; got none. Priors of an empty set are undefined.")
    y = as_labels(labels, n_classes=n_classes)
    return np.asarray(np.bincount(y, minlength=n_classes) / len(y))


def adapt_to_priors(probabilities: ArrayLike, source_priors: ArrayLike, target_priors: ArrayLike) -> FloatArray:
    """Return p'(k | x) ∝ p(k | x) · target_k / source_k: the posteriors under the target priors."""
    ratios, source = _ratios(probabilities, source_priors)
    target = as_priors(target_priors, n_classes=len(source), name="target_priors")
    unseen = (source == 0) & (target > 0)
    remedy = "Posteriors contain no information about a class that was not in training."
    refuse(unseen, "target_priors must be 0 where source_priors are", target, remedy, axes=("class",))
    totals = (ratios * target).sum(axis=1)
    expected = "every row must have a class whose target prior is not 0"
    refuse(totals == 0, expected, totals, "Give its classes a small prior, or leave the row out.")
    return np.asarray(ratios * target / totals[:, None])


def estimate_priors(
    probabilities: ArrayLike, source_priors: ArrayLike, *, pseudo_count: float | None = None
) -> PriorEstimate:
    """Return the priors π under which unlabelled samples are most likely, found by expectation maximisation.

    One step replaces π_k by the mean over samples of p(k | x) adapted to π: π_k ← π_k · d_k, where d_k is
    mean_i ( r_ik / Σ_j π_j r_ij ) and r_ik = p(k | x_i) / source_k.

    The mean includes `pseudo_count` imagined samples whose classes are known and distributed as the source priors (a
    Dirichlet prior), one per class by default: a few samples then change the priors only a little, and no class of
    training is ruled out. 0 gives the maximum likelihood, where a single row can set a prior to 1.

    The objective is concave and log max_k d_k bounds how far it is from its maximum: the search ends when that bound
    is small enough.
    """
    ratios, source = _ratios(probabilities, source_priors)
    imagined = float(len(source)) if pseudo_count is None else pseudo_count
    if not 0 <= imagined < np.inf:
        raise ValueError(f"pseudo_count must be a number of at least 0; got {imagined}. The default is one per class.")
    priors, converged = source, False
    for _ in range(MOST_STEPS):
        of_imagined = np.zeros_like(source)
        if imagined > 0:  # else a prior may have become 0
            np.divide(imagined * source, priors, out=of_imagined, where=source > 0)
        direction = ((1.0 / (ratios @ priors)) @ ratios + of_imagined) / (len(ratios) + imagined)
        converged = bool(np.log(direction.max()) <= TOLERANCE)
        if converged:
            break
        priors = priors * direction
        priors = priors / priors.sum()
    return PriorEstimate(priors, converged)


def prior_shift_test(probabilities: ArrayLike, source_priors: ArrayLike) -> PriorShiftTest:
    """Compare 2 Σ_i log Σ_k π̂_k p(k | x_i) / source_k with χ² of (classes of training - 1) degrees of freedom.

    π̂ is the maximum likelihood estimate. Without a shift and with calibrated posteriors the p-value is uniform; it is
    conservative if π̂ lies on the edge, with a class that does not occur.
    """
    from scipy.special import chdtrc  # type: ignore[import-untyped]  # noqa: PLC0415 - half of the import time

    estimate = estimate_priors(probabilities, source_priors, pseudo_count=0)
    ratios, source = _ratios(probabilities, source_priors)
    statistic = max(2.0 * float(np.log(ratios @ estimate.priors).sum()), 0.0)
    degrees = int((source > 0).sum()) - 1
    return PriorShiftTest(statistic, degrees, float(chdtrc(degrees, statistic)) if degrees else 1.0, estimate)


def _ratios(probabilities: ArrayLike, source_priors: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return p(k | x) / source_k (0 for classes that were not in training) and the source priors."""
    p = as_probabilities(probabilities)
    source = as_priors(source_priors, n_classes=p.shape[1], name="source_priors")
    p = p / p.sum(axis=1, keepdims=True)
    expected = "probabilities must be 0 for classes whose source prior is 0"
    refuse((p > 0) & (source == 0), expected, p, "Pass the priors of the set the classifier was trained on.")
    return np.divide(p, source, out=np.zeros_like(p), where=source > 0), source
