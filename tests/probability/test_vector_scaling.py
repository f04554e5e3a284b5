import numpy as np
import pytest

from esupcon.probability import (
    class_priors,
    expected_calibration_error,
    fit_temperature,
    fit_vector_scaling,
    log_softmax,
    negative_log_likelihood,
    softmax,
    stratified_split,
)


def penalised(logits, labels, weight, bias, ridge: float) -> float:
    """The objective, sample by sample, in the parameters that multiply raw logits."""
    temperature = fit_temperature(logits, labels)
    total = 0.0
    for z, y in zip(logits, labels, strict=True):
        total -= log_softmax((weight * z + bias)[None])[0, y]
    return total + ridge / 2 * (((weight * temperature - 1) ** 2).sum() + (bias**2).sum())


@pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
def test_no_neighbour_is_better(cifar10, ridge: float) -> None:
    logits, labels = cifar10.logits[:150].astype(np.float64), cifar10.labels[:150]
    found = fit_vector_scaling(logits, labels, ridge=ridge)
    best = penalised(logits, labels, found.weight, found.bias, ridge)
    rng = np.random.default_rng(0)
    for _ in range(30):
        weight = found.weight + 1e-3 * rng.normal(size=10)
        bias = found.bias + 1e-3 * rng.normal(size=10)
        assert penalised(logits, labels, weight, bias, ridge) > best


def test_undoes_a_bias_that_one_temperature_cannot(cifar10) -> None:
    tilt = np.linspace(-3, 3, 10)
    logits = cifar10.logits.astype(np.float64) + tilt
    fit, rest = stratified_split(cifar10.labels, fraction=0.5)
    scaling = fit_vector_scaling(logits[fit], cifar10.labels[fit])
    by_temperature = softmax(logits[rest], fit_temperature(logits[fit], cifar10.labels[fit]))
    by_vector = softmax(scaling.apply(logits[rest]))
    labels = cifar10.labels[rest]
    assert negative_log_likelihood(by_vector, labels) < negative_log_likelihood(by_temperature, labels) - 0.1
    assert expected_calibration_error(by_vector, labels) < 0.04
    assert np.abs(by_vector.mean(axis=0) - class_priors(labels, 10)).max() < 0.02
    assert np.corrcoef(scaling.bias / scaling.weight, tilt)[0, 1] < -0.9


def test_a_strong_ridge_is_temperature_scaling(cifar10) -> None:
    found = fit_vector_scaling(cifar10.logits, cifar10.labels, ridge=1e9)
    temperature = fit_temperature(cifar10.logits, cifar10.labels)
    np.testing.assert_allclose(found.weight, 1 / temperature, rtol=1e-4)
    np.testing.assert_allclose(found.bias, 0, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_separated_data_stays_finite(scale: float) -> None:
    labels = np.arange(12) % 3
    found = fit_vector_scaling(scale * np.eye(3)[labels], labels)
    assert np.isfinite(found.weight).all()
    assert np.isfinite(found.bias).all()
    assert (found.apply(scale * np.eye(3)).argmax(axis=1) == [0, 1, 2]).all()


def test_masked_classes_stay_masked_and_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(200, 3)), rng.integers(3, size=200)
    masked = np.hstack([logits, np.full((200, 1), -np.inf)])
    plain, padded = fit_vector_scaling(logits, labels), fit_vector_scaling(masked, labels)
    np.testing.assert_allclose(padded.weight[:3], plain.weight, rtol=1e-3, atol=1e-5)
    assert (padded.apply(masked)[:, 3] == -np.inf).all()


def test_refusals() -> None:
    with pytest.raises(ValueError, match="ridge must be positive"):
        fit_vector_scaling([[1.0, 0.0]], [0], ridge=0)
    with pytest.raises(ValueError, match=r"fitted on 2 classes; got logits of shape \(1, 3\)"):
        fit_vector_scaling([[1.0, 0.0]], [0]).apply([[1.0, 0.0, 2.0]])
    with pytest.raises(ValueError, match="has logit -inf"):
        fit_vector_scaling([[1.0, -np.inf]], [1])
