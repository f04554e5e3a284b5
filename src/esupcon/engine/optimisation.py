"""Optimiser, parameter groups and the schedule of the learning rate."""

from __future__ import annotations

import math

from torch import nn, optim

from esupcon.engine.spec import TrainSpec
from esupcon.heads import PrototypeHead
from esupcon.methods import Stage
from esupcon.models import Network


def build_optimizer(network: Network, stage: Stage, spec: TrainSpec, lr: float) -> optim.Optimizer:
    """One group of weights that decay, one of those that do not, and one for prototypes with a rate of their own.

    Decay is for weights whose size matters: norms, biases and prototypes (which enter by direction only) have none.
    """
    decaying: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    prototypes: list[nn.Parameter] = []
    for part in stage.trains:
        module = getattr(network, part)
        for parameter in module.parameters():
            if isinstance(module, PrototypeHead):
                prototypes.append(parameter)
            else:
                (decaying if parameter.ndim > 1 and stage.weight_decay else plain).append(parameter)
    groups = [
        {"params": decaying, "lr": lr, "weight_decay": spec.weight_decay},
        {"params": plain, "lr": lr, "weight_decay": 0.0},
        {"params": prototypes, "lr": lr * spec.prototype_lr, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    for group in groups:
        group["peak_lr"] = group["lr"]
    if spec.optimizer == "adamw":
        return optim.AdamW(groups)
    return optim.SGD(groups, momentum=spec.momentum, nesterov=spec.momentum > 0)


def lr_factor(step: int, n_steps: int, warmup: float) -> float:
    """A linear rise over the first share `warmup` of the steps, then half a cosine down to zero."""
    n_warmup = int(warmup * n_steps)
    if step < n_warmup:
        return (step + 1) / (n_warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / max(1, n_steps - n_warmup)))


def set_lr(optimizer: optim.Optimizer, factor: float) -> float:
    """Sets every group to its peak rate times the factor; returns the rate of the first."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
    rate: float = optimizer.param_groups[0]["lr"]
    return rate
