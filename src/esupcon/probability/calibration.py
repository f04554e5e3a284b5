"""Fit a temperature, measure what it changes, and turn logits into calibrated probabilities."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from esupcon._console import count
from esupcon._split import folds, stratified_split
from esupcon.probability import metrics
from esupcon.probability.metrics import Bounds, Count, Record, ReliabilityBins, Share
from esupcon.probability.predictions import (
    BoolArray,
    FloatArray,
    IntArray,
    Predictions,
    as_labels,
    as_logits,
    as_priors,
    log_softmax,
    refuse,
    softmax,
    with_labels,
)
from esupcon.probability.priors import estimate_priors

#: Class shares that probabilities are for: as training gave them, equal, or by label.
Priors = Literal["training", "balanced"] | Mapping[Any, float]

#: Fewer samples give an uncertain temperature: `paper_calibration` then smooths it too, and training does not hold out
#: so few but cross-fits, at four times the cost. On breast cancer (379 rows) 38 held-out rows gave temperatures of 2 to
#: 3 and an ECE of 4.0 %; cross-fitting on all rows gave 1.5 and 0.6 %.
FEW_SAMPLES, N_FOLDS = 100, 3
#: With fewer samples in all, training does not calibrate.
FEWEST_SAMPLES = 20

#: Largest noise rate that calibration reckons with, relative to the one at which labels mean nothing.
MOST_NOISE = 0.9

_SEARCH_FACTOR = 1e3  # how far beyond the scale of the logits the temperature is searched, on either side
_NEGLIGIBLE_GAP = 1e-100  # smaller differences count as ties, so that no quotient below overflows


def fit_temperature(logits: ArrayLike, labels: ArrayLike, *, offset: ArrayLike = 0.0) -> float:
    """Return the T > 0 that minimises the mean negative log likelihood of softmax(logits / T + offset).

    `offset` (K,) is the log ratio of the class shares of these samples to those that the logits are for. T is kept
    within a factor of 1000 of the logits' differences, and is 1 if there are none. Masked classes (-inf) are ignored.

    Our own code: scikit-learn's guesses from the values whether they are logits, and limits T to e^±10.
    """
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # noqa: PLC0415 - half of the import time

    z, y = with_labels(as_logits(logits), labels)
    rows = np.arange(len(z))
    masked = z == -np.inf
    refuse(masked[rows, y], "logits of the labels must be finite", z[rows, y], "Leave out samples of masked classes.")
    z = np.where(masked, 0.0, z - z.max(axis=1, keepdims=True))
    drop, farthest = -z, -z.min(axis=1)
    informative = farthest > _NEGLIGIBLE_GAP
    if not informative.any():
        return 1.0
    # The likelihood is convex in 1/T: its slope there falls as T grows and has at most one zero, found on log T.
    # The nearest difference below and the farthest above: neither rounding noise between tied classes nor large
    # negative stand-ins for -inf can push the optimum out of the interval.
    next_different = np.where(drop > _NEGLIGIBLE_GAP, drop, np.inf).min(axis=1)
    lower = float(np.median(next_different[informative])) / _SEARCH_FACTOR
    upper = float(np.median(farthest[informative])) * _SEARCH_FACTOR
    scale = max(float(np.median(drop[z != 0])), lower)  # keeps the slope of order one at any scale of the logits
    share_ratio = np.exp(offset)

    def slope(log_temperature: float) -> float:
        with np.errstate(over="ignore", under="ignore"):
            weight = np.where(masked, 0.0, share_ratio * np.exp(z / np.exp(log_temperature)))
        expected = (weight * z).sum(axis=1) / weight.sum(axis=1)
        return float(np.mean((expected - z[rows, y]) / scale))

    if slope(np.log(lower)) <= 0.0:
        return lower
    if slope(np.log(upper)) >= 0.0:
        return upper
    return float(np.exp(brentq(slope, np.log(lower), np.log(upper), xtol=1e-10, rtol=1e-12)))


def smoothed_temperature(
    logits: ArrayLike, labels: ArrayLike, *, offset: ArrayLike = 0.0, noise_rate: float = 0.0
) -> float:
    """Return the temperature of `fit_temperature` with half a mistake added: the rule for every stored model.

    Maximum likelihood makes a classifier certain that ranks all held-out labels first. So the row of median margin is
    added once more, with its second choice as label and half of the weight of the others. As for shares, half a
    sample suits the log loss: a whole one gives few samples too little confidence. With `noise_rate`, the share of
    these labels that are wrong, the temperature is that for the right labels: see `_temperature_under_noise`.
    """
    z, y = with_labels(as_logits(logits), labels)
    if not can_calibrate(y):
        raise ValueError(
            f"a temperature needs samples of at least two classes; got {len(y)} sample(s) of {len(np.unique(y))} "
            f"class(es). Pass more labelled samples that were not trained on, {FEW_SAMPLES} or more if possible."
        )
    order = np.argsort(z, axis=1, kind="stable")
    ranked = np.take_along_axis(z, order, axis=1)
    typical = int(np.argsort(ranked[:, -1] - ranked[:, -2], kind="stable")[len(z) // 2])
    z, y = np.vstack([z, z, z[typical]]), np.concatenate([y, y, [order[typical, -2]]])
    temperature = fit_temperature(z, y, offset=offset)
    return _temperature_under_noise(z, y, temperature, noise_rate, offset) if noise_rate else temperature


def _temperature_under_noise(
    z: FloatArray, y: IntArray, start: float, noise_rate: float, offset: ArrayLike = 0.0
) -> float:
    """Return the T that maximises the likelihood of labels of which a share was replaced by any other class.

    A label is seen with probability (1 - r) p + r (1 - p) / (K - 1). `start` is the temperature for r = 0, which is
    too high.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - half of the import time

    others = z.shape[1] - 1
    rate = min(noise_rate, MOST_NOISE * others / (others + 1))  # at K - 1 of K labels mean nothing

    def loss(log_temperature: float) -> float:
        temperature = np.exp(log_temperature)
        p = softmax(z + temperature * np.asarray(offset), temperature)[np.arange(len(y)), y]
        return float(-np.log((1 - rate) * p + rate * (1 - p) / others).mean())

    found = minimize_scalar(loss, bounds=(np.log(start / 100), np.log(start)), method="bounded")
    return float(np.exp(found.x))


