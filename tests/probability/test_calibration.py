import numpy as np
import pytest

from esupcon.probability import (
    expected_calibration_error,
    fit_temperature,
    held_out_calibration,
    negative_log_likelihood,
    paper_calibration,
    reliability_bins,
    softmax,
    stratified_split,
)


def test_the_papers_protocol_step_by_step(cifar10) -> None:
    report = paper_calibration(cifar10.logits, cifar10.labels, seed=5, n_resamples=100)
    chosen, rest = stratified_split(cifar10.labels, fraction=0.2, rng=5)
    logits, labels = cifar10.logits.astype(np.float64), cifar10.labels
    assert (report.n_calibration, report.n_evaluation) == (600, 2400)
    assert report.temperature == fit_temperature(logits[chosen], labels[chosen])
    assert report.ece_before == expected_calibration_error(softmax(logits[rest]), labels[rest])
    after = softmax(logits[rest], report.temperature)
    assert report.ece_after == expected_calibration_error(after, labels[rest])
    assert report.nll_after == negative_log_likelihood(after, labels[rest])
    assert np.array_equal(report.bins_after.counts, reliability_bins(after, labels[rest]).counts)
    assert report.bins_before.expected_calibration_error == report.ece_before
    for interval, value in (
        (report.ece_before_interval, report.ece_before),
        (report.ece_after_interval, report.ece_after),
    ):
        assert interval.value == value
        assert interval.low <= value <= interval.high


def test_calibration_helps_on_real_logits(cifar10) -> None:
    report = paper_calibration(cifar10.logits, cifar10.labels)
    assert report.temperature > 1.2
    assert report.ece_after < report.ece_before / 2
    assert report.nll_after < report.nll_before
    assert report.ece_before_interval.low > report.ece_after


def test_the_seed_decides(cifar10) -> None:
    first, again, other = (
        paper_calibration(cifar10.logits, cifar10.labels, seed=seed, n_resamples=20) for seed in (1, 1, 2)
    )
    assert (first.temperature, first.ece_after_interval) == (again.temperature, again.ece_after_interval)
    assert first.temperature != other.temperature


def test_settings_arrive(cifar10) -> None:
    report = paper_calibration(cifar10.logits, cifar10.labels, fraction=0.5, n_bins=10, confidence=0.8, n_resamples=20)
    assert (report.n_calibration, len(report.bins_after.counts)) == (1500, 10)
    assert report.ece_after_interval.confidence == 0.8


def test_held_out_uses_one_part_and_measures_the_other(cifar10) -> None:
    logits, labels = cifar10.logits, cifar10.labels
    report = held_out_calibration(logits[:500], labels[:500], logits[500:], labels[500:], n_resamples=20)
    assert report.temperature == fit_temperature(logits[:500], labels[:500])
    assert (report.n_calibration, report.n_evaluation) == (500, 2500)
    with pytest.raises(ValueError, match="labels must be one class index per row"):
        held_out_calibration(logits[:500], labels[:499], logits[500:], labels[500:])


@pytest.mark.parametrize("fraction", [0.1, 0.2, 1 / 3, 0.5, 0.9])
@pytest.mark.parametrize("n_classes", [1, 3, 10])
def test_a_split_is_stratified_complete_and_of_the_right_size(fraction: float, n_classes: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels = rng.integers(n_classes, size=rng.integers(10, 80))
        chosen, rest = stratified_split(labels, fraction=fraction, rng=rng)
        assert sorted([*chosen, *rest]) == list(range(len(labels)))
        assert len(chosen) == round(fraction * len(labels))
        for k in range(n_classes):
            assert abs((labels[chosen] == k).sum() - fraction * (labels == k).sum()) < 1


def test_exact_shares_are_exact() -> None:
    labels = np.repeat(np.arange(7), 15)
    chosen, _ = stratified_split(labels, fraction=0.2)
    assert np.bincount(labels[chosen]).tolist() == [3] * 7
    hundreds = np.repeat(np.arange(7), 100)  # 0.29 · 100 is a bit less than 29 in binary
    assert np.bincount(hundreds[stratified_split(hundreds, fraction=0.29)[0]]).tolist() == [29] * 7


def test_equal_remainders_are_drawn_by_the_seed() -> None:
    """Ten classes of one sample: which two are chosen must not always be the same two."""
    seen = {tuple(stratified_split(np.arange(10), fraction=0.2, rng=seed)[0]) for seed in range(30)}
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("labels", "fraction", "says"),
    [
        ([0, 1], 0.2, "a fraction of 0.2 of 2 is 0"),
        ([], 0.2, "got dtype float64"),
        (np.zeros(0, dtype=int), 0.5, "of 0 is 0"),
        ([0, 1, 0, 1], 0.99, "is 4"),
        ([0, 1, 0, 1], 20, "fraction must lie strictly between 0 and 1; got 20"),
        ([0.5, 1.5], 0.5, "must be integers"),
        ([[0, 1], [1, 0]], 0.5, "got shape (2, 2)"),
        ([-1, 0, 1], 0.5, "got -1"),
    ],
)
def test_splits_that_cannot_be(labels, fraction: float, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # the message is compared below
        stratified_split(labels, fraction=fraction)
    assert says in str(caught.value)
