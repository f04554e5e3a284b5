"""From logits to probabilities: the one place where the package exponentiates."""

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.validation import FloatArray, as_logits, as_temperature


def softmax(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """p_k = exp(z_k / T) / Σ_j exp(z_j / T), row by row; a logit of -inf is a class masked out, p_k = 0."""
    probabilities: FloatArray = np.exp(log_softmax(logits, temperature))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return probabilities


def log_softmax(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """log p_k = z_k / T - log Σ_j exp(z_j / T), without rounding small probabilities to zero."""
    z = as_logits(logits)
    # The shift comes before the division: z / T alone overflows for large logits and small T.
    with np.errstate(over="ignore"):
        shifted = (z - z.max(axis=1, keepdims=True)) / as_temperature(temperature)
    normalised: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def log_sum_exp(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """T log Σ_k exp(z_k / T), (n,): the negative free energy of each row."""
    z = as_logits(logits)
    scale = as_temperature(temperature)
    largest = z.max(axis=1)
    with np.errstate(over="ignore"):
        total = np.exp((z - largest[:, None]) / scale).sum(axis=1)
    energy: FloatArray = largest + scale * np.log(total)
    return energy
