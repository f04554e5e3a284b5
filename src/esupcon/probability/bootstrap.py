"""How far each metric can be trusted: bootstrap intervals from resampled sample weights.

A resample of n samples with replacement is a vector of n counts, and every metric here is a sum over samples, or
over a few cells of samples, so resamples cost one sparse matrix product each and nothing is recomputed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array  # type: ignore[import-untyped]  # SciPy ships no annotations

from esupcon.probability.metrics import accuracy, brier_of_each, brier_score, negative_log_likelihood, surprise_of_each
from esupcon.probability.reliability import (
    adaptive_calibration_error,
    bin_index,
    classwise_calibration_error,
    classwise_cells,
    expected_calibration_error,
    maximum_calibration_error,
    top_label,
)
from esupcon.probability.validation import (
    FloatArray,
    IntArray,
    as_count,
    as_fraction,
    as_probabilities_and_labels,
)

Metric = Literal[
    "accuracy",
    "negative_log_likelihood",
    "brier_score",
    "expected_calibration_error",
    "adaptive_calibration_error",
    "classwise_calibration_error",
    "maximum_calibration_error",
]

_BLOCK_ENTRIES = 2**20  # weights drawn at a time: 8 MB


@dataclass(frozen=True)
class Interval:
    """A metric's `value` on the samples at hand, and the `low` and `high` ends of its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class _Resampled:
    """A metric on each resample, and, for calibration errors, the size of the sampling noise alone."""

    values: FloatArray
    noise: FloatArray | None = None


_Statistic = Callable[[FloatArray], _Resampled]


def bootstrap_interval(
    metric: Metric,
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    rng: np.random.Generator | int = 0,
) -> Interval:
    """The interval of one metric; see bootstrap_intervals."""
    return bootstrap_intervals(
        probabilities, labels, (metric,), n_bins=n_bins, n_resamples=n_resamples, confidence=confidence, rng=rng
    )[metric]


def bootstrap_intervals(
    probabilities: ArrayLike,
    labels: ArrayLike,
    metrics: Iterable[Metric] = get_args(Metric),
    *,
    n_bins: int = 15,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    rng: np.random.Generator | int = 0,
) -> dict[Metric, Interval]:
    """Each metric with its interval, all from the same `n_resamples` resamples of the samples.

    Accuracy, negative log likelihood and Brier score are means: their intervals are percentiles of the resamples.
    A calibration error is a sum of absolute values, pushed up by noise, and by more of it in a resample: percentiles
    alone would miss a well-calibrated classifier's error every time. Its interval therefore spans the percentile and
    the reversed percentile (2·value - percentile) intervals, and begins at 0 where the value is no larger than
    noise, that is the `confidence` quantile of Σ|cell* - cell|, explains. Bins stay those of the whole sample.
    """
    p, y = as_probabilities_and_labels(probabilities, labels)
    as_count(n_bins, name="n_bins")
    as_count(n_resamples, name="n_resamples")
    as_fraction(confidence, name="confidence")
    wanted = tuple(metrics)
    for metric in wanted:
        if metric not in get_args(Metric):
            raise ValueError(f"metric must be one of {', '.join(get_args(Metric))}; got {metric!r}. Pass its name.")
    statistics = {metric: _statistic(metric, p, y, n_bins) for metric in wanted}
    blocks: dict[Metric, list[_Resampled]] = {metric: [] for metric in wanted}
    for weights in _resample_weights(len(p), n_resamples, np.random.default_rng(rng)):
        for metric, statistic in statistics.items():
            blocks[metric].append(statistic(weights))
    return {metric: _interval(_value(metric, p, y, n_bins), blocks[metric], confidence) for metric in wanted}


