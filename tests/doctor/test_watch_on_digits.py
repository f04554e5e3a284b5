"""Real training of small networks on digits: healthy runs have no findings, and unhealthy ones the right ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from torch import nn

from esupcon.spec import TrainSpec
from esupcon.training import TrainData, TrainingFailed, fit

IMAGES, LABELS = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(LABELS))
X, Y = (IMAGES[ORDER] * 255 / 16).astype(np.uint8).reshape(-1, 1, 8, 8), LABELS[ORDER]


def train(*, wrong_labels: float = 0.0, **settings: Any) -> tuple[list[str], float]:
    """Return the findings, as they are logged, and the accuracy on images that were not trained on."""
    rng, y = np.random.default_rng(0), Y.copy()
    chosen = rng.choice(1408, int(wrong_labels * 1408), replace=False)
    y[chosen] = rng.integers(0, 10, len(chosen))
    data = TrainData(X[:1408], y[:1408], 10, X[1408:], y[1408:])
    given = {"epochs": 10, "batch_size": 128, "lr": 0.1, "precision": "32", "augmentation": "digits", **settings}
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    said: list[str] = []
    try:
        classifier = fit(TrainSpec(**given), data, encoder=encoder, log=said.append).classifier
        accuracy = float((classifier.logits(data.x_held).argmax(axis=1) == data.y_held).mean())
    except TrainingFailed:
        accuracy = 0.0
    return [line for line in said if re.match(r"(note|warning|error) \[", line)], accuracy


HEALTHY: list[tuple[dict[str, Any], float]] = [
    *(({"method": method}, 0.85) for method in ("esupcon", "supcon_tt", "spce", "ce")),
    *(({"warmup": 0.0}, 0.85), ({"temperature": 0.2}, 0.85), ({"lr": 0.02}, 0.5), ({"epochs": 2}, 0.2)),
    ({"method": "ce", "temperature": 50.0, "epochs": 3}, 0.5),  # a linear head has no temperature
    ({"wrong_labels": 0.4}, 0.5),
]


@pytest.mark.parametrize(("settings", "accuracy"), HEALTHY, ids=str)
def test_a_healthy_run_has_no_findings(settings: dict[str, Any], accuracy: float) -> None:
    found, reached = train(**settings)
    assert found == []
    assert reached > accuracy


#: Settings, and for each finding its code and some words of it.
UNHEALTHY: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"method": "spce", "lr": 100.0, "warmup": 0.0}, {"lr-too-high": "learning rate to 10,"}),
    (
        {"method": "ce", "lr": 100.0, "warmup": 0.0},
        {"lr-too-high": "within 2 steps", "loss-not-finite": "precision 32"},
    ),
    ({"temperature": 1e-3}, {"temperature-too-low": "to about 0.16", "collapse": "Raise the temperature (now 0.001)"}),
    ({"temperature": 0.01}, {"collapse": "Raise the temperature (now 0.01) to 0.16"}),
    ({"temperature": 50.0, "epochs": 6}, {"temperature-too-high": "Lower the temperature"}),
    *(({"method": method, "lr": 1e-6}, {"stuck": "of 1e-05 instead of 1e-06"}) for method in ("esupcon", "ce")),
]


@pytest.mark.parametrize(("settings", "expected"), UNHEALTHY, ids=str)
def test_an_unhealthy_run_is_explained(settings: dict[str, Any], expected: dict[str, str]) -> None:
    found, _ = train(**settings)
    assert [re.findall(r"\[(.*?)\]", line)[0] for line in found] == list(expected)
    for line, words in zip(found, expected.values(), strict=True):
        assert words in line
