"""The value of a stage's terms on one batch of outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from esupcon import functional as F
from esupcon.functional import Anchors, Average
from esupcon.methods import LossName, Stage, Term


@dataclass(frozen=True)
class LossSettings:
    """What the terms are taken with."""

    temperature: float
    prototype_weight: float
    spce_average: Average
    n_classes: int


@dataclass(frozen=True)
class BatchOutputs:
    """What the terms read. In a distributed run `outputs` are those of the whole batch and `anchors` those of here.

    `outputs` holds, by name, tensors with a row for each view of each image.
    """

    outputs: dict[str, Tensor]
    labels: Tensor
    prototypes: Tensor | None
    anchors: Anchors = None


def stage_loss(stage: Stage, batch: BatchOutputs, settings: LossSettings) -> Tensor:
    """sum over terms of weight * loss, restricted to the batch's anchors; anchors add up to the whole batch."""
    return sum_of(term_values(stage, batch, settings))


def term_values(stage: Stage, batch: BatchOutputs, settings: LossSettings) -> dict[Term, Tensor]:
    """weight * loss of each term."""
    values: dict[Term, Tensor] = {}
    for term in stage.terms:
        z = batch.outputs[term.on]
        value = term.weight * _LOSSES[term.loss](z.detach() if term.detach else z, batch, settings)
        values[term] = values[term] + value if term in values else value
    return values


def sum_of(values: Mapping[Term, Tensor], stage: Stage | None = None) -> Tensor:
    """Of all values, or of those of a stage's terms, in their order."""
    first, *others = [value for term, value in values.items() if stage is None or term in stage.terms]
    for other in others:
        first = first + other
    return first


def _cross_entropy(logits: Tensor, batch: BatchOutputs, _: LossSettings) -> Tensor:
    rows = slice(None) if batch.anchors is None else batch.anchors
    return torch.nn.functional.cross_entropy(
        logits[rows].float() if logits.dtype != torch.float64 else logits[rows], batch.labels[rows], reduction="sum"
    ) / len(logits)


def _supcon(z: Tensor, batch: BatchOutputs, settings: LossSettings) -> Tensor:
    return F.supcon_loss(z, batch.labels, temperature=settings.temperature, anchors=batch.anchors)


def _spce(z: Tensor, batch: BatchOutputs, settings: LossSettings) -> Tensor:
    return F.spce_loss(
        z,
        batch.labels,
        temperature=settings.temperature,
        average=settings.spce_average,
        n_classes=settings.n_classes,
        anchors=batch.anchors,
    )


def _tightness(z: Tensor, batch: BatchOutputs, _: LossSettings) -> Tensor:
    rows = slice(None) if batch.anchors is None else batch.anchors
    local = z[rows]
    return F.tightness_loss(local, batch.labels[rows], _prototypes(batch)) * (len(local) / len(z))


def _esupcon(z: Tensor, batch: BatchOutputs, settings: LossSettings) -> Tensor:
    return F.esupcon_loss(
        z,
        batch.labels,
        _prototypes(batch),
        temperature=settings.temperature,
        prototype_weight=settings.prototype_weight,
        anchors=batch.anchors,
    )


def _prototypes(batch: BatchOutputs) -> Tensor:
    assert batch.prototypes is not None, "this loss needs a head with prototypes"
    return batch.prototypes


LossFunction = Callable[[Tensor, BatchOutputs, LossSettings], Tensor]
_LOSSES: dict[LossName, LossFunction] = {
    "ce": _cross_entropy,
    "supcon": _supcon,
    "spce": _spce,
    "tightness": _tightness,
    "esupcon": _esupcon,
}


def register_loss(name: LossName, function: LossFunction) -> None:
    """Make an own loss usable in the terms of methods: `function(z, batch, settings)`, z the term's output.

    It must be a mean over the rows of z, restricted to `batch.anchors` where these are given, for runs in several
    processes. Another function under a known name is refused.
    """
    known = _LOSSES.setdefault(name, function)
    if known is not function and getattr(known, "__qualname__", 0) != getattr(function, "__qualname__", 1):
        raise ValueError(f"there is another loss {name!r} already. Give yours a name of its own.")
    _LOSSES[name] = function


def check_losses(stages: tuple[Stage, ...]) -> None:
    """A ValueError for a term whose loss nobody knows."""
    unknown = [term.loss for stage in stages for term in stage.terms if term.loss not in _LOSSES]
    if unknown:
        raise ValueError(f"a loss must be one of {', '.join(_LOSSES)}, or registered; got {', '.join(unknown)}.")
