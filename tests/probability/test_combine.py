import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from esupcon.probability import (
    accuracy,
    combine_posteriors,
    expected_calibration_error,
    fit_combination,
    fit_temperature,
    fit_weights,
    log_softmax,
    negative_log_likelihood,
    softmax,
    stratified_split,
)


def tables(seed: int, n_tables: int, n: int, n_classes: int):
    return list(np.random.default_rng(seed).dirichlet(np.ones(n_classes), size=(n_tables, n)))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 6), st.integers(2, 5))
def test_rules_equal_their_definitions(seed: int, n_tables: int, n: int, n_classes: int) -> None:
    posteriors = tables(seed, n_tables, n, n_classes)
    rng = np.random.default_rng(seed)
    w = rng.random(n_tables) + 0.1
    priors = rng.dirichlet(np.full(n_classes, 3.0))
    by_sum = combine_posteriors(posteriors, "sum", weights=w)
    by_product = combine_posteriors(posteriors, "product", weights=w, priors=priors)
    for i in range(n):
        mixed = [sum(w[r] * posteriors[r][i, k] for r in range(n_tables)) / w.sum() for k in range(n_classes)]
        np.testing.assert_allclose(by_sum[i], mixed, atol=1e-12)
        product = [
            priors[k] ** (1 - w.sum()) * np.prod([posteriors[r][i, k] ** w[r] for r in range(n_tables)])
            for k in range(n_classes)
        ]
        np.testing.assert_allclose(by_product[i], np.array(product) / sum(product), atol=1e-9)


@pytest.mark.parametrize("rule", ["product", "sum"])
def test_one_classifier_is_left_as_it_is(rule) -> None:
    (p,) = tables(0, 1, 20, 4)
    np.testing.assert_allclose(combine_posteriors([p], rule), p, atol=1e-12)
    np.testing.assert_allclose(combine_posteriors([p, p], rule, weights=[0.5, 0.5]), p, atol=1e-12)
    np.testing.assert_allclose(combine_posteriors([p, tables(1, 1, 20, 4)[0]], rule, weights=[1, 0]), p, atol=1e-12)


def two_sources(seed: int, n: int):
    """Two independent Gaussian measurements of the same class, each with its exact posterior, and the joint one."""
    rng = np.random.default_rng(seed)
    priors = np.array([0.6, 0.3, 0.1])
    y = rng.choice(3, size=n, p=priors)
    logs = [-0.5 * (y[:, None] + rng.normal(size=(n, 1)) - np.arange(3)) ** 2 / width for width in (1.0, 1.0)]
    return [softmax(log + np.log(priors)) for log in logs], softmax(sum(logs) + np.log(priors)), y, priors


def test_the_product_of_independent_evidence_is_the_joint_posterior() -> None:
    posteriors, joint, y, priors = two_sources(0, 4000)
    product = combine_posteriors(posteriors, "product", priors=priors)
    np.testing.assert_allclose(product, joint, atol=1e-10)
    assert expected_calibration_error(product, y) < 0.03
    for p in posteriors:
        assert accuracy(product, y) > accuracy(p, y)
    prior_counted_twice = combine_posteriors(posteriors, "product")
    assert negative_log_likelihood(product, y) < negative_log_likelihood(prior_counted_twice, y)


def test_long_products_do_not_underflow() -> None:
    p = np.array([[1e-9, 1 - 1e-9], [0.4, 0.6]])
    combined = combine_posteriors([p] * 200, "product")
    np.testing.assert_allclose(combined.sum(axis=1), 1.0)
    fitted = fit_combination([p] * 200, [0, 0])
    assert np.isfinite(fitted.apply([p] * 200)).all()


