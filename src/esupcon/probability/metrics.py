"""Measure probabilities: accuracy, proper scores and calibration error, each with a bootstrap interval."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field, model_validator

from esupcon.probability.predictions import (
    FloatArray,
    IntArray,
    Predictions,
    as_count,
    as_fraction,
    as_probabilities_and_labels,
)

Metric = Literal["accuracy", "ece", "nll", "brier"]

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]  # JSON allows integers that no array can hold
Bounds = tuple[float | None, float | None]  # None: infinite

_BLOCK_ENTRIES = 2**20  # weights drawn at a time: 8 MB


class Record(BaseModel):
    """Base of the records in result.json: immutable, plain numbers, unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ReliabilityBins(Record):
    """Samples grouped by confidence into bins of equal width.

    Bin b holds edges[b] <= confidence < edges[b + 1]; the last one is closed on the right. `confidence` and
    `accuracy` are the means of a bin, None where it is empty.
    """

    counts: tuple[Count, ...] = Field(min_length=1)
    confidence: tuple[float | None, ...]
    accuracy: tuple[Share | None, ...]

    @model_validator(mode="after")
    def _check_lengths(self) -> "ReliabilityBins":
        if not len(self.counts) == len(self.confidence) == len(self.accuracy) or not any(self.counts):
            raise ValueError("bins must hold samples, and counts, confidence and accuracy must be of equal length")
        empty = [count == 0 for count in self.counts]
        if empty != [mean is None for mean in self.confidence] or empty != [mean is None for mean in self.accuracy]:
            raise ValueError("confidence and accuracy must be None in empty bins, and only there")
        return self

    @property
    def edges(self) -> FloatArray:
        """The n_bins + 1 edges. Each is one quotient: 9 / 15 is the float 0.6, 9 * (1 / 15) is not."""
        edges: FloatArray = np.arange(len(self.counts) + 1) / len(self.counts)
        return edges

    @property
    def gaps(self) -> FloatArray:
        """accuracy - confidence: negative where the classifier is overconfident, 0 in empty bins."""
        gaps: FloatArray = np.nan_to_num(np.array(self.accuracy, float) - np.array(self.confidence, float))
        return gaps

    @property
    def expected_calibration_error(self) -> float:
        """Σ_b counts_b / n · |gap_b|."""
        return float(self.counts @ np.abs(self.gaps) / sum(self.counts))


class ClassFigures(Record):
    """One class: samples, the share of them predicted correctly, the share of predictions of it that are correct, and
    the mean probability that its samples give it. None where there is nothing to divide by."""

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

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"

    @property
    def bounds(self) -> Bounds:
        return finite(self.low), finite(self.high)


def measure(predictions: Predictions, classes: Sequence[str], *, temperature: float = 1.0) -> Figures:
    """Return all metrics of stored predictions, overall with intervals and for every class."""
    p, y = predictions.probabilities(temperature), predictions.labels
    intervals = bootstrap_intervals(p, y)
    right, ece, nll, brier = intervals["accuracy"], intervals["ece"], intervals["nll"], intervals["brier"]
    top, own = p.argmax(axis=1), p[np.arange(len(y)), y]
    # Counts of each class, not a confusion matrix: with 30,000 classes that would take 7 GB.
    n, n_predicted, n_correct = (np.bincount(index, minlength=p.shape[1]).tolist() for index in (y, top, y[top == y]))
    sums = np.bincount(y, weights=own, minlength=p.shape[1]).tolist()
    return Figures(
        n=len(y),
        temperature=temperature,
        accuracy=right.value,
        accuracy_interval=right.bounds,
        ece=ece.value,
        ece_interval=ece.bounds,
        nll=finite(nll.value),
        nll_interval=nll.bounds,
        brier=brier.value,
        brier_interval=brier.bounds,
        per_class=tuple(
            ClassFigures(
                name=str(name),
                n=n[k],
                accuracy=n_correct[k] / n[k] if n[k] else None,
                precision=n_correct[k] / n_predicted[k] if n_predicted[k] else None,
                probability=sums[k] / n[k] if n[k] else None,
            )
            for k, name in enumerate(classes)
        ),
    )


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of rows whose largest probability (the first of ties) is that of the label."""
    p, y = as_probabilities_and_labels(probabilities, labels)
    return float(np.mean(p.argmax(axis=1) == y))


def confusion_matrix(probabilities: ArrayLike, labels: ArrayLike) -> IntArray:
    """Return (K, K) counts; rows are true classes, columns predicted ones."""
    p, y = as_probabilities_and_labels(probabilities, labels)
    n_classes = p.shape[1]
    cells = np.bincount(y * n_classes + p.argmax(axis=1), minlength=n_classes**2)
    return cells.reshape(n_classes, n_classes)


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return mean_i Σ_k (p_ik - 1[y_i = k])², between 0 and 2 (for two classes twice the one-column form)."""
    return float(_per_sample(*as_probabilities_and_labels(probabilities, labels))["brier"].mean())


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return mean_i -log p_{i,y_i} in nats. It is infinite, not clipped, if a label has probability zero."""
    return float(_per_sample(*as_probabilities_and_labels(probabilities, labels))["nll"].mean())


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15) -> float:
    """Return ECE = Σ_b n_b/n · |accuracy_b - confidence_b| over `n_bins` bins of equal width."""
    return reliability_bins(probabilities, labels, n_bins).expected_calibration_error


def reliability_bins(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15) -> ReliabilityBins:
    """Group samples by confidence max_k p_k and compare it with the share of correct predictions in every bin."""
    p, y = as_probabilities_and_labels(probabilities, labels)
    bins, confidence = bin_index(p, n_bins), p.max(axis=1)
    counts = np.bincount(bins, minlength=n_bins)
    correct = np.bincount(bins, weights=p.argmax(axis=1) == y, minlength=n_bins)
    sums = np.bincount(bins, weights=confidence, minlength=n_bins)
    means = [
        [s / n if n else None for s, n in zip(part.tolist(), counts.tolist(), strict=True)] for part in (sums, correct)
    ]
    return ReliabilityBins(counts=tuple(counts.tolist()), confidence=tuple(means[0]), accuracy=tuple(means[1]))


def bin_index(p: FloatArray, n_bins: int) -> IntArray:
    """Return the bin of every row's confidence, 0 .. n_bins - 1."""
    edges = np.arange(as_count(n_bins, name="n_bins") + 1) / n_bins
    # Row sums, and so confidences, may exceed one by rounding: they belong to the last bin.
    bins: IntArray = np.clip(np.searchsorted(edges, p.max(axis=1), side="right") - 1, 0, n_bins - 1)
    return bins


