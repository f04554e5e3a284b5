"""Shim: moved to esupcon.functional; to be deleted. The doctor must not import torch: check there."""

from __future__ import annotations

import math
from numbers import Real

from esupcon.functional import check_choice, check_embeddings, check_positive, check_prototypes

__all__ = [
    "check_choice",
    "check_embeddings",
    "check_positive",
    "check_prototypes",
    "check_temperature",
    "check_weight",
]


def check_temperature(temperature: float) -> float:
    return check_positive("temperature", temperature)


def check_weight(name: str, value: float) -> float:
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number of at least 0; got {value!r}.")
    return float(value)