def _resample_weights(n: int, n_resamples: int, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Blocks (r, n): how often each sample was drawn. What is drawn does not depend on the size of the blocks."""
    at_a_time = max(1, _BLOCK_ENTRIES // n)
    for start in range(0, n_resamples, at_a_time):
        rows = [np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(min(at_a_time, n_resamples - start))]
        yield np.asarray(rows, dtype=np.float64)


def _value(metric: Metric, p: FloatArray, y: IntArray, n_bins: int) -> float:
    means = {"accuracy": accuracy, "negative_log_likelihood": negative_log_likelihood, "brier_score": brier_score}
    binned = {
        "expected_calibration_error": expected_calibration_error,
        "adaptive_calibration_error": adaptive_calibration_error,
        "classwise_calibration_error": classwise_calibration_error,
        "maximum_calibration_error": maximum_calibration_error,
    }
    return means[metric](p, y) if metric in means else binned[metric](p, y, n_bins)


def _statistic(metric: Metric, p: FloatArray, y: IntArray, n_bins: int) -> _Statistic:
    confidence, correct = top_label(p, y)
    match metric:
        case "accuracy":
            return _mean_of(correct)
        case "brier_score":
            return _mean_of(brier_of_each(p, y))
        case "negative_log_likelihood":
            return _mean_of(surprise_of_each(p, y))
        case "expected_calibration_error" | "adaptive_calibration_error":
            cells = bin_index(confidence, n_bins, "uniform" if metric == "expected_calibration_error" else "quantile")
            return _sum_over_cells(_cell_matrix(cells[:, None], (correct - confidence)[:, None], n_bins), 1)
        case "classwise_calibration_error":
            n_classes = p.shape[1]
            return _sum_over_cells(_cell_matrix(*classwise_cells(p, y, n_bins), n_bins * n_classes), n_classes)
        case "maximum_calibration_error":
            cells = bin_index(confidence, n_bins, "uniform")[:, None]
            residuals = _cell_matrix(cells, (correct - confidence)[:, None], n_bins)
            return _largest_cell(residuals, _cell_matrix(cells, np.ones_like(cells, dtype=np.float64), n_bins))


def _mean_of(each: FloatArray) -> _Statistic:
    finite = np.isfinite(each)

    def statistic(weights: FloatArray) -> _Resampled:
        # 0 · inf is NaN, so an infinite sample is counted apart: it matters in the resamples that drew it.
        means = weights @ np.where(finite, each, 0.0) / len(each)
        drew_infinite = (weights[:, ~finite] > 0).any(axis=1)
        return _Resampled(np.where(drew_infinite, np.inf, means))

    return statistic


def _sum_over_cells(residuals: csr_array, n_parts: int) -> _Statistic:
    """Σ_cells |Σ_i w_i residual_i| / (n · n_parts)."""
    observed = residuals.sum(axis=1)
    divisor = residuals.shape[1] * n_parts

    def statistic(weights: FloatArray) -> _Resampled:
        sums = residuals @ weights.T
        noise = np.abs(sums - observed[:, None]).sum(axis=0) / divisor
        return _Resampled(np.abs(sums).sum(axis=0) / divisor, noise)

    return statistic


def _largest_cell(residuals: csr_array, members: csr_array) -> _Statistic:
    """max_cells |Σ_i w_i residual_i| / Σ_i w_i."""
    observed = residuals.sum(axis=1) / np.maximum(members.sum(axis=1), 1.0)

    def statistic(weights: FloatArray) -> _Resampled:
        drawn = members @ weights.T
        means = residuals @ weights.T / np.maximum(drawn, 1.0)
        noise = np.where(drawn > 0, np.abs(means - observed[:, None]), 0.0).max(axis=0)
        return _Resampled(np.abs(means).max(axis=0), noise)

    return statistic


def _cell_matrix(cells: IntArray, values: FloatArray, n_cells: int) -> csr_array:
    """(n_cells, n) with values[i, j] at (cells[i, j], i)."""
    n, per_sample = cells.shape
    columns = np.repeat(np.arange(n), per_sample)
    return csr_array((values.ravel(), (cells.ravel(), columns)), shape=(n_cells, n))


def _interval(value: float, blocks: list[_Resampled], confidence: float) -> Interval:
    values = np.concatenate([block.values for block in blocks])
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    # Order statistics, not interpolated: infinite values would interpolate to NaN.
    low, high = (float(q) for q in np.quantile(values, tails, method="inverted_cdf"))
    noises = [block.noise for block in blocks if block.noise is not None]
    if not noises:
        return Interval(value, min(low, value), max(high, value), confidence)
    from_noise_alone = float(np.quantile(np.concatenate(noises), confidence, method="inverted_cdf"))
    spanned_low = 0.0 if value <= from_noise_alone else max(0.0, min(low, 2 * value - high))
    spanned_high = max(value, min(1.0, max(high, 2 * value - low)))
    return Interval(value, spanned_low, spanned_high, confidence)