def can_calibrate(labels: ArrayLike) -> bool:
    """Return whether `smoothed_temperature` accepts these labels: they must contain two classes or more."""
    return len(np.unique(as_labels(labels))) >= 2


class CalibrationFigures(Record):
    """Temperature scaling before (T = 1) and after, on samples that had no part in fitting T. None: infinite."""

    protocol: Literal["paper", "held-out", "cross-fitted"]
    temperature: float = Field(gt=0)
    n_calibration: Count
    n_evaluation: Count
    ece_before: Share
    ece_before_interval: Bounds
    ece_after: Share
    ece_after_interval: Bounds
    nll_before: float | None
    nll_after: float | None
    bins_before: ReliabilityBins
    bins_after: ReliabilityBins


def held_out_calibration(held_out: Predictions, test: Predictions, *, offset: ArrayLike = 0.0) -> CalibrationFigures:
    """Fit the smoothed temperature on held-out samples and measure it on the test set; both have the same shares."""
    temperature = smoothed_temperature(held_out.logits, held_out.labels, offset=offset)
    return measure_calibration("held-out", temperature, len(held_out), test, offset)


def paper_calibration(predictions: Predictions, *, seed: int = 0, offset: ArrayLike = 0.0) -> CalibrationFigures:
    """Fit the temperature on a stratified fifth of a test set, smoothed if that is few, and measure it on the rest."""
    rest, chosen = stratified_split(predictions.labels, 0.2, seed)
    fit = smoothed_temperature if len(chosen) < FEW_SAMPLES else fit_temperature
    temperature = fit(predictions.logits[chosen], predictions.labels[chosen], offset=offset)
    test = Predictions(predictions.logits[rest], predictions.labels[rest])
    return measure_calibration("paper", temperature, len(chosen), test, offset)


