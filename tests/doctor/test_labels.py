"""check_after: no finding for clean labels, and one if a tenth or more are wrong or one class only is predicted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esupcon.data.scenarios import label_noise
from esupcon.doctor import check_after
from esupcon.probability import Predictions

FIXTURE = Path(__file__).parent.parent / "probability" / "fixtures" / "cifar10_logits.npz"


@cache
def out_of_fold(noise_rate: float, kind: str = "symmetric") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of digits, their labels, and which of these are wrong."""
    x, y = load_digits(return_X_y=True)
    labels, folds = noisy(y, noise_rate, kind), StratifiedKFold(3, shuffle=True, random_state=0)
    model = LogisticRegression(C=0.2, max_iter=1000)
    return cross_val_predict(model, x / 16, labels, cv=folds, method="predict_proba"), labels, labels != y


def noisy(y: np.ndarray, rate: float, kind: Any = "symmetric", seed: int = 0) -> np.ndarray:
    return label_noise(y, rate, np.random.default_rng(seed), kind)


@pytest.mark.parametrize(("rate", "kind"), [(0.1, "symmetric"), (0.4, "symmetric"), (0.1, "pair")])
def test_wrong_labels_are_estimated_and_named_and_clean_ones_are_not(monkeypatch: Any, rate: float, kind: str) -> None:
    monkeypatch.setattr("esupcon.doctor.data.N_SUSPECTS", 20)
    assert check_after(*out_of_fold(0.0)[:2], classes=range(10)) == []
    probabilities, labels, wrong = out_of_fold(rate, kind)
    (finding,) = check_after(probabilities, labels, classes=[f"digit {k}" for k in range(10)])
    assert (finding.code, finding.severity) == ("suspect-labels", "warning")
    estimate = float(finding.message.split("about ")[1].split(" %")[0]) / 100
    assert rate / 2 < estimate < 2 * rate
    shown = [int(part.split(":")[0]) for part in finding.message.split("sample ")[1:]]
    assert len(shown) == 20
    assert wrong[shown].mean() >= 0.9
    first = shown[0]
    given_name, other = labels[first], probabilities[first].argmax()
    assert f"sample {first}: given 'digit {given_name}'" in finding.message
    assert f"looks like 'digit {other}'" in finding.message


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_errors_of_a_network_on_clean_labels_are_not_taken_for_noise(temperature: float) -> None:
    predictions = Predictions.load(FIXTURE)
    probabilities = predictions.probabilities(temperature)
    assert check_after(probabilities, predictions.labels) == []
    for rate in (0.1, 0.2, 0.4):
        assert check_after(probabilities, noisy(predictions.labels, rate)) != []


@pytest.mark.parametrize("seed", range(3))
def test_wrong_labels_of_two_classes(seed: int) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    for rate in (0.0, 0.15):
        labels = noisy(y, rate, seed=seed)
        found = check_after(cross_val_predict(model, x, labels, cv=3, method="predict_proba"), labels)
        assert bool(found) == (rate > 0)


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("sharpness", [1.0, 100.0])
def test_random_predictions_give_no_finding(n_classes: int, sharpness: float) -> None:
    rng = np.random.default_rng(0)
    logits = sharpness * rng.normal(size=(2000, n_classes))
    p = np.exp(logits - logits.max(1, keepdims=True))
    assert check_after(p / p.sum(1, keepdims=True), rng.integers(0, n_classes, 2000)) == []


def test_hard_but_clean_samples_are_not_taken_for_noise() -> None:
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.4, 1, 5000)
    predicted = rng.integers(0, 10, 5000)
    wrong = rng.random(5000) > np.minimum(sure, 0.92)
    p = np.repeat((1 - sure)[:, None] / 9, 10, axis=1)
    p[np.arange(5000), predicted] = sure
    labels = np.where(wrong, (predicted + rng.integers(1, 10, 5000)) % 10, predicted)
    assert wrong[sure > 0.88].mean() > 0.07
    assert check_after(p, labels) == []


def test_few_contradictions_among_few_samples_are_no_evidence() -> None:
    p = np.tile([[0.9, 0.1], [0.1, 0.9]], (25, 1))
    labels = np.arange(50) % 2
    p[[0, 1]], labels[[0, 1]] = [[0.95, 0.05], [0.05, 0.95]], (1, 0)  # among the most confident
    assert check_after(p, labels) == []
    many = np.tile(labels, 20)
    assert check_after(np.tile(p, (20, 1)), many) != []


def test_predicting_one_class_only_is_a_finding_and_reported_once() -> None:
    labels = np.repeat([0, 1], [40, 20])
    p = np.tile([0.7, 0.3], (60, 1))
    (finding,) = check_after(p, labels, classes=["cat", "dog"])
    assert (finding.code, finding.severity) == ("one-prediction", "warning")
    assert "all 60 held-out samples are predicted as 'cat', also the 20 of other classes" in finding.message
    assert check_after(p, labels, already_reported=[finding]) == []
    assert check_after(p[:44], labels[:44]) == []  # four samples of other classes can be chance
    assert check_after(p[:40], labels[:40]) == []
