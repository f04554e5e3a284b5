"""Adapt posteriors to other class priors than those of training (Saerens, Latinne and Decaestecker, 2002).

All functions assume calibrated posteriors: calibrate first. If the mean posterior of a class on unchanged data differs
from its training prior, the difference is taken for a shift.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.predictions import FloatArray, as_count, as_labels, as_priors, as_probabilities


@dataclass(frozen=True, eq=False)
class PriorEstimate:
    """Estimated class priors. `gap` bounds how far the mean log likelihood is from its maximum; `converged` if that is
    within the tolerance."""

    priors: FloatArray
    iterations: int
    gap: float
    converged: bool


@dataclass(frozen=True, eq=False)
class PriorShiftTest:
    """Likelihood-ratio test of "the priors are those of training"; a small `p_value` indicates a shift."""

    statistic: float
    degrees_of_freedom: int
    p_value: float
    estimate: PriorEstimate


def class_priors(labels: ArrayLike, n_classes: int) -> FloatArray:
    """Return the share of each class among the labels, (K,)."""
    as_count(n_classes, name="n_classes")
    if np.size(labels) == 0:
        raise ValueError("labels must hold at least one sample; got none. Priors of an empty set are undefined.")
    y = as_labels(labels, n_classes=n_classes)
    shares: FloatArray = np.bincount(y, minlength=n_classes) / len(y)
    return shares


def adapt_to_priors(probabilities: ArrayLike, source_priors: ArrayLike, target_priors: ArrayLike) -> FloatArray:
    """Return p'(k | x) ∝ p(k | x) · target_k / source_k: the posteriors under the target priors."""
    p, source = _posteriors_and_source(probabilities, source_priors)
    target = as_priors(target_priors, n_classes=p.shape[1], name="target_priors")
    unseen = (source == 0) & (target > 0)
    if unseen.any():
        k = int(unseen.argmax())
        raise ValueError(
            f"target_priors must be 0 where source_priors are; class {k} has {target[k]:.4g}. "
            "Posteriors contain no information about a class that was not in training."
        )
    adapted: FloatArray = _ratios(p, source) * target
    totals = adapted.sum(axis=1, keepdims=True)
    if (totals == 0).any():
        row = int((totals[:, 0] == 0).argmax())
        raise ValueError(
            f"row {row} gives all its probability to classes whose target prior is 0, so nothing remains of it. "
            "Give those classes a small prior, or leave the row out."
        )
    adapted /= totals
    return adapted


def estimate_priors(
    probabilities: ArrayLike,
    source_priors: ArrayLike,
    *,
    pseudo_count: float | None = None,
    tolerance: float = 1e-7,
    max_iterations: int = 10_000,
) -> PriorEstimate:
    """Return the priors π under which unlabelled samples are most likely, found by expectation maximisation.

    One step replaces π_k by the mean over samples of p(k | x) adapted to π, that is π_k ← π_k · d_k with

        d_k = mean_i ( r_ik / Σ_j π_j r_ij ),    r_ik = p(k | x_i) / source_k.

    The mean includes `pseudo_count` imagined samples whose classes are known and distributed as the source priors (a
    Dirichlet prior), one per class by default: a few samples then change the priors only a little, and no class of
    training is ruled out. 0 gives the maximum likelihood, where a single row can set a prior to 1.

    The objective is concave and log max_k d_k bounds how far it is from its maximum: the search ends when that bound
    is at most `tolerance`, or after `max_iterations` steps with `converged` False.
    """
    p, source = _posteriors_and_source(probabilities, source_priors)
    imagined = float(len(source)) if pseudo_count is None else pseudo_count
    if not (np.isfinite(imagined) and imagined >= 0):
        raise ValueError(
            f"pseudo_count must be a number of at least 0; got {pseudo_count}. The default is one per class."
        )
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive; got {tolerance}. The default is 1e-7.")
    as_count(max_iterations, name="max_iterations")
    ratios = _ratios(p, source)
    priors, iterations = source, 0
    while True:
        of_imagined = np.zeros_like(source)
        if imagined > 0:  # else a prior may have become 0
            np.divide(imagined * source, priors, out=of_imagined, where=source > 0)
        direction = ((1.0 / (ratios @ priors)) @ ratios + of_imagined) / (len(p) + imagined)
        gap = max(float(np.log(direction.max())), 0.0)
        if gap <= tolerance or iterations == max_iterations:
            return PriorEstimate(priors=priors, iterations=iterations, gap=gap, converged=gap <= tolerance)
        priors = priors * direction
        priors = priors / priors.sum()
        iterations += 1


def prior_shift_test(
    probabilities: ArrayLike, source_priors: ArrayLike, *, tolerance: float = 1e-7, max_iterations: int = 10_000
) -> PriorShiftTest:
    """Compare 2 Σ_i log Σ_k π̂_k p(k | x_i) / source_k with χ² of (classes of training - 1) degrees of freedom.

    π̂ is the maximum likelihood estimate. Without a shift and with calibrated posteriors the p-value is uniform; it is
    conservative if π̂ lies on the edge, with a class that does not occur.
    """
    estimate = estimate_priors(
        probabilities, source_priors, pseudo_count=0, tolerance=tolerance, max_iterations=max_iterations
    )
    from scipy.special import chdtrc  # type: ignore[import-untyped]  # noqa: PLC0415 - half of the import time

    p, source = _posteriors_and_source(probabilities, source_priors)
    statistic = max(2.0 * float(np.log(_ratios(p, source) @ estimate.priors).sum()), 0.0)
    degrees = int((source > 0).sum()) - 1
    p_value = float(chdtrc(degrees, statistic)) if degrees else 1.0
    return PriorShiftTest(statistic=statistic, degrees_of_freedom=degrees, p_value=p_value, estimate=estimate)


def _posteriors_and_source(probabilities: ArrayLike, source_priors: ArrayLike) -> tuple[FloatArray, FloatArray]:
    p = as_probabilities(probabilities)
    source = as_priors(source_priors, n_classes=p.shape[1], name="source_priors")
    p = p / p.sum(axis=1, keepdims=True)
    impossible = (p[:, source == 0] > 0).any(axis=1)
    if impossible.any():
        raise ValueError(
            f"probabilities must be 0 for classes whose source prior is 0; row {int(impossible.argmax())} is not. "
            "Pass the priors of the set the classifier was trained on."
        )
    return p, source


def _ratios(p: FloatArray, source: FloatArray) -> FloatArray:
    return np.divide(p, source, out=np.zeros_like(p), where=source > 0)