def measure_calibration(
    protocol: str, temperature: float, n_calibration: int, test: Predictions, offset: ArrayLike = 0.0
) -> CalibrationFigures:
    """Measure a test set before and after a temperature that was fitted on `n_calibration` other samples."""
    values: dict[str, Any] = {"protocol": protocol, "temperature": temperature}
    for side, scale in (("before", 1.0), ("after", temperature)):
        p = softmax(test.logits + scale * np.asarray(offset), scale)
        intervals, bins = metrics.bootstrap_intervals(p, test.labels), metrics.reliability_bins(p, test.labels)
        values |= {f"ece_{side}": intervals["ece"].value, f"ece_{side}_interval": intervals["ece"].bounds}
        values |= {f"nll_{side}": metrics.finite(intervals["nll"].value), f"bins_{side}": bins}
    return CalibrationFigures(n_calibration=n_calibration, n_evaluation=len(test), **values)


class Calibration(Record):
    """How a classifier turns logits into probabilities: softmax(logits / temperature + bias).

    The temperature was fitted on `n` samples. Logits are for class shares proportional to the training samples' counts
    ^(1 - prior_correction), times `class_weight`; probabilities for `target_priors`, or the same if None. A sample
    whose `outlier_score` is above `outlier_threshold` is an outlier. `noise_rate` is the share of the training labels,
    and so of those held out from them, that training found to be wrong.
    """

    temperature: float = Field(default=1.0, gt=0)
    how: Literal["none", "held-out", "cross-fitted", "given"] = "none"
    n: Count = 0
    prior_correction: float = 0.0
    noise_rate: float = Field(default=0.0, ge=0, le=1)
    class_counts: tuple[Count, ...] | None = None
    class_weight: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    target_priors: tuple[Share, ...] | None = None
    outlier_score: Literal["class_mean", "mahalanobis", "prototype"] | None = None
    outlier_threshold: float | None = None

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        given = [values for values in (self.class_counts, self.class_weight, self.target_priors) if values is not None]
        if len({len(values) for values in given}) > 1 or any(not sum(values) > 0 for values in given):
            raise ValueError("class_counts, class_weight and target_priors must hold one number per class, not all 0")
        return self

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, how: Literal["held-out", "cross-fitted", "given"]) -> Self:
        """Return a copy with the temperature fitted on samples that were not trained on, of the same class shares."""
        noise_rate = 0.0 if how == "given" else self.noise_rate
        temperature = smoothed_temperature(logits, labels, offset=self.offset, noise_rate=noise_rate)
        return self.model_copy(update={"temperature": temperature, "how": how, "n": len(np.asarray(labels))})

    @property
    def fitted_on(self) -> str | None:
        """What the temperature was fitted on, as text; None if it was not fitted."""
        samples = {"held-out": "held out from training", "cross-fitted": "of training, by cross-fitting"}
        return None if self.how == "none" else f"{count(self.n, 'sample')} {samples.get(self.how, 'given later')}"

    def with_priors(self, priors: Priors | ArrayLike | None, classes: Sequence[Any] = ()) -> Self:
        """Return a copy for other class shares: "training" or None, "balanced", one per class, or a dict by label."""
        if priors is None or (isinstance(priors, str) and priors == "training"):
            return self.model_copy(update={"target_priors": None})
        source = self.source_priors
        shares: ArrayLike
        if isinstance(priors, str):
            if priors != "balanced":
                raise ValueError(f"priors must be training, balanced or a share for every class; got {priors!r}.")
            shares = (source > 0) / (source > 0).sum()
        elif isinstance(priors, Mapping):
            if unknown := [label for label in priors if label not in classes]:
                known = ", ".join(map(repr, classes[:9]))
                raise ValueError(f"priors must be for the classes {known}; got one for {unknown[0]!r}. Remove it.")
            shares = [priors.get(label, 0.0) for label in classes]
        else:
            shares = priors
        target = as_priors(shares, n_classes=len(source), name="priors")
        expected = "priors must be 0 for classes without training samples"
        refuse((source == 0) & (target > 0), expected, target, "Train with samples of it first.", axes=("class",))
        return self.model_copy(update={"target_priors": tuple(target.tolist())})

    def adapt(self, logits: ArrayLike) -> Self:
        """Return a copy for the class priors estimated from unlabelled samples."""
        source = self.source_priors
        p = self.with_priors(None).probabilities(logits) * (source > 0)  # a class not in training keeps prior 0
        return self.with_priors(estimate_priors(p / p.sum(axis=1, keepdims=True), source))

    @property
    def source_priors(self) -> FloatArray:
        """Class shares that the probabilities are for without `target_priors`, (K,)."""
        if self.class_counts is None:
            raise ValueError("the class counts of training are unknown, so priors cannot be changed. Train again.")
        counts = np.array(self.class_counts, float)
        shares = np.where(counts > 0, np.maximum(counts, 1) ** (1 - self.prior_correction), 0.0)
        weighted = shares if self.class_weight is None else shares * np.array(self.class_weight)
        return np.asarray(weighted / weighted.sum())

    @property
    def sample_priors(self) -> FloatArray | None:
        """Shares of the classes among the training samples, (K,); None if they are not known."""
        return None if self.class_counts is None else np.array(self.class_counts) / sum(self.class_counts)

    @property
    def offset(self) -> FloatArray:
        """What is added to logits / temperature for the shares of the training samples, up to a constant."""
        counts = np.ones(1) if self.class_counts is None else np.maximum(self.class_counts, 1)
        return np.asarray(self.prior_correction * np.log(counts))

    def bias(self, n_classes: int) -> FloatArray:
        """Return what is added to logits / temperature, (K,): log(weight · target / source)."""
        weight = np.ones(n_classes) if self.class_weight is None else np.array(self.class_weight)
        if self.target_priors is None:
            return np.log(weight)
        source, target = self.source_priors, np.array(self.target_priors)
        with np.errstate(divide="ignore"):  # a prior of 0 excludes the class: log 0 is -inf
            return np.asarray(np.log(weight * np.divide(target, source, out=np.zeros(n_classes), where=source > 0)))

    def probabilities(self, logits: ArrayLike) -> FloatArray:
        """Return calibrated probabilities (n, K)."""
        log_p = log_softmax(logits, self.temperature)
        return softmax(log_p + self.bias(log_p.shape[1]))

    def corrected(self, predictions: Predictions) -> Predictions:
        """Return logits + temperature · bias: their softmax at the temperature are the probabilities."""
        bias = self.temperature * self.bias(predictions.n_classes)
        return Predictions(predictions.logits + bias, predictions.labels)


def fit_calibration(
    calibration: Calibration,
    labels: IntArray,
    held: BoolArray | None,
    logits_of: Callable[[BoolArray], ArrayLike],
    rng: np.random.Generator,
) -> Calibration:
    """Return `calibration` with a temperature fitted on samples that were not trained on, if they are enough.

    held: mask of the samples that training held out. None: three-fold cross-fitting predicts every sample once.
    logits_of: takes a mask and returns the logits of its samples by a model trained on all others.
    rng: draws the folds. The only sample of a class is in no fold.
    """
    fold = folds(labels, N_FOLDS, rng) if held is None else np.where(held, 0, -1)
    chosen = fold >= 0
    if not can_calibrate(labels[chosen]) or (held is None and len(labels) < FEWEST_SAMPLES):
        return calibration
    parts = [fold == number for number in np.unique(fold[chosen])]
    logits = np.concatenate([np.asarray(logits_of(part)) for part in parts])
    order = np.concatenate([np.flatnonzero(part) for part in parts]).argsort()
    return calibration.fit(logits[order], labels[chosen], how="cross-fitted" if held is None else "held-out")
