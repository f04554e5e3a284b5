"""Posteriors under other class frequencies than those of training (Saerens, Latinne and Decaestecker, 2002).

Everything here takes posteriors at their word: calibrate first. What a classifier believes of each class on average
must match the training frequencies, or the difference is taken for a shift.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc  # type: ignore[import-untyped]  # SciPy ships no annotations

from esupcon.probability.validation import FloatArray, as_count, as_labels, as_priors, as_probabilities


@dataclass(frozen=True, eq=False)
class PriorEstimate:
    """Estimated class priors, and how sure it is that the search has ended.

    `gap` bounds how much higher the mean log likelihood could still be; `converged` says it is within the tolerance.
    """

    priors: FloatArray
    iterations: int
    gap: float
    converged: bool


@dataclass(frozen=True, eq=False)
class PriorShiftTest:
    """Likelihood-ratio test of "the priors are those of training"; a small `p_value` speaks for a shift."""

    statistic: float
    degrees_of_freedom: int
    p_value: float
    estimate: PriorEstimate


def class_priors(labels: ArrayLike, n_classes: int) -> FloatArray:
    """(K,) share of each class among the labels."""
    as_count(n_classes, name="n_classes")
    given = np.asarray(labels)
    if given.size == 0:
        raise ValueError("labels must hold at least one sample; got none. Priors of an empty set are undefined.")
    y = as_labels(given, n=given.size, n_classes=n_classes)
    shares: FloatArray = np.bincount(y, minlength=n_classes) / len(y)
    return shares


def adapt_to_priors(probabilities: ArrayLike, source_priors: ArrayLike, target_priors: ArrayLike) -> FloatArray:
    """p'(k | x) ∝ p(k | x) · target_k / source_k: posteriors of training turned into those of the new priors."""
    p, source = _posteriors_and_source(probabilities, source_priors)
    target = as_priors(target_priors, n_classes=p.shape[1], name="target_priors")
    unseen = (source == 0) & (target > 0)
    if unseen.any():
        k = int(unseen.argmax())
        raise ValueError(
            f"target_priors may only hold classes of training; class {k} has prior {target[k]:.4g} now and 0 then. "
            "Posteriors say nothing about a class that was never seen."
        )
    adapted: FloatArray = p * np.divide(target, source, out=np.zeros_like(source), where=source > 0)
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
    probabilities: ArrayLike, source_priors: ArrayLike, *, tolerance: float = 1e-7, max_iterations: int = 10_000
) -> PriorEstimate:
    """The priors π under which the samples are most likely, found by expectation maximisation.

    One step replaces π_k by the mean over samples of p(k | x) adapted to π, that is π_k ← π_k · d_k with

        d_k = mean_i ( r_ik / Σ_j π_j r_ij ),    r_ik = p(k | x_i) / source_k.

    The log likelihood is concave and log max_k d_k bounds how far its mean is from the maximum: the search ends when
    that bound is at most `tolerance`, or after `max_iterations` steps with `converged` false.
    """
    p, source = _posteriors_and_source(probabilities, source_priors)
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive; got {tolerance}. The default is 1e-7.")
    as_count(max_iterations, name="max_iterations")
    ratios = _ratios(p, source)
    priors, iterations = source, 0
    while True:
        direction = (1.0 / (ratios @ priors)) @ ratios / len(ratios)
        gap = max(float(np.log(direction.max())), 0.0)
        if gap <= tolerance or iterations == max_iterations:
            break
        priors = priors * direction
        priors = priors / priors.sum()
        iterations += 1
    return PriorEstimate(priors=priors, iterations=iterations, gap=gap, converged=gap <= tolerance)


def prior_shift_test(
    probabilities: ArrayLike, source_priors: ArrayLike, *, tolerance: float = 1e-7, max_iterations: int = 10_000
) -> PriorShiftTest:
    """statistic = 2 Σ_i log Σ_k π̂_k p(k | x_i) / source_k, against χ² with (classes of training - 1) degrees.

    π̂ comes from estimate_priors. Under no shift, with honest posteriors, the p-value is uniform; it is cautious
    where π̂ lies on the edge, a class missing altogether.
    """
    estimate = estimate_priors(probabilities, source_priors, tolerance=tolerance, max_iterations=max_iterations)
    p, source = _posteriors_and_source(probabilities, source_priors)
    statistic = 2.0 * float(np.log(_ratios(p, source) @ estimate.priors).sum())
    statistic = max(statistic, 0.0)
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
