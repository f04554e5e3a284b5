import numpy as np
import pytest
from scipy.optimize import minimize

from esupcon._split import stratified_split
from esupcon.probability import (
    accuracy,
    adapt_to_priors,
    estimate_priors,
    fit_conformal,
    fit_temperature,
    softmax,
)

UNIFORM = np.full(10, 0.1)  # of the training set behind the stored logits


def shifted(labels, candidates, priors, n: int, rng):
    """Rows drawn so that their classes follow `priors`."""
    classes = rng.choice(len(priors), size=n, p=priors)
    return np.array([rng.choice(candidates[labels[candidates] == k]) for k in classes])


@pytest.mark.parametrize("seed", range(2))
def test_shift_of_real_logits_is_estimated_and_corrected(cifar10, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rest, calibration = stratified_split(cifar10.labels, 0.4, seed)
    temperature = fit_temperature(cifar10.logits[calibration], cifar10.labels[calibration])
    priors = rng.permutation(0.65 ** np.arange(10))
    rows = shifted(cifar10.labels, rest, priors / priors.sum(), 2000, rng)
    p, y = softmax(cifar10.logits[rows], temperature), cifar10.labels[rows]
    truth = np.bincount(y, minlength=10) / 2000

    estimate = estimate_priors(p, UNIFORM)
    error = np.abs(estimate - truth).sum()
    counted = np.abs(np.bincount(p.argmax(axis=1), minlength=10) / 2000 - truth).sum()
    assert error < 0.12  # the shift itself is some 0.85 in the same measure
    assert error < 0.7 * counted

    adapted = adapt_to_priors(p, UNIFORM, estimate)
    assert accuracy(adapted, y) > accuracy(p, y) + 0.02
    assert accuracy(adapt_to_priors(p, UNIFORM, truth), y) > accuracy(p, y) + 0.02


def gaussian_posteriors(rng, n: int, source, target):
    """Exact posteriors under `source` of points drawn under `target`, from three unit Gaussians."""
    centres = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    y = rng.choice(3, size=n, p=target)
    x = centres[y] + rng.normal(size=(n, 2))
    log_density = -0.5 * ((x[:, None] - centres) ** 2).sum(axis=2)
    return softmax(log_density + np.log(source)), softmax(log_density + np.log(target)), y


def test_adaptation_is_bayes_rule() -> None:
    rng = np.random.default_rng(0)
    source, target = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.1, 0.8])
    before, after, _ = gaussian_posteriors(rng, 200, source, target)
    np.testing.assert_allclose(adapt_to_priors(before, source, target), after, atol=1e-12)
    np.testing.assert_allclose(adapt_to_priors(before, source, source), before, atol=1e-12)


def test_estimate_is_the_maximum_that_another_optimiser_finds() -> None:
    source = np.array([0.5, 0.3, 0.2])
    p, _, _ = gaussian_posteriors(np.random.default_rng(2), 300, source, [0.2, 0.5, 0.3])

    def cost(free):
        priors = softmax(np.append(free, 0.0)[None])[0]
        return -np.log((p / source) @ priors).sum() - 3 * source @ np.log(priors)

    found = minimize(cost, np.zeros(2), options={"gtol": 1e-8})
    np.testing.assert_allclose(estimate_priors(p, source), softmax(np.append(found.x, 0.0)[None])[0], atol=1e-4)


def test_class_without_training_samples_keeps_prior_zero() -> None:
    p = np.array([[0.5, 0.5, 0.0], [0.8, 0.2, 0.0]])
    assert estimate_priors(p, [0.6, 0.4, 0.0])[2] == 0.0
    with pytest.raises(ValueError, match=r"must be 0 where source_priors are; got 0\.1 at class 2"):
        adapt_to_priors(p, [0.6, 0.4, 0.0], [0.5, 0.4, 0.1])
    with pytest.raises(ValueError, match=r"got 0\.1 at row 0, column 2"):
        estimate_priors([[0.5, 0.4, 0.1]], [0.6, 0.4, 0.0])


@pytest.mark.parametrize("priors", [[0.5, 0.6], [1.5, -0.5], [np.nan, 1.0], [1.0], [[0.5, 0.5]]])
def test_invalid_priors_are_refused(priors) -> None:
    for call in (
        lambda: adapt_to_priors([[0.5, 0.5]], priors, [0.5, 0.5]),
        lambda: adapt_to_priors([[0.5, 0.5]], [0.5, 0.5], priors),
        lambda: estimate_priors([[0.5, 0.5]], priors),
    ):
        with pytest.raises(ValueError, match=r"(source|target)_priors must be"):
            call()


def test_row_whose_classes_cannot_occur_is_refused() -> None:
    with pytest.raises(ValueError, match="whose target prior is not 0; got 0 at row 1"):
        adapt_to_priors([[0.5, 0.5], [0.0, 1.0]], [0.5, 0.5], [1.0, 0.0])


# --- Conformal sets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("miscoverage", [0.05, 0.1, 0.3])
def test_coverage_over_many_splits_of_real_logits_is_as_promised(cifar10, miscoverage: float) -> None:
    """Mean coverage lies in [1 - a, 1 - a + 1/(n + 1)], for any classifier."""
    p, y = softmax(cifar10.logits), cifar10.labels
    rng, n, covered = np.random.default_rng(0), 199, []
    for _ in range(200):
        order = rng.permutation(len(p))
        sets = fit_conformal(p[order[:n]], y[order[:n]], miscoverage=miscoverage)
        new = order[n : n + 500]
        covered.append(sets.predict(p[new])[np.arange(500), y[new]].mean())
    error = 4 * np.std(covered) / np.sqrt(len(covered))
    assert 1 - miscoverage - error <= np.mean(covered) <= 1 - miscoverage + 1 / (n + 1) + error


def test_threshold_equals_a_computation_by_hand() -> None:
    p = np.array([[1 - s, s] for s in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)])
    y = np.zeros(9, dtype=int)
    fitted = fit_conformal(p, y, miscoverage=0.2)  # rank ceil(10 · 0.8) = 8
    assert fitted.threshold == 0.6
    assert fit_conformal(p, y, miscoverage=0.1).threshold == 0.55
    sets = fitted.predict([[0.6, 0.4], [0.5, 0.5], [0.9, 0.1], [0.3, 0.7]])
    assert sets.tolist() == [[True, False], [False, False], [True, False], [False, True]]
    assert fitted.predict(p)[:, 0].tolist() == [True] * 8 + [False]  # the label at the threshold is covered


def test_too_few_samples_give_all_classes() -> None:
    assert fit_conformal([[0.9, 0.1]] * 8, [0] * 8, miscoverage=0.1).predict([[1.0, 0.0]]).all()
    assert fit_conformal([[0.9, 0.1]] * 9, [0] * 9, miscoverage=0.1).threshold == 0.9


def test_impossible_input_is_refused() -> None:
    for call in (
        lambda: fit_conformal([[0.9, 0.1]] * 20, [0] * 20).predict([[0.2, 0.3, 0.5]]),
        lambda: fit_conformal([[0.9, 0.1]], [0], miscoverage=10),
    ):
        with pytest.raises(ValueError, match=r"must .*; got"):
            call()
