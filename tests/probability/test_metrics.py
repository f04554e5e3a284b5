"""Metrics and their intervals against loops written from the definitions, and against scikit-learn."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from esupcon.probability import (
    Figures,
    Predictions,
    accuracy,
    bootstrap_intervals,
    brier_score,
    expected_calibration_error,
    measure,
    metrics,
    negative_log_likelihood,
    paper_calibration,
    reliability_bins,
    reliability_diagram,
    softmax,
)

FUNCTIONS = {
    "accuracy": accuracy,
    "ece": expected_calibration_error,
    "nll": negative_log_likelihood,
    "brier": brier_score,
}


@st.composite
def probabilities_and_labels(draw):
    """Shares of small whole numbers: exact zeros, ones, ties and bin edges are common."""
    n, n_classes = draw(st.integers(1, 30)), draw(st.integers(2, 5))
    parts = draw(hnp.arrays(np.int64, (n, n_classes), elements=st.integers(0, 6)))
    parts[:, 0] += parts.sum(axis=1) == 0
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, n_classes - 1)))
    return parts / parts.sum(axis=1, keepdims=True), labels


def ece_by_loop(p, y, n_bins: int) -> float:
    members: list[list[int]] = [[] for _ in range(n_bins)]
    for i in range(len(p)):
        inside = [b for b in range(n_bins) if b / n_bins <= max(p[i]) < (b + 1) / n_bins]
        members[inside[0] if inside else n_bins - 1].append(i)
    total = 0.0
    for rows in filter(None, members):
        right = sum(list(p[i]).index(max(p[i])) == y[i] for i in rows) / len(rows)
        total += len(rows) / len(p) * abs(right - sum(max(p[i]) for i in rows) / len(rows))
    return total


@settings(deadline=None, max_examples=150)
@given(probabilities_and_labels(), st.integers(1, 20))
def test_metrics_equal_their_definitions(case, n_bins: int) -> None:
    p, y = case
    n, n_classes = p.shape
    assert expected_calibration_error(p, y, n_bins) == pytest.approx(ece_by_loop(p, y, n_bins), abs=1e-12)
    bins = reliability_bins(p, y, n_bins)
    assert sum(bins.counts) == n
    for b, confidence in enumerate(bins.confidence):
        assert confidence is None or bins.edges[b] - 1e-12 <= confidence <= bins.edges[b + 1] + 1e-12
    brier = sum((p[i, k] - (y[i] == k)) ** 2 for i in range(n) for k in range(n_classes)) / n
    assert brier_score(p, y) == pytest.approx(brier, abs=1e-12)
    nll = [-math.log(p[i, y[i]]) if p[i, y[i]] > 0 else math.inf for i in range(n)]
    assert negative_log_likelihood(p, y) == pytest.approx(sum(nll) / n, abs=1e-12)
    predicted = [list(row).index(max(row)) for row in p]
    assert accuracy(p, y) == pytest.approx(sum(a == b for a, b in zip(predicted, y, strict=True)) / n)


def two_columns(confidences: list[float]) -> np.ndarray:
    return np.array([[c, 1 - c] for c in confidences])


def test_confidence_of_one_and_a_little_more_lie_in_the_last_bin() -> None:
    bins = reliability_bins(two_columns([1.0, 1.0, 0.97]), [0, 1, 0])
    assert bins.counts == (0,) * 14 + (3,)
    assert bins.accuracy[14] == pytest.approx(2 / 3)
    counts = reliability_bins([[1.0005, 0.0], [0.5, 0.5]], [0, 0]).counts
    assert (counts[7], counts[14]) == (1, 1)


@pytest.mark.parametrize("n_bins", [5, 10, 15, 20, 30])
def test_inner_edges_belong_to_the_bin_on_their_right(n_bins: int) -> None:
    edges = [b / n_bins for b in range(n_bins) if b / n_bins > 0.5]
    counts = reliability_bins(two_columns(edges), [0] * len(edges), n_bins).counts
    assert counts[-len(edges) :] == (1,) * len(edges)
    just_below = [np.nextafter(edge, 0) for edge in edges if np.nextafter(edge, 0) > 0.5]
    assert reliability_bins(two_columns(just_below), [0] * len(just_below), n_bins).counts[-1] == 0


@pytest.fixture(scope="module")
def sample(cifar10):
    return softmax(cifar10.logits[:700]), cifar10.labels[:700]


def test_resampled_weights_give_the_metrics_of_the_repeated_rows(sample) -> None:
    """With one resample the interval must span the whole sample's value and that of the drawn rows."""
    p, y = sample
    for seed in range(5):
        rows = np.random.default_rng(seed).integers(len(p), size=len(p))
        intervals = bootstrap_intervals(p, y, n_resamples=1, rng=seed)
        for name in ("accuracy", "nll", "brier"):
            both = sorted([FUNCTIONS[name](p, y), FUNCTIONS[name](p[rows], y[rows])])
            assert [intervals[name].low, intervals[name].high] == pytest.approx(both, abs=1e-12)
        value, drawn = expected_calibration_error(p, y), expected_calibration_error(p[rows], y[rows])
        assert intervals["ece"].high == pytest.approx(max(value, drawn, 2 * value - drawn), abs=1e-12)


