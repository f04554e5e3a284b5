import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize_scalar

from esupcon._split import stratified_split
from esupcon.probability import (
    Calibration,
    CalibrationFigures,
    Predictions,
    accuracy,
    adapt_to_priors,
    estimate_priors,
    expected_calibration_error,
    fit_calibration,
    fit_temperature,
    held_out_calibration,
    log_softmax,
    measure_for_shares,
    negative_log_likelihood,
    paper_calibration,
    reliability_bins,
    smoothed_temperature,
    softmax,
)


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def mean_nll(logits, labels, temperature: float) -> float:
    return float(-log_softmax(logits, temperature)[np.arange(len(labels)), labels].mean())


# fit_temperature


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 5.0])
def test_temperature_that_generated_the_labels_is_found(temperature: float) -> None:
    rng = np.random.default_rng(0)
    logits = 3.0 * rng.normal(size=(20_000, 5))
    labels = (rng.random((20_000, 1)) > np.cumsum(softmax(logits, temperature), axis=1)).sum(axis=1).clip(max=4)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.05)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_temperature_follows_the_scale_of_the_logits(cifar10, scale: float, offset: float) -> None:
    logits = cifar10.logits.astype(np.float64)
    expected = scale * fit_temperature(logits, cifar10.labels)
    assert fit_temperature(scale * (logits + offset), cifar10.labels) == pytest.approx(expected, rel=1e-6)
    extreme = scale * np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 4.0], [0.0, 5.0, 3.0]])
    assert fit_temperature(extreme, [0, 2, 1]) == pytest.approx(scale * 2.0 / 1000)  # every label ranked first
    assert fit_temperature(extreme, [2, 0, 0]) == pytest.approx(scale * 4.0 * 1000)  # logits point away


def test_constant_logits_keep_temperature_one() -> None:
    assert fit_temperature(np.full((5, 3), 7.0), [0, 1, 2, 0, 1]) == 1.0
    assert fit_temperature([[4.0, 4.0, -np.inf]], [1]) == 1.0


def test_rows_and_columns_without_information_do_not_change_the_temperature(cifar10) -> None:
    logits, labels = cifar10.logits[:400, :3].astype(float), cifar10.labels[:400] % 3
    expected = fit_temperature(logits, labels)
    constant_rows = np.vstack([logits, np.zeros((300, 3))])
    assert fit_temperature(constant_rows, np.append(labels, np.zeros(300, int))) == pytest.approx(expected, rel=1e-8)
    for stand_in in (-np.inf, -1e4, -1e9, float(np.finfo(np.float32).min)):
        masked = np.hstack([logits, np.full((400, 2), stand_in)])
        assert fit_temperature(masked, labels) == pytest.approx(expected, rel=1e-6)
    tied = fit_temperature(np.hstack([logits, logits * (1 + 1e-15)]), labels)
    assert tied == pytest.approx(fit_temperature(np.hstack([logits, logits]), labels), rel=1e-6)


def test_masked_label_is_refused() -> None:
    with pytest.raises(ValueError, match=r"logits of the labels must be finite; got -inf at row 1"):
        fit_temperature([[1.0, 2.0], [1.0, -np.inf]], [0, 1])


@st.composite
def logits_and_labels(draw):
    n, n_classes = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    scale = 10.0 ** draw(st.integers(-6, 6))
    values = st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, 0.0, 0.5, 1.0]))
    logits = scale * draw(hnp.arrays(np.float64, (n, n_classes), elements=values))
    return logits, draw(hnp.arrays(np.int64, n, elements=st.integers(0, n_classes - 1)))


@settings(deadline=None, max_examples=100)
@given(logits_and_labels())
def test_temperature_is_positive_and_no_other_in_the_interval_is_better(case) -> None:
    logits, labels = case
    found = fit_temperature(logits, labels)
    assert np.isfinite(found)
    assert found > 0
    nll = mean_nll(logits, labels, found)
    gaps = logits.max(axis=1, keepdims=True) - logits
    gaps[gaps < 1e-100] = 0.0  # as documented, a tie
    if not (gaps > 0).any():
        assert found == 1.0
        return
    smallest = np.median([row[row > 0].min() for row in gaps if (row > 0).any()]) / 1000
    largest = np.median([row.max() for row in gaps if (row > 0).any()]) * 1000
    for temperature in np.geomspace(smallest, largest, 60):
        assert nll <= mean_nll(logits, labels, temperature) + 1e-9 * max(1.0, nll)


# smoothed_temperature


