"""Measure probabilities: accuracy, proper scores and calibration error, each with a bootstrap interval."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field, model_validator

from esupcon.probability.predictions import (
    BoolArray,
    FloatArray,
    IntArray,
    Predictions,
    as_probabilities,
    with_labels,
)

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]  # JSON allows integers that no array can hold
Bounds = tuple[float | None, float | None]  # None: infinite

_N_BINS = 15
_BLOCK_ENTRIES = 2**20  # weights drawn at a time: 8 MB


class Record(BaseModel):
    """Base of the records in result.json: immutable, plain numbers, unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ReliabilityBins(Record):
    """Samples grouped by confidence into bins of equal width, the last one closed at 1; means are None where empty."""

    counts: tuple[Count, ...] = Field(min_length=1)
    confidence: tuple[float | None, ...]
    accuracy: tuple[Share | None, ...]

    @model_validator(mode="after")
    def _check_bins(self) -> "ReliabilityBins":
        filled = [count > 0 for count in self.counts]
        means = ([mean is not None for mean in values] for values in (self.confidence, self.accuracy))
        if not any(filled) or any(known != filled for known in means):
            raise ValueError("bins must hold samples, and have means exactly where they do")
        return self

    @property
    def edges(self) -> FloatArray:
        """The n_bins + 1 edges. Each is one quotient: 9 / 15 is the float 0.6, 9 * (1 / 15) is not."""
        return np.asarray(np.arange(len(self.counts) + 1) / len(self.counts))

    @property
    def expected_calibration_error(self) -> float:
        """Σ_b counts_b / n · |accuracy_b - confidence_b|."""
        gaps = np.nan_to_num(np.array(self.accuracy, float) - np.array(self.confidence, float))
        return float(self.counts @ np.abs(gaps) / sum(self.counts))


class ClassFigures(Record):
    """Metrics of one class; `probability` is the mean that its samples give it. None: nothing to divide by."""

    name: str
    n: Count
    accuracy: Share | None
    precision: Share | None
    probability: float | None


class Figures(Record):
    """Metrics of a classifier on one set at one temperature, with 95 % intervals; None stands for infinity."""

    n: Count
    temperature: float = Field(gt=0)
    accuracy: Share
    accuracy_interval: Bounds
    ece: float
    ece_interval: Bounds
    nll: float | None
    nll_interval: Bounds
    brier: float
    brier_interval: Bounds
    per_class: tuple[ClassFigures, ...]


class Interval(NamedTuple):
    """The `value` of a metric on the given samples, and the `low` and `high` ends of its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def bounds(self) -> Bounds:
        return finite(self.low), finite(self.high)


def measure(predictions: Predictions, classes: Sequence[str], *, temperature: float = 1.0) -> Figures:
    """Return all metrics of stored predictions, overall with intervals and for every class."""
    p, y = predictions.probabilities(temperature), predictions.labels
    overall: dict[str, Any] = {}
    for name, interval in bootstrap_intervals(p, y).items():
        overall |= {name: finite(interval.value), f"{name}_interval": interval.bounds}
    top, own = p.argmax(axis=1), p[np.arange(len(y)), y]
    # Counts of each class, not a confusion matrix: with 30,000 classes that would take 7 GB.
    n, n_predicted, n_correct = (np.bincount(index, minlength=p.shape[1]).tolist() for index in (y, top, y[top == y]))
    sums = np.bincount(y, weights=own, minlength=p.shape[1]).tolist()
    per_class = tuple(
        ClassFigures(
            name=str(name),
            n=n[k],
            accuracy=n_correct[k] / n[k] if n[k] else None,
            precision=n_correct[k] / n_predicted[k] if n_predicted[k] else None,
            probability=sums[k] / n[k] if n[k] else None,
        )
        for k, name in enumerate(classes)
    )
    return Figures(n=len(y), temperature=temperature, per_class=per_class, **overall)


class SharesFigures(Record):
    """Metrics for data with stated class shares. `nll` is None if it is infinite."""

    accuracy: Share
    ece: Share
    nll: float | None


def measure_for_shares(probabilities: ArrayLike, labels: ArrayLike, shares: ArrayLike) -> SharesFigures:
    """Return what samples would measure whose classes had these shares: sample i weighs shares_k / n_k of its class k.

    Pass probabilities for these shares too (`Calibration.with_priors`): others would look miscalibrated though right.
    """
    p, y = with_labels(as_probabilities(probabilities), labels)
    weight = (np.asarray(shares) / np.maximum(np.bincount(y, minlength=p.shape[1]), 1))[y]
    weight = weight / weight.sum()
    each, counted = _per_sample(p, y), weight > 0
    gaps = np.bincount(bin_index(p, _N_BINS), weights=weight * (each["accuracy"] - p.max(axis=1)))
    return SharesFigures(
        accuracy=min(1.0, float(weight @ each["accuracy"])),
        ece=min(1.0, float(np.abs(gaps).sum())),
        nll=finite(float(weight[counted] @ each["nll"][counted])),
    )


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of rows whose largest probability (the first of ties) is that of the label."""
    return float(_per_sample(*with_labels(as_probabilities(probabilities), labels))["accuracy"].mean())


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return mean_i Σ_k (p_ik - 1[y_i = k])², between 0 and 2 (for two classes twice the one-column form)."""
    return float(_per_sample(*with_labels(as_probabilities(probabilities), labels))["brier"].mean())


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return mean_i -log p_{i,y_i} in nats. It is infinite, not clipped, if a label has probability zero."""
    return float(_per_sample(*with_labels(as_probabilities(probabilities), labels))["nll"].mean())


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = _N_BINS) -> float:
    """Return ECE = Σ_b n_b/n · |accuracy_b - confidence_b| over `n_bins` bins of equal width."""
    return reliability_bins(probabilities, labels, n_bins).expected_calibration_error


