"""Temperature scaling: one number that makes a classifier's confidence agree with its accuracy."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq  # type: ignore[import-untyped]  # SciPy ships no annotations

from esupcon.probability.validation import BoolArray, FloatArray, IntArray, as_logits_and_labels

SEARCH_FACTOR = 1e3
"""How far beyond the scale of the logits the temperature is searched, on either side."""

_NEGLIGIBLE_GAP = 1e-100  # smaller differences count as ties, so that no quotient below overflows


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """The T > 0 that minimises the mean negative log likelihood of softmax(logits / T).

    The likelihood is convex in 1/T, so its slope there,

        g(T) = mean_i ( Σ_k p_ik(T) z_ik  -  z_{i,y_i} ),

    falls as T grows and has at most one zero, which is bracketed and found on log T. T is kept within

        [ gap / 1000,  1000 · range ],

    where gap is the median over rows of (largest logit - next different one) and range that of (largest -
    smallest). The lower end is returned where every row already ranks its label first (no T is small enough), the
    upper end where the logits point away from the labels (none is large enough), and 1.0 where all rows are
    constant (to within 1e-100) and T changes nothing. Masked classes (-inf) stay out of it; a masked label is a
    ValueError.
    """
    z, y = as_logits_and_labels(logits, labels)
    rows = np.arange(len(z))
    masked = z == -np.inf
    if masked[rows, y].any():
        row = int(masked[rows, y].argmax())
        raise ValueError(
            f"fit_temperature needs a possible label in every row; label {y[row]} of row {row} has logit -inf. "
            "Leave out the samples of masked classes."
        )
    below_largest = np.where(masked, 0.0, z - z.max(axis=1, keepdims=True))
    bounds = _bounds(below_largest)
    if bounds is None:
        return 1.0
    return _root_of_slope(below_largest, masked, y, *bounds)


def _bounds(below_largest: FloatArray) -> tuple[float, float] | None:
    """The ends of the search; None where no row distinguishes its classes."""
    drop = -below_largest
    farthest = drop.max(axis=1)
    next_different = np.where(drop > _NEGLIGIBLE_GAP, drop, np.inf).min(axis=1)
    informative = farthest > _NEGLIGIBLE_GAP
    if not informative.any():
        return None
    # The nearest difference below and the farthest above: neither rounding noise between tied classes nor large
    # negative stand-ins for -inf can push the optimum out of the interval.
    lower = float(np.median(next_different[informative])) / SEARCH_FACTOR
    upper = float(np.median(farthest[informative])) * SEARCH_FACTOR
    return lower, upper


def _root_of_slope(z: FloatArray, masked: BoolArray, y: IntArray, lower: float, upper: float) -> float:
    of_label = z[np.arange(len(z)), y]
    scale = max(float(np.median(np.abs(z[z != 0]))), lower)  # keeps the slope of order one at any logit scale

    def slope(log_temperature: float) -> float:
        with np.errstate(over="ignore", under="ignore"):
            weight = np.where(masked, 0.0, np.exp(z / np.exp(log_temperature)))
        expected = (weight * z).sum(axis=1) / weight.sum(axis=1)
        return float(np.mean((expected - of_label) / scale))

    log_lower, log_upper = float(np.log(lower)), float(np.log(upper))
    if slope(log_lower) <= 0.0:
        return lower
    if slope(log_upper) >= 0.0:
        return upper
    return float(np.exp(brentq(slope, log_lower, log_upper, xtol=1e-10, rtol=1e-12)))
