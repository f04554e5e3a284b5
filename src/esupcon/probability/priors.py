"""Adapt posteriors to other class priors (Saerens, Latinne and Decaestecker, 2002), and combine several posteriors.

All functions assume calibrated posteriors: calibrate first. If the mean posterior of a class on unchanged data differs
from its training prior, the difference is taken for a shift.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.predictions import FloatArray, as_labels, as_priors, as_probabilities, refuse, softmax

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
    expected, remedy = "target_priors must be 0 where source_priors are", "Train with samples of the class first."
    refuse((source == 0) & (target > 0), expected, target, remedy, axes=("class",))
    totals = (ratios * target).sum(axis=1)
    expected = "every row must have a class whose target prior is not 0"
    refuse(totals == 0, expected, totals, "Give its classes a small prior, or leave the row out.")
    return np.asarray(ratios * target / totals[:, None])


def estimate_priors(
    probabilities: ArrayLike, source_priors: ArrayLike, *, pseudo_count: float | None = None
) -> PriorEstimate:
    """Return the priors π under which unlabelled samples are most likely, found by expectation maximisation.

    One step replaces π_k by the mean over samples of p(k | x) adapted to π, with `pseudo_count` imagined samples among
    them that are distributed as the source priors, one per class by default: a few samples change the priors only a
    little, and no class of training is ruled out. 0 gives the maximum likelihood.
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
        # The objective is concave, and this logarithm bounds how far it is from its maximum.
        converged = bool(np.log(direction.max()) <= TOLERANCE)
        if converged:
            break
        priors = priors * direction
        priors = priors / priors.sum()
    return PriorEstimate(priors, converged)


def prior_shift_test(probabilities: ArrayLike, source_priors: ArrayLike) -> PriorShiftTest:
    """Compare 2 Σ_i log Σ_k π_k p(k | x_i) / source_k at the likeliest π with χ² of (classes of training - 1) degrees.

    Without a shift the p-value is uniform; it is conservative if a class does not occur at all.
    """
    from scipy.special import chdtrc  # type: ignore[import-untyped]  # noqa: PLC0415 - half of the import time

    estimate = estimate_priors(probabilities, source_priors, pseudo_count=0)
    ratios, source = _ratios(probabilities, source_priors)
    statistic = max(2.0 * float(np.log(ratios @ estimate.priors).sum()), 0.0)
    degrees = int((source > 0).sum()) - 1
    return PriorShiftTest(statistic, degrees, float(chdtrc(degrees, statistic)) if degrees else 1.0, estimate)


def combine_posteriors(posteriors: Sequence[ArrayLike], rule: Literal["product", "sum"] = "product") -> FloatArray:
    """Return one table of posteriors (n, K) from several of the same samples: their mean, or their scaled product.

    A product is for classifiers with independent evidence and equal priors. Calibrate the result.
    """
    tables = [as_probabilities(table, name=f"posteriors[{r}]") for r, table in enumerate(posteriors)]
    if len({table.shape for table in tables}) != 1 or rule not in ("product", "sum"):
        raise ValueError(
            f"posteriors must be tables of the same samples and classes, rule 'product' or 'sum'; got shapes "
            f"{[table.shape for table in tables]}, rule {rule!r}. Predict the same rows with every classifier."
        )
    p = np.stack([table / table.sum(axis=1, keepdims=True) for table in tables])
    if rule == "sum":
        return np.asarray(p.mean(axis=0))
    with np.errstate(divide="ignore"):  # a probability of 0 excludes its class
        log_p = np.log(p).sum(axis=0)
    remedy = "Calibrate the classifiers first, or use rule='sum'."
    expected = "a product must be positive for some class"
    refuse(np.isinf(log_p).all(axis=1), expected, np.zeros(len(log_p)), remedy)
    return softmax(log_p)


def _ratios(probabilities: ArrayLike, source_priors: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return p(k | x) / source_k (0 for classes that were not in training) and the source priors."""
    p = as_probabilities(probabilities)
    source = as_priors(source_priors, n_classes=p.shape[1], name="source_priors")
    p = p / p.sum(axis=1, keepdims=True)
    expected = "probabilities must be 0 for classes whose source prior is 0"
    refuse((p > 0) & (source == 0), expected, p, "Pass the priors of the set the classifier was trained on.")
    return np.divide(p, source, out=np.zeros_like(p), where=source > 0), source