def bootstrap_intervals(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    rng: np.random.Generator | int = 0,
) -> dict[Metric, Interval]:
    """Return every metric with its confidence interval, all from the same resamples.

    Accuracy, NLL and Brier score are means: their intervals are percentiles of the resamples. ECE is a sum of absolute
    values, so noise increases it, and increases it more in a resample: percentiles alone would never cover the error
    of a well-calibrated classifier. Its interval therefore spans the percentile and the reversed percentile
    (2·value - percentile) intervals, and starts at 0 if noise alone, the `confidence` quantile of Σ_b |bin* - bin|,
    explains the value. Bins stay those of the whole sample.

    A resample is a vector of n counts and every metric a sum over samples or bins, so all resamples are one matrix
    product. scipy.stats.bootstrap recomputes the metric for every resample and ignores the bias of ECE.
    """
    p, y = as_probabilities_and_labels(probabilities, labels)
    n = len(p)
    as_count(n_resamples, name="n_resamples")
    as_fraction(confidence, name="confidence")
    each = _per_sample(p, y)
    residuals = np.zeros((n, as_count(n_bins, name="n_bins")))
    residuals[np.arange(n), bin_index(p, n_bins)] = each["accuracy"] - p.max(axis=1)
    infinite = np.isinf(each["nll"])
    means = np.column_stack([each["accuracy"], np.where(infinite, 0.0, each["nll"]), each["brier"], infinite])
    columns, generator = np.hstack([means, residuals]), np.random.default_rng(rng)
    resampled = np.concatenate([weights @ columns / n for weights in _resample_weights(n, n_resamples, generator)])
    right, nll, brier, infinite_share, *_ = resampled.T
    of_bins, observed = resampled[:, means.shape[1] :], residuals.sum(axis=0) / n
    ece, noise = expected_calibration_error(p, y, n_bins), np.abs(of_bins - observed).sum(axis=1)
    return {
        "accuracy": _percentiles(each["accuracy"].mean(), right, confidence),
        "ece": _ece_interval(ece, np.abs(of_bins).sum(axis=1), noise, confidence),
        "nll": _percentiles(each["nll"].mean(), np.where(infinite_share > 0, np.inf, nll), confidence),
        "brier": _percentiles(each["brier"].mean(), brier, confidence),
    }


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: None for an infinite one."""
    return float(value) if np.isfinite(value) else None


def _per_sample(p: FloatArray, y: IntArray) -> dict[Metric, FloatArray]:
    rows = np.arange(len(p))
    residual = p.copy()
    residual[rows, y] -= 1.0
    with np.errstate(divide="ignore"):  # log 0 is the documented infinity
        nll: FloatArray = -np.log(p[rows, y])
    return {"accuracy": (p.argmax(axis=1) == y).astype(float), "nll": nll, "brier": (residual**2).sum(axis=1)}


def _resample_weights(n: int, n_resamples: int, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Yield blocks (r, n) of how often each sample was drawn. The draws do not depend on the size of the blocks."""
    at_a_time = max(1, _BLOCK_ENTRIES // n)
    for start in range(0, n_resamples, at_a_time):
        rows = [np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(min(at_a_time, n_resamples - start))]
        yield np.asarray(rows, dtype=np.float64)


def _percentiles(value: float, values: FloatArray, confidence: float) -> Interval:
    # Order statistics, not interpolated: infinite values would interpolate to NaN.
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf")
    return Interval(float(value), float(min(low, value)), float(max(high, value)))


def _ece_interval(value: float, values: FloatArray, noise: FloatArray, confidence: float) -> Interval:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf")
    explained_by_noise = value <= np.quantile(noise, confidence, method="inverted_cdf")
    start = 0.0 if explained_by_noise else max(0.0, min(low, 2 * value - high))
    return Interval(value, float(start), float(max(value, min(1.0, max(high, 2 * value - low)))))
