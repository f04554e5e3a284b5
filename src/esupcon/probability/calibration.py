"""Calibration in one call, and the pieces it is made of.

`held_out_calibration` fits the temperature on samples kept aside from training and reports on the test set: use it
by default. `paper_calibration` is the protocol of the paper's reliability diagrams, which spends a fifth of the test
set on the temperature; it is there to compare with published numbers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.bootstrap import Interval, bootstrap_interval, bootstrap_intervals
from esupcon.probability.metrics import brier_score, negative_log_likelihood
from esupcon.probability.posteriors import softmax
from esupcon.probability.reliability import (
    ReliabilityBins,
    adaptive_calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
)
from esupcon.probability.temperature import fit_temperature
from esupcon.probability.validation import IntArray, as_fraction, as_labels, as_logits_and_labels
from esupcon.probability.vector_scaling import VectorScaling, fit_vector_scaling

__all__ = [
    "CalibrationReport",
    "ReliabilityBins",
    "VectorScaling",
    "adaptive_calibration_error",
    "bootstrap_interval",
    "bootstrap_intervals",
    "brier_score",
    "classwise_calibration_error",
    "expected_calibration_error",
    "fit_temperature",
    "fit_vector_scaling",
    "held_out_calibration",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "paper_calibration",
    "reliability_bins",
    "stratified_split",
]


@dataclass(frozen=True, eq=False)
class CalibrationReport:
    """Temperature scaling, before (T = 1) and after, on samples that had no part in choosing the temperature."""

    temperature: float
    ece_before: float
    ece_after: float
    ece_before_interval: Interval
    ece_after_interval: Interval
    nll_before: float
    nll_after: float
    bins_before: ReliabilityBins
    bins_after: ReliabilityBins
    n_calibration: int
    n_evaluation: int


def held_out_calibration(
    calibration_logits: ArrayLike,
    calibration_labels: ArrayLike,
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> CalibrationReport:
    """Fit the temperature on the first pair, such as a held-out part of train, and measure it on the second."""
    z, y = as_logits_and_labels(logits, labels)
    temperature = fit_temperature(calibration_logits, calibration_labels)
    before, after = softmax(z), softmax(z, temperature)
    # The same resamples on both sides, so that their intervals differ by calibration alone.
    interval_before, interval_after = (
        bootstrap_interval(
            "expected_calibration_error",
            p,
            y,
            n_bins=n_bins,
            n_resamples=n_resamples,
            confidence=confidence,
            rng=seed,
        )
        for p in (before, after)
    )
    return CalibrationReport(
        temperature=temperature,
        ece_before=interval_before.value,
        ece_after=interval_after.value,
        ece_before_interval=interval_before,
        ece_after_interval=interval_after,
        nll_before=negative_log_likelihood(before, y),
        nll_after=negative_log_likelihood(after, y),
        bins_before=reliability_bins(before, y, n_bins),
        bins_after=reliability_bins(after, y, n_bins),
        n_calibration=len(np.asarray(calibration_labels)),
        n_evaluation=len(y),
    )


def paper_calibration(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    fraction: float = 0.2,
    n_bins: int = 15,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> CalibrationReport:
    """The paper's protocol on a test set: temperature on a stratified `fraction` of it, ECE on the rest.

    The seed draws the split and the resamples. Test labels take part in the calibration here; where train data can
    be held out instead, use held_out_calibration.
    """
    z, y = as_logits_and_labels(logits, labels)
    chosen, rest = stratified_split(y, fraction=fraction, rng=seed)
    return held_out_calibration(
        z[chosen],
        y[chosen],
        z[rest],
        y[rest],
        n_bins=n_bins,
        n_resamples=n_resamples,
        confidence=confidence,
        seed=seed,
    )


def stratified_split(
    labels: ArrayLike, *, fraction: float, rng: np.random.Generator | int = 0
) -> tuple[IntArray, IntArray]:
    """Indices of round(fraction · n) samples and of the others, both ascending, each class divided in proportion.

    Every class gives the whole part of fraction · n_k; what is missing to the total comes from the classes with the
    largest remainders, in random order where those are equal.
    """
    as_fraction(fraction, name="fraction")
    given = np.asarray(labels)
    n = given.size
    largest = int(given.max()) if n and given.dtype.kind in "iu" else 0
    y = as_labels(given, n=n, n_classes=largest + 1)
    n_chosen = round(fraction * n)
    if not 0 < n_chosen < n:
        raise ValueError(
            f"a split needs at least one sample on either side; a fraction of {fraction} of {n} is {n_chosen}. "
            "Pass more samples or another fraction."
        )
    generator = np.random.default_rng(rng)
    counts = np.bincount(y)
    share = fraction * counts
    quota = np.floor(share).astype(np.int64)
    by_remainder = np.lexsort((generator.random(len(counts)), quota - share))
    missing = n_chosen - int(quota.sum())
    able = [k for k in by_remainder if quota[k] < counts[k]]
    for k in able[:missing]:
        quota[k] += 1
    parts = [generator.permutation(np.flatnonzero(y == k))[: quota[k]] for k in range(len(counts))]
    chosen = np.sort(np.concatenate(parts))
    return chosen, np.setdiff1d(np.arange(n), chosen)
