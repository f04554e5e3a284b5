"""What the losses accept. Each message says what was expected, what came, and what to do."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor


def check_embeddings(z: Tensor, *, check_finite: bool = False) -> Tensor:
    """A non-empty float matrix; half precision is raised to float32, in which the losses are computed."""
    if z.ndim != 2:
        remedy = " Put views below each other: z.flatten(0, 1)." if z.ndim == 3 else ""
        raise ValueError(f"z must have two dimensions (samples, dim); got shape {tuple(z.shape)}.{remedy}")
    if not z.is_floating_point():
        raise ValueError(f"z must hold floating-point embeddings; got {z.dtype}. Pass z.float().")
    if z.numel() == 0:
        raise ValueError(f"z must hold at least one sample and one dimension; got shape {tuple(z.shape)}.")
    if check_finite:
        bad = int((~z.isfinite()).any(1).sum())
        if bad:
            raise ValueError(
                f"z must be finite; {bad} of {len(z)} rows hold NaN or inf. "
                "Lower the learning rate, or look for the first layer that gives such values."
            )
    return z if z.dtype == torch.float64 else z.float()


def check_labels(labels: Tensor, n: int, *, n_classes: int | None = None) -> Tensor:
    """One integer label >= 0 (and < n_classes) for each of n samples, as int64."""
    if labels.ndim != 1 or len(labels) != n:
        remedy = ""
        if labels.ndim == 1 and len(labels) and n % len(labels) == 0:
            remedy = f" With {n // len(labels)} views of each sample pass labels.repeat({n // len(labels)})."
        raise ValueError(
            f"labels must hold one label for each of the {n} rows of z; got shape {tuple(labels.shape)}.{remedy}"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels must be integers; got {labels.dtype}. Pass labels.long().")
    labels = labels.long()
    lowest, highest = (int(value) for value in labels.aminmax())
    if lowest < 0:
        raise ValueError(f"labels must not be negative; the lowest is {lowest}. Leave unlabelled samples out.")
    if n_classes is not None and highest >= n_classes:
        raise ValueError(
            f"labels must be below the number of classes, {n_classes}; the highest is {highest}. "
            "Number the classes from 0, or pass a prototype for every class."
        )
    return labels


def check_prototypes(prototypes: Tensor, dim: int) -> Tensor:
    if prototypes.ndim != 2 or len(prototypes) == 0 or prototypes.shape[1] != dim:
        raise ValueError(
            f"prototypes must have shape (classes, {dim}), as wide as z; got {tuple(prototypes.shape)}. "
            "Prototypes live in the space of the embedding they classify."
        )
    if not prototypes.is_floating_point():
        raise ValueError(f"prototypes must be floating-point; got {prototypes.dtype}. Pass prototypes.float().")
    return prototypes if prototypes.dtype == torch.float64 else prototypes.float()


def check_temperature(temperature: float) -> float:
    if type(temperature) is float and 0 < temperature < math.inf:  # the hot path
        return temperature
    if isinstance(temperature, Tensor):
        raise ValueError(  # noqa: TRY004 - one error type at the public edge
            "temperature must be a number; got a tensor, to which no gradient would flow. Pass float(temperature)."
        )
    return check_positive("temperature", temperature)


def check_positive(name: str, value: float) -> float:
    if not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a finite number above 0; got {value!r}.")
    return float(value)


def check_weight(name: str, value: float) -> float:
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number of at least 0; got {value!r}.")
    return float(value)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value
