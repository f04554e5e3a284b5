import numpy as np
import pytest

from esupcon.probability import coverage, fit_conformal, mean_set_size, softmax


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("miscoverage", [0.05, 0.1, 0.3])
def test_coverage_over_many_splits_of_real_logits_is_as_promised(cifar10, score, miscoverage: float) -> None:
    """Mean coverage lies in [1 - a, 1 - a + 1/(n + 1)], for any classifier."""
    p, y = softmax(cifar10.logits), cifar10.labels
    rng = np.random.default_rng(0)
    n = 199
    covered = []
    for _ in range(300):
        order = rng.permutation(len(p))
        sets = fit_conformal(p[order[:n]], y[order[:n]], miscoverage=miscoverage, score=score, rng=rng)
        new = order[n : n + 500]
        covered.append(coverage(sets.predict(p[new], rng=rng), y[new]))
    error = 4 * np.std(covered) / np.sqrt(len(covered))
    assert 1 - miscoverage - error <= np.mean(covered) <= 1 - miscoverage + 1 / (n + 1) + error


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_coverage_holds_for_random_posteriors(score) -> None:
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(200):
        p, y = rng.dirichlet(np.ones(4), size=400), rng.integers(4, size=400)
        sets = fit_conformal(p[:99], y[:99], score=score, rng=rng)
        covered.append(coverage(sets.predict(p[99:], rng=rng), y[99:]))
    assert 0.9 - 0.01 <= np.mean(covered) <= 0.91 + 0.01


def test_threshold_equals_a_computation_by_hand() -> None:
    p = np.array([[1 - s, s] for s in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)])
    y = np.zeros(9, dtype=int)
    fitted = fit_conformal(p, y, miscoverage=0.2)  # rank ceil(10 · 0.8) = 8
    assert fitted.threshold == pytest.approx(0.4)
    assert fit_conformal(p, y, miscoverage=0.1).threshold == pytest.approx(0.45)
    assert fitted.predict([[0.6, 0.4], [0.5, 0.5], [0.9, 0.1], [0.3, 0.7]]).tolist() == [
        [True, False],
        [False, False],
        [True, False],
        [False, True],
    ]


def test_too_few_samples_give_all_classes() -> None:
    fitted = fit_conformal([[0.9, 0.1]] * 8, [0] * 8, miscoverage=0.1)
    assert fitted.threshold == np.inf
    assert fitted.predict([[1.0, 0.0]]).all()
    assert np.isfinite(fit_conformal([[0.9, 0.1]] * 9, [0] * 9, miscoverage=0.1).threshold)


def test_a_label_at_the_threshold_is_covered() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=19)
    y = rng.integers(3, size=19)
    for score in ("lac", "aps"):
        fitted = fit_conformal(p, y, miscoverage=0.1, score=score, rng=5)
        assert coverage(fitted.predict(p, rng=5), y) == pytest.approx(18 / 19)


def test_aps_scores_equal_a_computation_by_hand() -> None:
    """Classes in falling order add up: with the random part u, 0.5(1-u), 0.5 + 0.3(1-u), 0.8 + 0.2(1-u)."""
    p = np.array([[0.3, 0.5, 0.2]])
    u = np.random.default_rng(9).random()
    for label, score in ((1, 0.5 * (1 - u)), (0, 0.5 + 0.3 * (1 - u)), (2, 0.8 + 0.2 * (1 - u))):
        fitted = fit_conformal(p, [label], miscoverage=0.5, score="aps", rng=9)
        assert fitted.threshold == pytest.approx(score)


def test_aps_sets_grow_with_difficulty(cifar10) -> None:
    p, y = softmax(cifar10.logits, 1.45), cifar10.labels
    fitted = fit_conformal(p[:1000], y[:1000], score="aps")
    sizes = fitted.predict(p[1000:]).sum(axis=1)
    sure = p[1000:].max(axis=1)
    assert sizes[sure < 0.5].mean() > 2 * sizes[sure > 0.95].mean()


def test_lac_gives_smaller_sets_than_aps(cifar10) -> None:
    p, y = softmax(cifar10.logits, 1.45), cifar10.labels
    sizes = [mean_set_size(fit_conformal(p[:1000], y[:1000], score=s).predict(p[1000:])) for s in ("lac", "aps")]
    assert 1.0 < sizes[0] < sizes[1] < 10.0


def test_seed_decides_the_random_parts(cifar10) -> None:
    p, y = softmax(cifar10.logits[:400]), cifar10.labels[:400]
    thresholds = [fit_conformal(p, y, score="aps", rng=seed).threshold for seed in (1, 1, 2)]
    assert thresholds[0] == thresholds[1] != thresholds[2]


def test_impossible_input_is_refused() -> None:
    fitted = fit_conformal([[0.9, 0.1]] * 20, [0] * 20)
    with pytest.raises(ValueError, match=r"fitted on 2 classes; got probabilities of shape \(1, 3\)"):
        fitted.predict([[0.2, 0.3, 0.5]])
    with pytest.raises(ValueError, match="miscoverage must lie strictly between 0 and 1; got 10"):
        fit_conformal([[0.9, 0.1]], [0], miscoverage=10)
    with pytest.raises(ValueError, match="score must be 'lac' or 'aps'; got 'raps'"):
        fit_conformal([[0.9, 0.1]], [0], score="raps")
    with pytest.raises(ValueError, match="sets must be a non-empty"):
        mean_set_size([[0.9, 0.1]])
    with pytest.raises(ValueError, match="sets must be a non-empty"):
        coverage(np.zeros((0, 2), dtype=bool), [])
    with pytest.raises(ValueError, match="labels must be one class index per row"):
        coverage([[True, False]], [0, 1])
