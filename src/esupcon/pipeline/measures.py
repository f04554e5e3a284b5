"""Shim: moved to esupcon.probability.metrics; to be deleted."""

from collections.abc import Sequence
from typing import Any

from esupcon.probability.metrics import measure as _measure
from esupcon.probability.predictions import Predictions

N_BINS = 15


def measure(predictions: Predictions, classes: Sequence[str], *, temperature: float = 1.0) -> dict[str, Any]:
    """Return the figures as the dictionary that version 0.1 stored."""
    figures = _measure(predictions, classes, temperature=temperature).model_dump(mode="json")
    for entry in figures["per_class"]:
        entry["class"] = entry.pop("name")
    return figures
