import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize_scalar

from esupcon.probability import fit_temperature, log_softmax, softmax


def mean_nll(logits, labels, temperature: float) -> float:
    return float(-log_softmax(logits, temperature)[np.arange(len(labels)), labels].mean())


def drawn(n: int, n_classes: int, temperature: float, seed: int = 0):
    """Logits of spread 3 and labels that follow softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.normal(size=(n, n_classes))
    cumulative = np.cumsum(softmax(logits, temperature), axis=1)
    return logits, (rng.random((n, 1)) > cumulative).sum(axis=1).clip(max=n_classes - 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 5.0])
def test_finds_the_temperature_that_made_the_labels(temperature: float) -> None:
    logits, labels = drawn(20_000, 5, temperature)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.05)


def test_agrees_with_a_direct_minimisation_on_real_logits(cifar10) -> None:
    found = fit_temperature(cifar10.logits, cifar10.labels)
    direct = minimize_scalar(
        lambda log_t: mean_nll(cifar10.logits, cifar10.labels, np.exp(log_t)),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert found == pytest.approx(np.exp(direct.x), rel=1e-6)
    assert 1.2 < found < 1.8  # an overconfident network


def test_agrees_with_scikit_learn(cifar10) -> None:
    calibration = pytest.importorskip("sklearn.calibration")
    sklearn = pytest.importorskip("sklearn")
    if tuple(int(part) for part in sklearn.__version__.split(".")[:2]) < (1, 8):
        pytest.skip("scikit-learn calibrates by temperature from 1.8 on")
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.frozen import FrozenEstimator

    class Logits(ClassifierMixin, BaseEstimator):
        def fit(self, X, y):
            self.classes_ = np.unique(y)
            return self

        def decision_function(self, X):
            return X

        def predict(self, X):
            return self.classes_[X.argmax(axis=1)]

    logits = cifar10.logits.astype(np.float64)
    frozen = FrozenEstimator(Logits().fit(logits, cifar10.labels))
    peer = calibration.CalibratedClassifierCV(frozen, method="temperature", cv=2, ensemble=False)
    peer.fit(logits, cifar10.labels)
    ours = softmax(logits, fit_temperature(logits, cifar10.labels))
    np.testing.assert_allclose(ours, peer.predict_proba(logits), atol=2e-4)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_follows_the_scale_of_the_logits(cifar10, scale: float, offset: float) -> None:
    logits = cifar10.logits.astype(np.float64)
    moved = scale * (logits + offset)
    assert fit_temperature(moved, cifar10.labels) == pytest.approx(
        scale * fit_temperature(logits, cifar10.labels), rel=1e-6
    )


def test_converges_on_unscaled_cosines() -> None:
    rng = np.random.default_rng(1)
    prototypes = np.eye(10)
    labels = rng.integers(10, size=2000)
    z = prototypes[labels] + 0.35 * rng.normal(size=(2000, 10))
    cosines = z / np.linalg.norm(z, axis=1, keepdims=True)
    found = fit_temperature(cosines, labels)
    assert 0.02 < found < 0.5
    for other in (0.9, 0.99, 1.01, 1.1):
        assert mean_nll(cosines, labels, found) < mean_nll(cosines, labels, other * found)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_separated_data_gives_the_lower_bound(scale: float) -> None:
    logits = scale * np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 4.0], [0.0, 5.0, 3.0]])
    assert fit_temperature(logits, [0, 2, 1]) == pytest.approx(scale * 2.0 / 1000)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_logits_that_point_away_give_the_upper_bound(scale: float) -> None:
    logits = scale * np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 4.0], [0.0, 5.0, 3.0]])
    assert fit_temperature(logits, [2, 0, 0]) == pytest.approx(scale * 4.0 * 1000)


def test_one_sample() -> None:
    assert fit_temperature([[2.0, 0.0]], [0]) == pytest.approx(2e-3)
    assert fit_temperature([[2.0, 0.0]], [1]) == pytest.approx(2e3)


def test_constant_logits_keep_temperature_one() -> None:
    assert fit_temperature(np.full((5, 3), 7.0), [0, 1, 2, 0, 1]) == 1.0
    assert fit_temperature([[4.0, 4.0, -np.inf]], [1]) == 1.0


def test_constant_rows_do_not_move_the_others() -> None:
    logits, labels = drawn(500, 4, 2.0)
    padded = np.vstack([logits, np.zeros((400, 4))])
    assert fit_temperature(padded, np.append(labels, np.zeros(400, dtype=int))) == pytest.approx(
        fit_temperature(logits, labels), rel=1e-8
    )


def test_a_class_without_samples() -> None:
    logits, labels = drawn(3000, 4, 2.0)
    present = labels != 3
    found = fit_temperature(logits[present], labels[present])
    grid = np.exp(np.linspace(-4, 6, 2001))
    best = min(mean_nll(logits[present], labels[present], t) for t in grid)
    assert mean_nll(logits[present], labels[present], found) <= best + 1e-12


def test_masked_classes_are_as_if_absent() -> None:
    logits, labels = drawn(400, 3, 2.0)
    masked = np.hstack([logits, np.full((400, 2), -np.inf)])
    assert fit_temperature(masked, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-9)


@pytest.mark.parametrize("stand_in", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_large_negative_stand_ins_for_a_mask_do_no_harm(stand_in: float) -> None:
    logits, labels = drawn(400, 3, 2.0)
    padded = np.hstack([logits, np.full((400, 4), stand_in)])
    assert fit_temperature(padded, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-6)


def test_classes_tied_up_to_rounding_do_no_harm() -> None:
    logits, labels = drawn(400, 3, 2.0)
    doubled = np.hstack([logits, logits * (1 + 1e-15)])
    found = fit_temperature(doubled, labels)
    direct = fit_temperature(np.hstack([logits, logits]), labels)
    assert found == pytest.approx(direct, rel=1e-6)


def test_a_masked_label_is_refused() -> None:
    with pytest.raises(ValueError, match=r"label 1 of row 1 has logit -inf"):
        fit_temperature([[1.0, 2.0], [1.0, -np.inf]], [0, 1])


@st.composite
def logits_and_labels(draw):
    n, n_classes = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    scale = 10.0 ** draw(st.integers(-6, 6))
    values = st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, 0.0, 0.5, 1.0]))
    logits = scale * draw(hnp.arrays(np.float64, (n, n_classes), elements=values))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, n_classes - 1)))
    return logits, labels


@settings(deadline=None, max_examples=200)
@given(logits_and_labels())
def test_always_finite_positive_and_nowhere_beaten_nearby(case) -> None:
    logits, labels = case
    found = fit_temperature(logits, labels)
    assert np.isfinite(found)
    assert found > 0
    below = mean_nll(logits, labels, found)
    gaps = logits.max(axis=1, keepdims=True) - logits
    gaps[gaps < 1e-100] = 0.0  # as documented, a tie
    if not (gaps > 0).any():
        assert found == 1.0
        return
    smallest = np.median([row[row > 0].min() for row in gaps if (row > 0).any()]) / 1000
    largest = np.median([row.max() for row in gaps if (row > 0).any()]) * 1000
    for temperature in np.geomspace(smallest, largest, 60):
        assert below <= mean_nll(logits, labels, temperature) + 1e-9 * max(1.0, below)