def test_perfect_held_out_predictions_do_not_give_certainty() -> None:
    labels = np.arange(9) % 3
    logits = 5.0 * np.eye(3)[labels]
    assert fit_temperature(logits, labels) < 0.1
    # Nine correct and half a mistake.
    best = minimize_scalar(
        lambda t: -(9 * np.log(softmax(logits / t)[0, 0]) + np.log(softmax(logits / t)[0, 1]) / 2), bounds=(0.1, 50)
    ).x
    p = softmax(logits, smoothed_temperature(logits, labels))
    assert p[0, 0] == pytest.approx(softmax(logits, best)[0, 0], abs=1e-3)
    assert 0.9 < p[0, 0] < 0.97


def test_smoothed_temperature_of_few_samples_makes_calibration_no_worse_on_average(cifar10) -> None:
    """The plain rule, fitted on 16 samples, raises the NLL of the rest; the smoothed one must not."""
    rng = np.random.default_rng(0)
    change = {"plain": [], "smoothed": []}
    for _ in range(60):
        rows = rng.choice(len(cifar10), 16, replace=False)
        rest = np.setdiff1d(np.arange(len(cifar10)), rows)
        few = cifar10.logits[rows].astype(float), cifar10.labels[rows]
        others = cifar10.logits[rest].astype(float), cifar10.labels[rest]
        before = mean_nll(*others, 1.0)
        change["plain"].append(mean_nll(*others, fit_temperature(*few)) - before)
        change["smoothed"].append(mean_nll(*others, smoothed_temperature(*few)) - before)
    assert np.mean(change["smoothed"]) < 0 < np.mean(change["plain"])


# measured calibration


def test_paper_protocol_step_by_step(cifar10) -> None:
    figures = paper_calibration(cifar10, seed=5)
    rest, chosen = stratified_split(cifar10.labels, 0.2, 5)
    logits, labels = cifar10.logits.astype(np.float64), cifar10.labels
    assert np.bincount(labels[chosen]).tolist() == [round(n / 5) for n in np.bincount(labels)]
    assert (figures.protocol, figures.n_calibration, figures.n_evaluation) == ("paper", len(chosen), len(rest))
    assert figures.temperature == fit_temperature(logits[chosen], labels[chosen])
    for temperature, ece, nll, bins, (low, high) in (
        (1.0, figures.ece_before, figures.nll_before, figures.bins_before, figures.ece_before_interval),
        (figures.temperature, figures.ece_after, figures.nll_after, figures.bins_after, figures.ece_after_interval),
    ):
        p = softmax(logits[rest], temperature)
        assert ece == expected_calibration_error(p, labels[rest])
        assert nll == negative_log_likelihood(p, labels[rest])
        assert bins == reliability_bins(p, labels[rest])
        assert low <= ece <= high
    assert figures.temperature > 1.2
    assert figures.ece_after < figures.ece_before / 2
    assert figures.ece_before_interval[0] > figures.ece_after


