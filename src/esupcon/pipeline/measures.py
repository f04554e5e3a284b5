"""The figures by which a classifier is reported, from stored predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from esupcon.probability import Interval, Predictions, bootstrap_intervals, confusion_matrix

N_BINS = 15
_REPORTED = {
    "accuracy": "accuracy",
    "ece": "expected_calibration_error",
    "nll": "negative_log_likelihood",
    "brier": "brier_score",
}


def measure(predictions: Predictions, classes: Sequence[str], *, temperature: float = 1.0) -> dict[str, Any]:
    """Accuracy, calibration error (15 bins), log likelihood and Brier score with 95 % intervals, and every class.

    Plain numbers, ready for JSON; what is infinite or undefined is None.
    """
    p = predictions.probabilities(temperature)
    intervals = bootstrap_intervals(p, predictions.labels, _REPORTED.values(), n_bins=N_BINS)  # type: ignore[arg-type]  # names, checked there
    figures: dict[str, Any] = {"n": len(predictions), "temperature": float(temperature)}
    for name, metric in _REPORTED.items():
        interval: Interval = intervals[metric]  # type: ignore[index]
        figures[name] = _number(interval.value)
        figures[f"{name}_interval"] = [_number(interval.low), _number(interval.high)]
    confusion = confusion_matrix(p, predictions.labels)
    figures["per_class"] = [
        _class_figures(name, confusion, k, p[predictions.labels == k, k]) for k, name in enumerate(classes)
    ]
    return figures


def _class_figures(name: str, confusion: np.ndarray[Any, Any], k: int, own: np.ndarray[Any, Any]) -> dict[str, Any]:
    n, predicted, right = int(confusion[k].sum()), int(confusion[:, k].sum()), int(confusion[k, k])
    return {
        "class": name,
        "n": n,
        "accuracy": right / n if n else None,
        "precision": right / predicted if predicted else None,
        "probability": float(own.mean()) if n else None,
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