def reliability_bins(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = _N_BINS) -> ReliabilityBins:
    """Group samples by confidence max_k p_k and compare it with the share of correct predictions in every bin."""
    p, y = with_labels(as_probabilities(probabilities), labels)
    bins = bin_index(p, n_bins)
    counts = np.bincount(bins, minlength=n_bins).tolist()

    def means(values: FloatArray | BoolArray) -> tuple[float | None, ...]:
        sums = np.bincount(bins, weights=values, minlength=n_bins).tolist()
        return tuple(total / n if n else None for total, n in zip(sums, counts, strict=True))

    confidence, accuracy = means(p.max(axis=1)), means(p.argmax(axis=1) == y)
    return ReliabilityBins(counts=tuple(counts), confidence=confidence, accuracy=accuracy)


def bin_index(p: FloatArray, n_bins: int) -> IntArray:
    """Return the bin of every row's confidence, 0 .. n_bins - 1."""
    edges = np.arange(n_bins + 1) / n_bins
    # Row sums, and so confidences, may exceed one by rounding: they belong to the last bin.
    return np.asarray(np.clip(np.searchsorted(edges, p.max(axis=1), side="right") - 1, 0, n_bins - 1))


def bootstrap_intervals(
    probabilities: ArrayLike, labels: ArrayLike, *, n_resamples: int = 1000, rng: np.random.Generator | int = 0
) -> dict[str, Interval]:
    """Return every metric with its 95 % confidence interval, all from the same resamples.

    Intervals are percentiles of the resamples. ECE is a sum of absolute values, which noise increases, and increases
    more in a resample: its interval also spans the reversed percentiles (2·value - percentile), and starts at 0 if
    noise alone, the 95 % quantile of Σ_b |bin* - bin|, explains the value.

    Every metric is a sum over samples or bins, so all resamples are one matrix product; scipy.stats.bootstrap
    recomputes the metric for each and ignores the bias of ECE.
    """
    p, y = with_labels(as_probabilities(probabilities), labels)
    n = len(p)
    each = _per_sample(p, y)
    residuals = np.zeros((n, _N_BINS))
    residuals[np.arange(n), bin_index(p, _N_BINS)] = each["accuracy"] - p.max(axis=1)
    infinite = np.isinf(each["nll"])
    means = [each["accuracy"], np.where(infinite, 0.0, each["nll"]), each["brier"], infinite]
    columns, generator, blocks = np.column_stack([*means, residuals]), np.random.default_rng(rng), []
    at_a_time = max(1, _BLOCK_ENTRIES // n)
    for start in range(0, n_resamples, at_a_time):
        size = min(at_a_time, n_resamples - start)
        times_drawn = [np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(size)]
        blocks.append(np.asarray(times_drawn, dtype=np.float64) @ columns / n)
    resampled = np.concatenate(blocks)
    right, nll, brier, infinite_share = resampled[:, :4].T
    of_bins, observed = resampled[:, 4:], residuals.sum(axis=0) / n

    def interval(value: float, values: FloatArray, reversed_too: bool = False) -> Interval:
        # Order statistics, not interpolated: infinite values would interpolate to NaN.
        low, high = np.quantile(values, [0.025, 0.975], method="inverted_cdf")
        if reversed_too:
            low, high = max(0.0, min(low, 2 * value - high)), min(1.0, max(high, 2 * value - low))
        return Interval(float(value), float(min(low, value)), float(max(high, value)))

    ece = interval(expected_calibration_error(p, y), np.abs(of_bins).sum(axis=1), reversed_too=True)
    noise = np.quantile(np.abs(of_bins - observed).sum(axis=1), 0.95, method="inverted_cdf")
    return {
        "accuracy": interval(each["accuracy"].mean(), right),
        "ece": ece._replace(low=0.0) if ece.value <= noise else ece,
        "nll": interval(each["nll"].mean(), np.where(infinite_share > 0, np.inf, nll)),
        "brier": interval(each["brier"].mean(), brier),
    }


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: None for an infinite one."""
    return float(value) if np.isfinite(value) else None


def _per_sample(p: FloatArray, y: IntArray) -> dict[str, FloatArray]:
    rows = np.arange(len(p))
    residual = p.copy()
    residual[rows, y] -= 1.0
    with np.errstate(divide="ignore"):  # log 0 is the documented infinity
        nll: FloatArray = -np.log(p[rows, y])
    return {"accuracy": (p.argmax(axis=1) == y).astype(float), "nll": nll, "brier": (residual**2).sum(axis=1)}
