from typing import get_args

import numpy as np
import pytest

from esupcon.probability import (
    Interval,
    accuracy,
    adaptive_calibration_error,
    bootstrap,
    bootstrap_interval,
    bootstrap_intervals,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    softmax,
)
from esupcon.probability.reliability import bin_index, top_label

METRICS = get_args(bootstrap.Metric)
RECOMPUTED = {
    "accuracy": accuracy,
    "negative_log_likelihood": negative_log_likelihood,
    "brier_score": brier_score,
    "expected_calibration_error": expected_calibration_error,
    "classwise_calibration_error": classwise_calibration_error,
    "maximum_calibration_error": maximum_calibration_error,
}


@pytest.fixture(scope="module")
def sample(cifar10):
    return softmax(cifar10.logits[:700]), cifar10.labels[:700]


def resampled(metric: str, p, y, rows) -> float:
    weights = np.bincount(rows, minlength=len(p))[None].astype(float)
    return float(bootstrap._statistic(metric, p, y, 15)(weights).values[0])


@pytest.mark.parametrize("metric", RECOMPUTED)
def test_weights_give_what_the_repeated_rows_give(sample, metric: str) -> None:
    p, y = sample
    rng = np.random.default_rng(0)
    for _ in range(10):
        rows = rng.integers(len(p), size=len(p))
        assert resampled(metric, p, y, rows) == pytest.approx(RECOMPUTED[metric](p[rows], y[rows]), abs=1e-12)


def test_weights_of_the_adaptive_error_keep_the_bins_of_the_whole_sample(sample) -> None:
    p, y = sample
    confidence, correct = top_label(p, y)
    of_bin = bin_index(confidence, 15, "quantile")
    rows = np.random.default_rng(0).integers(len(p), size=len(p))
    slow = sum(abs(sum(correct[i] - confidence[i] for i in rows if of_bin[i] == b)) for b in range(15)) / len(p)
    assert resampled("adaptive_calibration_error", p, y, rows) == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_the_value_is_the_metric_and_lies_in_the_interval(sample, metric: str) -> None:
    p, y = sample
    interval = bootstrap_interval(metric, p, y, n_resamples=200)
    functions = RECOMPUTED | {"adaptive_calibration_error": adaptive_calibration_error}
    assert interval.value == functions[metric](p, y)
    assert interval.low <= interval.value <= interval.high
    assert interval.low < interval.high
    assert interval.confidence == 0.95


def test_the_seed_decides_and_blocks_do_not(sample, monkeypatch) -> None:
    p, y = sample
    first = bootstrap_intervals(p, y, n_resamples=50, rng=3)
    assert bootstrap_intervals(p, y, n_resamples=50, rng=np.random.default_rng(3)) == first
    assert bootstrap_intervals(p, y, n_resamples=50, rng=4) != first
    monkeypatch.setattr(bootstrap, "_BLOCK_ENTRIES", 7 * len(p))
    again = bootstrap_intervals(p, y, n_resamples=50, rng=3)
    for metric in METRICS:
        assert again[metric].low == pytest.approx(first[metric].low, abs=1e-12)
        assert again[metric].high == pytest.approx(first[metric].high, abs=1e-12)


def test_one_metric_alone_or_among_all_is_the_same(sample) -> None:
    p, y = sample
    together = bootstrap_intervals(p, y, n_resamples=50)
    assert list(together) == list(METRICS)
    assert bootstrap_interval("brier_score", p, y, n_resamples=50) == together["brier_score"]


def test_the_interval_of_a_mean_matches_its_standard_error(cifar10) -> None:
    p, y = softmax(cifar10.logits), cifar10.labels
    interval = bootstrap_interval("accuracy", p, y, n_resamples=2000)
    error = 1.96 * np.sqrt(interval.value * (1 - interval.value) / len(y))
    assert interval.low == pytest.approx(interval.value - error, abs=0.1 * error)
    assert interval.high == pytest.approx(interval.value + error, abs=0.1 * error)


def test_more_confidence_is_a_wider_interval(sample) -> None:
    p, y = sample
    narrow, wide = (bootstrap_interval("brier_score", p, y, confidence=c) for c in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(("power", "seed"), [(1.0, 0), (1.5, 1)])
def test_intervals_of_the_calibration_error_cover_it(power: float, seed: int) -> None:
    """A population with known error: right with probability confidence ** power. Power 1 is perfect calibration."""
    rng = np.random.default_rng(seed)

    def draw(n: int):
        confidence = 1 - 0.45 * rng.beta(1, 2, size=n)
        labels = (rng.random(n) > confidence**power).astype(int)
        return np.stack([confidence, 1 - confidence], axis=1), labels

    confidence = 1 - 0.45 * rng.beta(1, 2, size=1_000_000)
    excess = np.bincount(bin_index(confidence, 15, "uniform"), weights=confidence**power - confidence)
    truth = np.abs(excess).sum() / 1_000_000
    covered = 0
    for repeat in range(150):
        interval = bootstrap_interval("expected_calibration_error", *draw(800), n_resamples=200, rng=repeat)
        covered += interval.low <= truth <= interval.high
    assert covered / 150 >= 0.89


def test_an_infinite_surprise_is_told_apart_from_not_a_number() -> None:
    interval = bootstrap_interval("negative_log_likelihood", [[1.0, 0.0]] * 5, [0, 0, 0, 0, 1], n_resamples=400)
    assert (interval.value, interval.low, interval.high) == (np.inf, 0.0, np.inf)
    in_every_resample = bootstrap_interval("negative_log_likelihood", [[1.0, 0.0]] * 20, [0, 1] * 10)
    assert in_every_resample.low == np.inf


@pytest.mark.parametrize("metric", METRICS)
def test_one_sample_has_an_interval_of_no_width_about_its_value(metric: str) -> None:
    interval = bootstrap_interval(metric, [[0.75, 0.25]], [0], n_resamples=10)
    assert interval.low == pytest.approx(interval.value)
    assert interval.high == pytest.approx(interval.value)


def test_an_interval_reads_well() -> None:
    assert str(Interval(0.0312, 0.0, 0.05, 0.95)) == "0.0312 [0.0000, 0.0500]"


def test_refusals(sample) -> None:
    p, y = sample
    with pytest.raises(ValueError, match=r"metric must be one of accuracy, .* got 'ece'"):
        bootstrap_interval("ece", p, y)
    with pytest.raises(ValueError, match="n_resamples must be a whole number"):
        bootstrap_interval("accuracy", p, y, n_resamples=0)
    with pytest.raises(ValueError, match="confidence must lie strictly between 0 and 1; got 95"):
        bootstrap_interval("accuracy", p, y, confidence=95)
