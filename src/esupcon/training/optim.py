"""Optimiser, parameter groups and the schedule of the learning rate."""

from __future__ import annotations

import math

from torch import nn, optim

from esupcon.heads import PrototypeHead
from esupcon.methods import Stage
from esupcon.models import Network
from esupcon.spec import TrainSpec


def build_optimizer(network: Network, stage: Stage, spec: TrainSpec, batch_size: int) -> optim.Optimizer:
    """Return the optimiser of a stage. Weights decay; norms, biases and prototypes, used by direction only, do not."""
    lr = spec.stage_lr(stage, batch_size)
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
    groups = [{**group, "peak_lr": group["lr"]} for group in groups if group["params"]]
    if spec.optimizer == "adamw":
        return optim.AdamW(groups)
    return optim.SGD(groups, momentum=spec.momentum, nesterov=spec.momentum > 0)


def lr_factor(step: int, n_steps: int, warmup: float) -> float:
    """Return the learning rate of a step as a share of its peak: a linear rise, then half a cosine down to zero."""
    n_warmup = int(warmup * n_steps)
    if step < n_warmup:
        return (step + 1) / (n_warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / max(1, n_steps - n_warmup)))


def set_lr(optimizer: optim.Optimizer, factor: float) -> float:
    """Set every group to its peak rate times the factor; return the rate of the first group."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
    rate: float = optimizer.param_groups[0]["lr"]
    return rate
