"""Calibration errors and proper scores against loops written from their definitions, and against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from esupcon.probability import (
    accuracy,
    adaptive_calibration_error,
    brier_score,
    classwise_calibration_error,
    confusion_matrix,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    per_class_accuracy,
    reliability_bins,
    softmax,
)


@st.composite
def probabilities_and_labels(draw):
    """Shares of small whole numbers: exact zeros, ones, ties and bin edges are common."""
    n, n_classes = draw(st.integers(1, 30)), draw(st.integers(2, 5))
    parts = draw(hnp.arrays(np.int64, (n, n_classes), elements=st.integers(0, 6)))
    parts[:, 0] += parts.sum(axis=1) == 0
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, n_classes - 1)))
    return parts / parts.sum(axis=1, keepdims=True), labels


def slow_uniform_bin(value: float, n_bins: int) -> int:
    for b in range(n_bins):
        if b / n_bins <= value < (b + 1) / n_bins:
            return b
    return n_bins - 1


def slow_ece(p, y, n_bins: int) -> tuple[float, float]:
    """Expected and maximum calibration error over bins of equal width."""
    members: list[list[int]] = [[] for _ in range(n_bins)]
    for i in range(len(p)):
        members[slow_uniform_bin(max(p[i]), n_bins)].append(i)
    gaps = []
    for rows in members:
        if rows:
            right = sum(list(p[i]).index(max(p[i])) == y[i] for i in rows) / len(rows)
            sure = sum(max(p[i]) for i in rows) / len(rows)
            gaps.append((len(rows) / len(p), abs(right - sure)))
    return sum(share * gap for share, gap in gaps), max(gap for _, gap in gaps)


def slow_adaptive(p, y, n_bins: int) -> float:
    sums = [0.0] * n_bins
    top = [max(row) for row in p]
    for i in range(len(p)):
        below = sum(other < top[i] for other in top)
        sums[below * n_bins // len(p)] += (list(p[i]).index(top[i]) == y[i]) - top[i]
    return sum(abs(s) for s in sums) / len(p)


def slow_classwise(p, y, n_bins: int) -> float:
    n, n_classes = p.shape
    total = 0.0
    for k in range(n_classes):
        sums = [0.0] * n_bins
        for i in range(n):
            sums[slow_uniform_bin(p[i, k], n_bins)] += (y[i] == k) - p[i, k]
        total += sum(abs(s) for s in sums) / n
    return total / n_classes


@settings(deadline=None, max_examples=150)
@given(probabilities_and_labels(), st.integers(1, 20))
def test_calibration_errors_equal_their_definitions(case, n_bins: int) -> None:
    p, y = case
    expected, maximum = slow_ece(p, y, n_bins)
    assert expected_calibration_error(p, y, n_bins) == pytest.approx(expected, abs=1e-12)
    assert maximum_calibration_error(p, y, n_bins) == pytest.approx(maximum, abs=1e-12)
    assert adaptive_calibration_error(p, y, n_bins) == pytest.approx(slow_adaptive(p, y, n_bins), abs=1e-12)
    assert classwise_calibration_error(p, y, n_bins) == pytest.approx(slow_classwise(p, y, n_bins), abs=1e-12)


@settings(deadline=None, max_examples=150)
@given(probabilities_and_labels())
def test_scores_equal_their_definitions(case) -> None:
    p, y = case
    n, n_classes = p.shape
    brier = sum((p[i, k] - (y[i] == k)) ** 2 for i in range(n) for k in range(n_classes)) / n
    assert brier_score(p, y) == pytest.approx(brier, abs=1e-12)
    surprises = [-math.log(p[i, y[i]]) if p[i, y[i]] > 0 else math.inf for i in range(n)]
    assert negative_log_likelihood(p, y) == pytest.approx(sum(surprises) / n, abs=1e-12)
    predicted = [list(row).index(max(row)) for row in p]
    assert accuracy(p, y) == pytest.approx(sum(a == b for a, b in zip(predicted, y, strict=True)) / n)
    assert np.array_equal(confusion_matrix(p, y), sk.confusion_matrix(y, predicted, labels=range(n_classes)))


@settings(deadline=None, max_examples=100)
@given(probabilities_and_labels(), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(case, n_bins: int, random) -> None:
    p, y = case
    order = list(range(len(p)))
    random.shuffle(order)
    for error in (expected_calibration_error, adaptive_calibration_error, classwise_calibration_error):
        assert error(p[order], y[order], n_bins) == pytest.approx(error(p, y, n_bins), abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(probabilities_and_labels(), st.integers(1, 20), st.sampled_from(["uniform", "quantile"]))
def test_every_sample_lies_between_the_edges_of_its_bin(case, n_bins: int, strategy) -> None:
    p, y = case
    bins = reliability_bins(p, y, n_bins, strategy)
    assert bins.counts.sum() == len(p)
    assert len(bins.edges) == n_bins + 1
    assert (np.diff(bins.edges) >= 0).all()
    held = bins.counts > 0
    assert np.isnan(bins.confidence[~held]).all()
    assert np.isnan(bins.accuracy[~held]).all()
    assert (bins.confidence[held] >= bins.edges[:-1][held] - 1e-12).all()
    assert (bins.confidence[held] <= bins.edges[1:][held] + 1e-12).all()
    if strategy == "quantile":
        confidence = p.max(axis=1)
        last = np.flatnonzero(held)[-1]
        for b in np.flatnonzero(held):
            above = confidence <= bins.edges[b + 1] if b == last else confidence < bins.edges[b + 1]
            assert ((confidence >= bins.edges[b]) & above).sum() == bins.counts[b]


def two_columns(confidences: list[float]) -> np.ndarray:
    return np.array([[c, 1 - c] for c in confidences])


def test_certainty_lies_in_the_last_bin() -> None:
    bins = reliability_bins(two_columns([1.0, 1.0, 0.97]), [0, 1, 0])
    assert bins.counts.tolist() == [0] * 14 + [3]
    assert bins.accuracy[14] == pytest.approx(2 / 3)


def test_a_little_more_than_certainty_lies_there_too() -> None:
    p = np.array([[1.0005, 0.0], [0.5, 0.5]])
    assert reliability_bins(p, [0, 0]).counts[[7, 14]].tolist() == [1, 1]


def test_zero_probability_lies_in_the_first_bin() -> None:
    """Columns of exact zeros and ones: each class errs by nothing where it is right, by one where it is wrong."""
    certain = np.eye(4)[[0, 1, 2, 3]]
    assert classwise_calibration_error(certain, [0, 1, 2, 3]) == 0.0
    assert classwise_calibration_error(certain, [1, 0, 2, 3]) == pytest.approx((4 * 0.25) / 4)
    from esupcon.probability.reliability import bin_index

    assert bin_index(np.array([0.0, 1.0, 0.5]), 15, "uniform").tolist() == [0, 14, 7]


@pytest.mark.parametrize("n_bins", [5, 10, 15, 20, 30])
def test_inner_edges_belong_to_the_bin_on_their_right(n_bins: int) -> None:
    edges = [b / n_bins for b in range(n_bins) if b / n_bins > 0.5]
    counts = reliability_bins(two_columns(edges), [0] * len(edges), n_bins).counts
    assert counts[-len(edges) :].tolist() == [1] * len(edges)
    just_below = [np.nextafter(edge, 0) for edge in edges if np.nextafter(edge, 0) > 0.5]
    counts = reliability_bins(two_columns(just_below), [0] * len(just_below), n_bins).counts
    assert counts[-1] == 0


@pytest.mark.parametrize("value", [0.6, 0.8])
def test_edges_are_the_numbers_people_write(value: float) -> None:
    bins = reliability_bins(two_columns([value]), [0])
    assert bins.counts[round(value * 15)] == 1


def test_quantile_bins_are_of_equal_mass_without_ties(cifar10) -> None:
    counts = reliability_bins(softmax(cifar10.logits, 3.0), cifar10.labels, 7, "quantile").counts
    assert counts.max() - counts.min() <= 1


def test_quantile_bins_keep_ties_together() -> None:
    p = two_columns([0.6] * 7 + [0.9])
    bins = reliability_bins(p, [0] * 8, 4, "quantile")
    assert bins.counts.tolist() == [7, 0, 0, 1]


def test_an_unknown_strategy() -> None:
    with pytest.raises(ValueError, match="strategy must be 'uniform' or 'quantile'; got 'equal'"):
        reliability_bins(two_columns([0.6]), [0], 15, "equal")


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_agrees_with_scikit_learns_calibration_curve(cifar10, strategy) -> None:
    p = softmax(cifar10.logits, 1.7)
    bins = reliability_bins(p, cifar10.labels, 10, strategy)
    right = p.argmax(axis=1) == cifar10.labels
    share, confidence = calibration_curve(right, p.max(axis=1), n_bins=10, strategy=strategy)
    held = bins.counts > 0
    np.testing.assert_allclose(bins.accuracy[held], share, atol=1e-12)
    np.testing.assert_allclose(bins.confidence[held], confidence, atol=1e-12)


def test_agrees_with_scikit_learns_scores(cifar10) -> None:
    p, y = softmax(cifar10.logits), cifar10.labels
    assert negative_log_likelihood(p, y) == pytest.approx(sk.log_loss(y, p), rel=1e-10)
    assert accuracy(p, y) == sk.accuracy_score(y, p.argmax(axis=1))
    np.testing.assert_allclose(per_class_accuracy(p, y), sk.recall_score(y, p.argmax(axis=1), average=None))
    two = softmax(cifar10.logits[:, :2])
    is_one = (y == 1).astype(int)
    assert brier_score(two, is_one) == pytest.approx(2 * sk.brier_score_loss(is_one, two[:, 1]), rel=1e-10)


def test_a_class_without_samples_has_no_accuracy() -> None:
    p = two_columns([0.9, 0.2, 0.7])
    assert per_class_accuracy(p, [0, 0, 0])[0] == pytest.approx(2 / 3)
    assert np.isnan(per_class_accuracy(p, [0, 0, 0])[1])


def test_zero_given_to_the_label_is_infinitely_surprising() -> None:
    assert negative_log_likelihood([[1.0, 0.0]], [1]) == math.inf
