"""Training through the estimator: methods, determinism, weights, going on, stopping early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from estimator_data import blobs, digit_images, quick
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score

from esupcon.methods import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str) -> None:
    X, y = blobs()
    classifier = quick(method=method, epochs=40).fit(X, y)
    assert classifier.score(X, y) > 0.9
    assert (classifier.prototypes_ is None) == (METHODS[method].head == "linear")
    if classifier.prototypes_ is not None:
        assert classifier.prototypes_.shape == (3, classifier.transform(X).shape[1])
        np.testing.assert_allclose(np.linalg.norm(classifier.prototypes_, axis=1), 1)


def test_equal_seeds_give_equal_probabilities_and_leave_global_randomness_alone() -> None:
    X, y = blobs(60)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = quick(calibrate=True).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(quick(calibrate=True).fit(X, y).predict_proba(X), first)
    assert torch.equal(torch.get_rng_state(), torch_before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)
    assert not np.array_equal(quick(calibrate=True, random_state=1).fit(X, y).predict_proba(X), first)


def test_probabilities_are_the_calibrated_softmax_of_cosines() -> None:
    X, y = blobs()
    classifier = quick(calibrate=True).fit(X, y)
    z = classifier.transform(X).astype(np.float64)
    cosines = z / np.linalg.norm(z, axis=1, keepdims=True) @ classifier.prototypes_.T
    weights = np.exp(cosines / classifier.temperature / classifier.calibration_temperature_)
    np.testing.assert_allclose(classifier.predict_proba(X), weights / weights.sum(1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), classifier.predict_proba(X))


def test_a_module_of_the_users_is_started_from_and_not_changed() -> None:
    X, y = blobs()
    module = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    classifier = quick(encoder=module).fit(X, y)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert classifier.transform(X).shape == (90, 16)
    assert classifier.score(X, y) > 0.9
    trained = classifier.network_.encoder.module.state_dict()
    assert any(not torch.equal(trained[name], value) for name, value in before.items())


def test_identity_keeps_embeddings_and_learns_prototypes() -> None:
    X, y = blobs()
    classifier = quick(encoder="identity", lr=0.1).fit(X, y)
    np.testing.assert_allclose(classifier.transform(X), X.astype(np.float32))
    assert classifier.score(X, y) > 0.9


def test_balanced_drawing_helps_the_rare_class() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (190, 2)), rng.normal(1.3, 1, (10, 2))])
    y = np.repeat([0, 1], [190, 10])
    test = np.concatenate([rng.normal(0, 1, (500, 2)), rng.normal(1.3, 1, (500, 2))])
    truth = np.repeat([0, 1], 500)
    plain, balanced = (quick(class_weight=w, epochs=20).fit(X, y) for w in (None, "balanced"))
    gain = recall_score(truth, balanced.predict(test)) - recall_score(truth, plain.predict(test))
    assert gain > 0.05
    np.testing.assert_allclose(plain.priors_, [0.95, 0.05])
    np.testing.assert_allclose(balanced.priors_, [0.5, 0.5])


def test_class_weights_multiply_posteriors() -> None:
    X, y = blobs(centers=2)
    plain, weighted = quick().fit(X, y), quick(class_weight={1: 4.0}).fit(X, y)
    odds = [p[:, 1] / p[:, 0] for p in (plain.predict_proba(X), weighted.predict_proba(X))]
    np.testing.assert_allclose(odds[1], 4 * odds[0])
    np.testing.assert_allclose(weighted.priors_, [0.2, 0.8])
    for wrong in ({7: 1.0}, {1: 0.0}, {1: np.inf}):
        with pytest.raises(ValueError, match="class_weight"):
            quick(class_weight=wrong).fit(X, y)


def test_warm_start_goes_on() -> None:
    X, y = blobs()
    classifier = quick(warm_start=True, epochs=5).fit(X, y)
    first = classifier.history_[-1]["loss"]
    again = classifier.fit(X, y).history_[0]["loss"]
    fresh = quick(epochs=5).fit(X, y).history_[0]["loss"]
    assert again < fresh and again < first * 1.5
    with pytest.raises(ValueError, match="warm_start can only be used where"):
        classifier.fit(X, y + 1)
    with pytest.raises(ValueError, match="method and encoder it began with"):
        classifier.set_params(method="ce").fit(X, y)


def test_learning_by_instalments() -> None:
    X, y = load_digits(return_X_y=True)
    classifier = quick()
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        classifier.partial_fit(X[:50], y[:50])
    for start in range(0, 1400, 100):
        classifier.partial_fit(X[start : start + 100], y[start : start + 100], classes=np.arange(10))
    assert classifier.score(X[1400:], y[1400:]) > 0.75
    assert classifier.n_iter_ == 14
    np.testing.assert_allclose(classifier.form_.mean, X[:1400].mean(axis=0), atol=1e-9)
    with pytest.raises(ValueError, match="is not the same as on last call to partial_fit"):
        classifier.partial_fit(X[:9], y[:9], classes=[1, 2])
    with pytest.raises(ValueError, match="not one of the 10 classes"):
        classifier.partial_fit(X[:2], [1, 11])
    with pytest.raises(ValueError, match="needs the embeddings of the training samples"):
        classifier.explain(X[:2])
    assert classifier.partial_fit(X[:1], y[:1]).ood_score(X[:3]).shape == (3,)


def test_early_stopping_keeps_the_best() -> None:
    X, y = blobs(120)
    classifier = quick(early_stopping=True, patience=2, epochs=200, validation_fraction=0.25).fit(X, y)
    assert classifier.n_iter_ < 200
    accuracies = [record["held_out_accuracy"] for record in classifier.history_]
    assert accuracies.index(max(accuracies)) == len(accuracies) - 3


def test_verbose_shows_progress_and_silence_is_kept(capfd) -> None:
    X, y = blobs(30)
    quick(epochs=2).fit(X, y)
    assert capfd.readouterr() == ("", "")
    quick(epochs=2, verbose=1).fit(X, y)
    assert "ESupCon" in capfd.readouterr().err


def test_small_images_learn() -> None:
    images, y = digit_images(400)
    classifier = quick(encoder="resnet10-w16", epochs=4, batch_size=64).fit(images[:300], y[:300])
    assert classifier.score(images[300:], y[300:]) > 0.7
    assert classifier.transform(images[:2]).dtype == np.float32


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epochs": 0}, "The 'epochs' parameter of ContrastiveClassifier must be an int in the range"),
        ({"method": "supcom"}, "The 'method' parameter of ContrastiveClassifier must be a str among"),
        ({"temperature": -1.0}, "The 'temperature' parameter"),
        ({"calibrate": "yes"}, "The 'calibrate' parameter"),
        ({"validation_fraction": 1.0}, "The 'validation_fraction' parameter"),
        ({"encoder": "resnet"}, "unknown encoder 'resnet'"),
        ({"augmentation": "simclr"}, "for images"),
        ({"temperature": float("inf")}, "temperature"),
    ],
)
def test_wrong_parameters_are_named_when_fitting(parameters, message: str) -> None:
    X, y = blobs(30)
    with pytest.raises(ValueError, match=message):
        quick(**parameters).fit(X, y)


def test_sample_weights_are_refused_aloud() -> None:
    X, y = blobs(30)
    with pytest.raises(TypeError, match="sample_weight"):
        quick().fit(X, y, sample_weight=np.ones(30))


def test_a_method_registered_after_the_import_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = blobs(60)
    with pytest.raises(ValueError, match="'method' parameter"):
        quick(method="late").fit(X, y)
    monkeypatch.setitem(METHODS, "late", replace(METHODS["esupcon"], key="late"))
    assert quick(method="late").fit(X, y).predict_proba(X).shape == (len(X), 3)