def test_seed_decides_the_draw_and_small_test_sets_get_the_smoothed_temperature(cifar10) -> None:
    first, again, other = (paper_calibration(cifar10, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.temperature != other.temperature
    small = Predictions(cifar10.logits[:200], cifar10.labels[:200])
    _, chosen = stratified_split(small.labels, 0.2, 0)
    expected = smoothed_temperature(small.logits[chosen], small.labels[chosen])
    assert paper_calibration(small).temperature == expected


def test_held_out_calibration_fits_on_one_part_and_measures_on_the_other(cifar10) -> None:
    logits, labels = cifar10.logits, cifar10.labels
    held_out, test = Predictions(logits[:500], labels[:500]), Predictions(logits[500:], labels[500:])
    figures = held_out_calibration(held_out, test)
    assert figures.temperature == smoothed_temperature(logits[:500], labels[:500])
    assert (figures.protocol, figures.n_calibration, figures.n_evaluation) == ("held-out", 500, 2500)
    assert figures.ece_after == expected_calibration_error(test.probabilities(figures.temperature), test.labels)
    stored = json.loads(json.dumps(figures.model_dump(mode="json"), allow_nan=False))
    assert CalibrationFigures.model_validate(stored) == figures


# Calibration of a classifier

LOGITS = np.random.default_rng(0).normal(size=(40, 3))


def test_probabilities_are_softmax_at_the_temperature() -> None:
    np.testing.assert_allclose(Calibration(temperature=2.5).probabilities(LOGITS), softmax(LOGITS, 2.5), atol=1e-15)
    extreme = Calibration(temperature=1e-3).probabilities([[1e90, 0.0], [0.0, -np.inf]])
    np.testing.assert_array_equal(extreme, [[1, 0], [1, 0]])


@pytest.mark.parametrize("correction", [0.0, 0.5, 1.0])
def test_weights_and_priors_follow_bayes_rule_and_the_exported_bias(correction: float) -> None:
    weight, counts, target = np.array([1.0, 2.0, 0.5]), np.array([30, 10, 60]), np.array([0.2, 0.2, 0.6])
    calibration = Calibration(
        temperature=1.7, prior_correction=correction, class_weight=tuple(weight), class_counts=tuple(counts.tolist())
    )
    weighted = softmax(LOGITS / 1.7 + np.log(weight))
    np.testing.assert_allclose(calibration.probabilities(LOGITS), weighted, atol=1e-12)
    source = counts ** (1 - correction) * weight
    np.testing.assert_allclose(calibration.source_priors, source / source.sum())
    adapted = calibration.with_priors(target)
    expected = adapt_to_priors(weighted, source / source.sum(), target)
    np.testing.assert_allclose(adapted.probabilities(LOGITS), expected, atol=1e-12)
    np.testing.assert_allclose(softmax(LOGITS / 1.7 + adapted.bias(3)), expected, atol=1e-12)
    corrected = adapted.corrected(Predictions(LOGITS, [0] * len(LOGITS)))
    np.testing.assert_allclose(corrected.probabilities(1.7), expected, atol=1e-12)
    assert adapted.with_priors(None) == calibration


def gaussians(n: int, shares: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return log densities of four Gaussian classes at n points, and their classes, which have these shares."""
    centres = 1.5 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    y = rng.choice(4, size=n, p=shares)
    x = centres[y] + rng.normal(size=(n, 2))
    return -0.5 * ((x[:, None] - centres) ** 2).sum(axis=2), y


@pytest.mark.parametrize("correction", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("priors", ["balanced", (0.1, 0.1, 0.2, 0.6)])
def test_probabilities_are_true_for_the_stated_priors_whatever_training_corrected(correction, priors) -> None:
    """Logits with known posteriors, three times too large: temperature, then shift, gives the exact posteriors."""
    counts, rng = np.array([3000, 600, 300, 100]), np.random.default_rng(0)
    log_density, y = gaussians(20_000, counts / counts.sum(), rng)  # held out, with the shares of training
    logits = 3 * (log_density + (1 - correction) * np.log(counts))
    calibration = Calibration(class_counts=tuple(counts.tolist()), prior_correction=correction)
    calibration = calibration.with_priors(priors).fit(logits, y, how="held-out")
    assert calibration.temperature == pytest.approx(3, rel=0.05)
    target = np.full(4, 0.25) if priors == "balanced" else np.array(priors)
    new_density, new_y = gaussians(20_000, target, rng)
    new_logits = 3 * (new_density + (1 - correction) * np.log(counts))
    p, exact = calibration.probabilities(new_logits), softmax(new_density + np.log(target))
    np.testing.assert_allclose(p, exact, atol=0.03)
    assert expected_calibration_error(p, new_y) < 0.015
    # The same figures can be found from samples that have other shares.
    found, direct = measure_for_shares(calibration.probabilities(logits), y, target), (p, new_y)
    assert found.accuracy == pytest.approx(accuracy(*direct), abs=0.02)
    assert found.nll == pytest.approx(negative_log_likelihood(*direct), abs=0.04)
    assert found.ece < 0.03
    # Probabilities for the shares of training look miscalibrated on samples that are weighted to others.
    assert measure_for_shares(softmax(log_density + np.log(counts)), y, target).ece > 3 * found.ece


def test_priors_by_name_label_and_their_mistakes() -> None:
    calibration = Calibration(class_counts=(30, 10, 0), prior_correction=1.0)
    assert calibration.with_priors("balanced").target_priors == (0.5, 0.5, 0.0)
    assert calibration.with_priors({"b": 0.8, "a": 0.2}, ["a", "b", "c"]).target_priors == (0.2, 0.8, 0.0)
    assert calibration.with_priors("balanced").with_priors("training") == calibration
    for wrong, message in (
        ("equal", "training, balanced"),
        ({"z": 1.0}, "one for 'z'"),
        ({"a": 0.4}, "sum to 1"),
    ):
        with pytest.raises(ValueError, match=f"^priors must .*{message}"):
            calibration.with_priors(wrong, ["a", "b", "c"])


def test_figures_for_shares_weight_every_class_by_its_share() -> None:
    p, y = np.array([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6], [0.9, 0.1]]), [0, 0, 1, 1]
    found = measure_for_shares(p, y, [0.2, 0.8])
    assert found.accuracy == pytest.approx(0.2 + 0.4)
    assert found.nll == pytest.approx(-0.2 * np.log(0.8) - 0.4 * np.log(0.6) - 0.4 * np.log(0.1))
    assert found.ece == pytest.approx(0.2 * 0.2 + 0.4 * 0.4 + 0.4 * 0.9)
    assert measure_for_shares([[0.5, 0.5], [1.0, 0.0]], [0, 1], [1.0, 0.0]).nll == pytest.approx(np.log(2))
    assert measure_for_shares([[0.5, 0.5], [1.0, 0.0]], [0, 1], [0.9, 0.1]).nll is None


def test_adapting_to_samples_uses_the_estimated_priors() -> None:
    calibration = Calibration(class_counts=(10, 10, 10))
    expected = estimate_priors(softmax(LOGITS), np.full(3, 1 / 3))
    np.testing.assert_allclose(calibration.adapt(LOGITS).target_priors, expected)
    np.testing.assert_allclose(calibration.adapt(LOGITS).adapt(LOGITS).target_priors, expected)
    assert calibration.adapt([[50.0, 0.0, 0.0]]).target_priors[0] == pytest.approx(0.5)  # and three imagined rows


def test_classes_without_training_samples_keep_prior_zero() -> None:
    calibration = Calibration(class_counts=(10, 10, 0))
    adapted = calibration.adapt(LOGITS)
    assert adapted.target_priors[2] == 0.0
    assert (adapted.probabilities(LOGITS)[:, 2] == 0.0).all()
    with pytest.raises(ValueError, match=r"must be 0 for classes without training samples; got 0\.1 at class 2"):
        calibration.with_priors([0.5, 0.4, 0.1])
    with pytest.raises(ValueError, match="class counts of training are unknown"):
        Calibration().with_priors([0.5, 0.5])


def test_fit_keeps_weights_and_priors_and_records_its_samples(cifar10) -> None:
    before = Calibration(class_counts=(1,) * 10, target_priors=(0.1,) * 10)
    after = before.fit(cifar10.logits, cifar10.labels, how="held-out")
    assert after.temperature == smoothed_temperature(cifar10.logits, cifar10.labels)
    assert (after.how, after.n, after.target_priors) == ("held-out", 3000, before.target_priors)
    assert Calibration.model_validate_json(after.model_dump_json()) == after


# fit_calibration: what training and the estimator share


def overconfident(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of three classes, and logits whose temperature is 2."""
    logits = rng.normal(size=(n, 3))
    return (softmax(logits).cumsum(1) < rng.random((n, 1))).sum(1).clip(max=2), 2 * logits


def test_without_a_held_out_part_every_sample_is_predicted_by_a_model_that_did_not_see_it() -> None:
    labels, logits = overconfident(150, np.random.default_rng(1))
    labels[0], logits = 3, np.hstack([logits, np.zeros((150, 1))])  # the only sample of its class: always in training
    seen = np.zeros(150, int)

    def of_others(part: np.ndarray) -> np.ndarray:
        seen[part] += 1
        assert set(labels[~part]) == {0, 1, 2, 3}
        return logits[part]

    found = fit_calibration(Calibration(), labels, None, of_others, generator())
    assert seen.tolist() == [0] + [1] * 149
    assert (found.how, found.n) == ("cross-fitted", 149)
    assert found.temperature == smoothed_temperature(logits[1:], labels[1:])
    assert 1 < found.temperature < 4


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_temperature_for_right_labels_is_found_from_wrong_ones(rate: float) -> None:
    """Labels are drawn from softmax(z), so that T = 1 is right; then a share of them moves to another class."""
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(20_000, 5))
    right = (softmax(z).cumsum(axis=1) > rng.random((len(z), 1))).argmax(axis=1)
    wrong = rng.random(len(z)) < rate
    given = np.where(wrong, (right + rng.integers(1, 5, len(z))) % 5, right)
    assert smoothed_temperature(z, given) > 1.5
    assert smoothed_temperature(z, given, noise_rate=rate) == pytest.approx(1.0, abs=0.05)
    calibration = Calibration(noise_rate=rate)
    assert calibration.fit(z, given, how="held-out").temperature == pytest.approx(1.0, abs=0.05)
    assert calibration.fit(z, right, how="given").temperature == pytest.approx(1.0, abs=0.05), "the user's are right"