def test_a_zero_is_a_veto_unless_lifted() -> None:
    certain, other = np.array([[1.0, 0.0, 0.0]]), np.array([[0.2, 0.5, 0.3]])
    np.testing.assert_allclose(combine_posteriors([certain, other]), [[1.0, 0.0, 0.0]])
    opposed = np.array([[0.0, 1.0, 0.0]])
    with pytest.raises(ValueError, match=r"product of row 0 is zero for every class"):
        combine_posteriors([certain, opposed])
    np.testing.assert_allclose(combine_posteriors([certain, opposed], floor=1e-12), [[0.5, 0.5, 0.0]], atol=1e-9)
    np.testing.assert_allclose(combine_posteriors([certain, opposed], "sum"), [[0.5, 0.5, 0.0]])
    np.testing.assert_allclose(combine_posteriors([certain, opposed], weights=[1, 0]), certain)


@pytest.fixture(scope="module")
def weak_and_strong(cifar10):
    """The real classifier, and itself through two kinds of noise, each calibrated: unequal, dependent opinions."""
    rng = np.random.default_rng(0)
    logits, labels = cifar10.logits.astype(np.float64), cifar10.labels
    fit, rest = stratified_split(labels, fraction=0.5)
    noisy = [logits + scale * rng.normal(size=logits.shape) for scale in (0.5, 3.0, 6.0)]
    posteriors = [softmax(z, fit_temperature(z[fit], labels[fit])) for z in noisy]
    return [p[fit] for p in posteriors], labels[fit], [p[rest] for p in posteriors], labels[rest]


@pytest.mark.parametrize("rule", ["product", "sum"])
@pytest.mark.parametrize("weights", ["equal", "fitted", [3.0, 2.0, 1.0]])
def test_calibration_comes_after_combination(weak_and_strong, rule, weights) -> None:
    fit, fit_labels, rest, labels = weak_and_strong
    combination = fit_combination(fit, fit_labels, rule, weights=weights)
    if weights == [3.0, 2.0, 1.0]:
        np.testing.assert_allclose(combination.weights, [1 / 2, 1 / 3, 1 / 6] if rule == "sum" else weights)
    p = combination.apply(rest)
    raw = combine_posteriors(rest, rule, weights=combination.weights, floor=1e-12)
    np.testing.assert_array_equal(p.argmax(axis=1), raw.argmax(axis=1))
    assert negative_log_likelihood(p, labels) <= negative_log_likelihood(raw, labels) + 0.01
    assert expected_calibration_error(p, labels) < 0.04
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    logs = np.log(combine_posteriors(fit, rule, weights=combination.weights, floor=1e-12))
    assert combination.temperature == pytest.approx(fit_temperature(logs, fit_labels), rel=1e-6)


def test_calibrated_parts_do_not_make_a_calibrated_whole(weak_and_strong) -> None:
    """The product of dependent opinions is overconfident, the mean of diverse ones underconfident."""
    fit, fit_labels, rest, labels = weak_and_strong
    for p in rest:
        assert expected_calibration_error(p, labels) < 0.04
    for rule in ("product", "sum"):
        assert expected_calibration_error(combine_posteriors(rest, rule), labels) > 0.1
    assert fit_combination(fit, fit_labels, "product").temperature > 1.5
    assert fit_combination(fit, fit_labels, "sum").temperature < 0.7


@pytest.mark.parametrize("rule", ["product", "sum"])
def test_fitted_weights_prefer_the_strong_and_beat_equal_ones(weak_and_strong, rule) -> None:
    fit, fit_labels, rest, labels = weak_and_strong
    w = fit_weights(fit, fit_labels, rule)
    assert w[0] > w[1] > w[2] >= 0
    fitted, equal = (fit_combination(fit, fit_labels, rule, weights=kind) for kind in ("fitted", "equal"))
    assert negative_log_likelihood(fitted.apply(rest), labels) < negative_log_likelihood(equal.apply(rest), labels)


