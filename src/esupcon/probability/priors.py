"""Adapt posteriors to other class priors (Saerens, Latinne and Decaestecker, 2002).

Both functions assume calibrated posteriors: calibrate first. If the mean posterior of a class on unchanged data differs
from its training prior, the difference is taken for a shift.
"""

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.predictions import FloatArray, as_priors, as_probabilities, refuse

#: The search for priors ends this close to the maximum of the mean log likelihood, or after this many steps.
TOLERANCE, MOST_STEPS = 1e-7, 10_000


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


def estimate_priors(probabilities: ArrayLike, source_priors: ArrayLike) -> FloatArray:
    """Return the priors π, (K,), under which unlabelled samples are most likely, found by expectation maximisation.

    One step replaces π_k by the mean over samples of p(k | x) adapted to π. One imagined sample per class, distributed
    as the source priors, is among them: few samples change the priors little, and no class of training is ruled out.
    """
    ratios, source = _ratios(probabilities, source_priors)
    imagined, priors = len(source), source
    for _ in range(MOST_STEPS):
        of_imagined = np.divide(imagined * source, priors, out=np.zeros_like(source), where=source > 0)
        direction = ((1.0 / (ratios @ priors)) @ ratios + of_imagined) / (len(ratios) + imagined)
        # The objective is concave, and this logarithm bounds how far it is from its maximum.
        if np.log(direction.max()) <= TOLERANCE:
            break
        priors = priors * direction
        priors = priors / priors.sum()
    return np.asarray(priors)


def _ratios(probabilities: ArrayLike, source_priors: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return p(k | x) / source_k (0 for classes that were not in training) and the source priors."""
    p = as_probabilities(probabilities)
    source = as_priors(source_priors, n_classes=p.shape[1], name="source_priors")
    p = p / p.sum(axis=1, keepdims=True)
    expected = "probabilities must be 0 for classes whose source prior is 0"
    refuse((p > 0) & (source == 0), expected, p, "Pass the priors of the set the classifier was trained on.")
    return np.divide(p, source, out=np.zeros_like(p), where=source > 0), source
