import numpy as np
import pytest

from esupcon.probability import coverage, fit_conformal, softmax


@pytest.mark.parametrize("miscoverage", [0.05, 0.1, 0.3])
def test_coverage_over_many_splits_of_real_logits_is_as_promised(cifar10, miscoverage: float) -> None:
    """Mean coverage lies in [1 - a, 1 - a + 1/(n + 1)], for any classifier."""
    p, y = softmax(cifar10.logits), cifar10.labels
    rng, n, covered = np.random.default_rng(0), 199, []
    for _ in range(300):
        order = rng.permutation(len(p))
        sets = fit_conformal(p[order[:n]], y[order[:n]], miscoverage=miscoverage)
        new = order[n : n + 500]
        covered.append(coverage(sets.predict(p[new]), y[new]))
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
    assert coverage(fitted.predict(p), y) == pytest.approx(8 / 9)  # the label at the threshold is covered


def test_too_few_samples_give_all_classes() -> None:
    assert fit_conformal([[0.9, 0.1]] * 8, [0] * 8, miscoverage=0.1).predict([[1.0, 0.0]]).all()
    assert fit_conformal([[0.9, 0.1]] * 9, [0] * 9, miscoverage=0.1).threshold == 0.9


def test_impossible_input_is_refused() -> None:
    for call in (
        lambda: fit_conformal([[0.9, 0.1]] * 20, [0] * 20).predict([[0.2, 0.3, 0.5]]),
        lambda: fit_conformal([[0.9, 0.1]], [0], miscoverage=10),
        lambda: coverage(np.array([[True, False]]), [0, 1]),
    ):
        with pytest.raises(ValueError, match=r"must .*; got"):
            call()
