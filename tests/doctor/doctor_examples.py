"""One finding of every code, each from data or a run with that problem."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from esupcon.doctor import Finding, Watch, check_after, check_data

LABELS = np.arange(240) % 10
POINT = np.ones((240, 16)) + 1e-3 * np.random.default_rng(0).normal(size=(240, 16))
CLUSTERS = np.eye(16)[LABELS] + 0.1 * np.random.default_rng(0).normal(size=(240, 16))
ANIMALS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay")


def examples() -> dict[str, Finding]:
    found = [*_of_data(), *_of_runs(), *_of_probabilities()]
    return {finding.code: finding for finding in reversed(found)}


def _of_data() -> list[Finding]:
    rng = np.random.default_rng(0)
    y, y_test = np.repeat(np.arange(10), 120), np.arange(300) % 10
    x = rng.integers(0, 256, (1200, 3, 8, 8), dtype=np.uint8)
    x_test = rng.integers(0, 256, (300, 3, 8, 8), dtype=np.uint8)
    x_test[[5, 8, 9]] = x[[17, 2, 44]]
    x[311] = x[310 - 200]
    found = _check(x, y, x_test, y_test, prototypes=10, prototype_weight=0.0, batch_size=256)
    found += _check(np.where(rng.random((100, 4)) < 0.02, np.nan, 1.0), np.arange(100) % 2)
    sizes = [400, 100, 50, 20, 10, 8, 6, 4, 2, 0]
    tail = np.repeat(np.arange(10), sizes)
    found += _check(rng.normal(size=(600, 4)), tail, rng.normal(size=(90, 4)), y_test[:90], n_classes=10)
    found += _check(rng.normal(size=(50, 4)), np.zeros(50, int))
    return found


def _check(x: Any, y: Any, x_test: Any = None, y_test: Any = None, **changes: Any) -> list[Finding]:
    values = {"batch_size": 64, "method_uses_positives": True, "prototypes": None, "n_classes": int(y.max()) + 1}
    values |= changes
    names = ANIMALS[: values["n_classes"]] if values["n_classes"] <= 10 else None
    return check_data(x, y, x_test=x_test, y_test=y_test, classes=names, **values)


def _of_runs() -> list[Finding]:
    found = []
    for losses, embedding, accuracy, changes in (
        (np.full(400, math.log(255)), POINT, 0.1, {}),
        (np.full(400, 5.2), CLUSTERS, 0.12, {}),
        ([5.5, *[6.6] * 30, math.nan], CLUSTERS, 0.1, {}),
        ([180.0], CLUSTERS, 0.1, {"temperature": 0.001}),
        ([5.5], CLUSTERS, 0.1, {"temperature": 2.0}),
        (np.linspace(5.5, 4, 100), CLUSTERS, 0.71, {}),
        (np.linspace(5.5, 4, 20), CLUSTERS, 0.1, {"n_steps": 20, "class_counts": [24] * 10}),
    ):
        found += _watched(list(losses), embedding, accuracy, changes)
    return found


def _watched(losses: list[float], embedding: Any, accuracy: float, changes: dict[str, Any]) -> list[Finding]:
    values = {"losses": {"supcon": 1.0}, "n_batch": 128, "n_classes": 10, "n_steps": 1000, "temperature": 0.1}
    watch, found = Watch(**{**values, **changes}), []
    for i, loss in enumerate(losses):
        found += watch.step(float(loss), 0.5)
        if i % 20 == 19:
            predicted = LABELS if accuracy > 0.7 else np.full(240, 3)
            logits = 10 * np.eye(10)[predicted] if accuracy > 0.7 or watch.n_steps == 20 else None
            found += watch.epoch(i // 20, float(loss), accuracy, embedding, LABELS, logits=logits)
    return found


def _of_probabilities() -> list[Finding]:
    rng = np.random.default_rng(0)
    y = np.arange(1000) % 10
    logits = 6 * np.eye(10)[y] + rng.normal(size=(1000, 10))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wrong = rng.choice(1000, 120, replace=False)
    labels = y.copy()
    labels[wrong] = (y[wrong] + 1 + rng.integers(0, 9, 120)) % 10
    return check_after(p, labels, classes=ANIMALS, n_show=2)