@pytest.mark.parametrize("rule", ["product", "sum"])
def test_no_neighbouring_weights_are_better(weak_and_strong, rule) -> None:
    fit, fit_labels, _, _ = weak_and_strong
    w = fit_weights(fit, fit_labels, rule)

    def cost(weights):
        return negative_log_likelihood(combine_posteriors(fit, rule, weights=weights, floor=1e-12), fit_labels)

    best = cost(w)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert cost(np.maximum(w + 0.02 * rng.normal(size=3), 0.0)) >= best - 1e-7


def test_the_exponent_of_one_classifier_is_its_inverse_temperature(weak_and_strong) -> None:
    fit, labels, _, _ = weak_and_strong
    (w,) = fit_weights(fit[:1], labels, "product")
    logs = np.log(np.maximum(fit[0], 1e-12))
    direct = minimize_scalar(
        lambda t: -log_softmax(logs, np.exp(t))[np.arange(len(labels)), labels].mean(), bounds=(-3, 3), method="bounded"
    )
    assert w == pytest.approx(np.exp(-direct.x), rel=1e-3)


def test_separated_data_gives_finite_weights() -> None:
    p = np.array([[0.9, 0.1], [0.2, 0.8]])
    for rule in ("product", "sum"):
        assert np.isfinite(fit_weights([p, p], [0, 1], rule)).all()
        assert np.isfinite(fit_combination([p, p], [0, 1], rule, weights="fitted").apply([p, p])).all()


def test_priors_are_part_of_a_fitted_combination() -> None:
    posteriors, joint, y, priors = two_sources(1, 6000)
    combination = fit_combination(posteriors, y, "product", priors=priors)
    assert combination.temperature == pytest.approx(1.0, abs=0.1)
    np.testing.assert_allclose(combination.apply(posteriors), joint, atol=0.05)
    np.testing.assert_allclose(fit_weights(posteriors, y, "product", priors=priors), [1.0, 1.0], atol=0.15)


P = np.array([[0.5, 0.5]])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: combine_posteriors([]), "at least one classifier; got none"),
        (lambda: combine_posteriors([P, np.array([[0.2, 0.3, 0.5]])]), "got shapes [(1, 2), (1, 3)]"),
        (lambda: combine_posteriors([P, 2 * P]), "posteriors[1] must sum to 1"),
        (lambda: combine_posteriors([P], "mean"), "rule must be 'product' or 'sum'; got 'mean'"),
        (lambda: fit_weights([P], [0], "mean"), "rule must be 'product' or 'sum'; got 'mean'"),
        (lambda: combine_posteriors([P, P], weights=[1.0]), "weights must be 2 non-negative numbers"),
        (lambda: combine_posteriors([P, P], weights=[1.0, -1.0]), "weights must be 2"),
        (lambda: combine_posteriors([P, P], weights=[0.0, 0.0]), "not all zero"),
        (lambda: combine_posteriors([P, P], weights=[np.nan, 1.0]), "weights must be 2"),
        (lambda: combine_posteriors([P], "sum", priors=[0.5, 0.5]), "priors belong to the product rule"),
        (lambda: combine_posteriors([P], priors=[1.0, 0.0]), "priors must be positive in a product; class 1 has 0"),
        (lambda: combine_posteriors([P], floor=0.7), "floor must lie in [0, 0.5); got 0.7"),
        (lambda: fit_combination([P], [0], weights="best"), "'equal', 'fitted' or one number per classifier"),
        (lambda: fit_combination([P], [0]).apply([P, P]), "fitted on 1 classifiers; got 2 tables"),
        (lambda: fit_weights([[[1.0, 0.0]]], [1], "sum", floor=0.0), "label of row 0 probability 0"),
        (lambda: fit_weights([[[1.0, 0.0]]], [1], "product", floor=0.0), "needs positive probabilities"),
        (lambda: fit_weights([[[0.9, 0.1]]], [1], "product"), "every fitted weight is 0"),
    ],
)
def test_refusals(call, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # the message is compared below
        call()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