def test_resamples_depend_on_the_seed_and_not_on_the_block_size(sample, monkeypatch) -> None:
    first = bootstrap_intervals(*sample, n_resamples=50, rng=3)
    assert bootstrap_intervals(*sample, n_resamples=50, rng=np.random.default_rng(3)) == first
    assert bootstrap_intervals(*sample, n_resamples=50, rng=4) != first
    monkeypatch.setattr(metrics, "_BLOCK_ENTRIES", 7 * 700)
    for name, interval in bootstrap_intervals(*sample, n_resamples=50, rng=3).items():
        assert [interval.low, interval.high] == pytest.approx([first[name].low, first[name].high], abs=1e-12)


@pytest.mark.parametrize(("power", "seed"), [(1.0, 0), (1.5, 1)])
def test_intervals_of_the_calibration_error_cover_the_true_error(power: float, seed: int) -> None:
    """A population with known error: correct with probability confidence ** power. Power 1 is perfect calibration."""
    rng = np.random.default_rng(seed)

    def draw(n: int):
        confidence = 1 - 0.45 * rng.beta(1, 2, size=n)
        return two_columns(confidence), (rng.random(n) > confidence**power).astype(int)

    confidence = 1 - 0.45 * rng.beta(1, 2, size=200_000)
    bins = metrics.bin_index(two_columns(confidence), 15)
    truth = np.abs(np.bincount(bins, weights=confidence**power - confidence)).sum() / 200_000
    covered = 0
    for repeat in range(80):
        interval = bootstrap_intervals(*draw(500), n_resamples=200, rng=repeat)["ece"]
        covered += interval.low <= truth <= interval.high
    assert covered / 80 >= 0.88


def test_infinite_nll_has_an_infinite_interval_without_nan() -> None:
    interval = bootstrap_intervals([[1.0, 0.0]] * 5, [0, 0, 0, 0, 1], n_resamples=400)["nll"]
    assert (interval.value, interval.low, interval.high) == (np.inf, 0.0, np.inf)
    assert interval.bounds == (0.0, None)
    assert bootstrap_intervals([[1.0, 0.0]] * 20, [0, 1] * 10)["nll"].low == np.inf


def test_measure_gives_every_metric_overall_and_per_class(cifar10) -> None:
    names = [f"class {k}" for k in range(10)]
    figures = measure(cifar10, names, temperature=1.5)
    p, y = cifar10.probabilities(1.5), cifar10.labels
    assert (figures.n, figures.temperature) == (3000, 1.5)
    for name, function in FUNCTIONS.items():
        assert getattr(figures, name) == pytest.approx(function(p, y), abs=1e-15)
        low, high = getattr(figures, f"{name}_interval")
        assert low <= getattr(figures, name) <= high
    predicted = p.argmax(axis=1)
    for k, row in enumerate(figures.per_class):
        assert (row.name, row.n) == (names[k], (y == k).sum())
        assert row.accuracy == (predicted[y == k] == k).mean()
        assert row.precision == (y[predicted == k] == k).mean()
        assert row.probability == pytest.approx(p[y == k, k].mean())


def test_figures_without_samples_or_with_an_infinite_nll_are_none_and_survive_json() -> None:
    figures = measure(Predictions([[0.0, -np.inf, 0.0], [1.0, 0.0, 0.0]], [1, 0]), ["a", "b", "c"])
    assert figures.nll is None
    absent = figures.per_class[2]
    assert (absent.n, absent.accuracy, absent.precision, absent.probability) == (0, None, None, None)
    stored = json.loads(json.dumps(figures.model_dump(mode="json"), allow_nan=False))
    assert Figures.model_validate(stored) == figures
    bins = reliability_bins([[0.9, 0.1]], [0])
    assert metrics.ReliabilityBins.model_validate_json(bins.model_dump_json()) == bins


# --- Reliability diagrams --------------------------------------------------------------------------------------------


def heights(axes, *, filled: bool) -> dict[float, float]:
    """Top of each plain bar, or of each hatched one, by its left edge."""
    bars = [patch for patch in axes.patches if bool(patch.get_hatch()) != filled]
    return {round(bar.get_x(), 6): bar.get_y() + bar.get_height() for bar in bars}


def test_bars_show_accuracy_gaps_end_at_confidence_and_histogram_shows_shares(cifar10) -> None:
    report = paper_calibration(cifar10)
    figure = reliability_diagram(report.bins_before, report.bins_after)
    for column, bins in enumerate((report.bins_before, report.bins_after)):
        held = np.flatnonzero(bins.counts)
        upper, lower = figure.axes[column], figure.axes[2 + column]
        accuracy, gap, shares = heights(upper, filled=True), heights(upper, filled=False), heights(lower, filled=True)
        assert len(accuracy) == len(gap) == len(shares) == len(held)
        for b in held:
            left = round(bins.edges[b], 6)
            assert accuracy[left] == pytest.approx(bins.accuracy[b])
            assert gap[left] == pytest.approx(bins.confidence[b])
            assert shares[left] == pytest.approx(bins.counts[b] / report.n_evaluation)
    ece, n = figure.axes[0].texts[0].get_text().splitlines()
    assert (ece, n) == (f"ECE {100 * report.ece_before:.2f} %", f"n = {report.n_evaluation:,}")


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_diagram_is_written_in_the_format_of_its_name(tmp_path, suffix: str, start: bytes) -> None:
    bins = reliability_bins([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    reliability_diagram(bins, bins, path=tmp_path / f"diagram.{suffix}")
    assert (tmp_path / f"diagram.{suffix}").read_bytes().startswith(start)
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg or \.pdf"):
        reliability_diagram(bins, path=tmp_path / "diagram.jpg")
