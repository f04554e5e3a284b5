"""Optimiser, parameter groups and the schedule of the learning rate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn, optim

from esupcon._muon import Muon
from esupcon.heads import PrototypeHead
from esupcon.methods import Stage
from esupcon.models import Network
from esupcon.models.encoders import embedding_dim
from esupcon.spec import TrainSpec

#: Peak rates of the optimiser "muon" per row of the batch, relative to that of the filters. The steps of filters have
#: a fixed length; the gradient of a mean over rows, which the others follow, has not. A linear head divides by dim^2.
MUON_VECTORS, MUON_PROTOTYPES, MUON_LINEAR = 0.22, 0.011, 2.8
MUON_MOMENTUM, MUON_VECTOR_MOMENTUM = 0.6, 0.85
#: What weight decay takes from the biases in one step, as a share of their size, at the peak rate and per row.
MUON_SHRINK = 2e-6


def build_optimizer(network: Network, stage: Stage, spec: TrainSpec, batch_size: int) -> optim.Optimizer:
    """Return the optimiser of a stage, with a group for each kind of parameter that the stage trains.

    Weights decay; norms, biases and prototypes, used by direction only, do not.
    """
    lr, n_rows, muon = spec.stage_lr(stage, batch_size), 2 * batch_size, spec.optimizer == "muon"
    dim = embedding_dim(network.encoder)
    muon_rates = {"vectors": MUON_VECTORS, "prototypes": MUON_PROTOTYPES, "linear": MUON_LINEAR / dim**2}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    modules = [(root, module) for root in network.parts(stage.trains) for module in root.modules()]
    seen: set[nn.Parameter] = set()  # layers of a custom encoder may share weights
    for root, module in modules:
        for parameter in (p for p in module.parameters(recurse=False) if p.requires_grad and p not in seen):
            seen.add(parameter)
            matrix = parameter.ndim > 1
            kind = "matrices" if matrix else "vectors"
            if root is network.head:
                kind = "prototypes" if isinstance(root, PrototypeHead) else "linear"
            rate: float = lr * (spec.encoder_lr if root is network.encoder else 1.0)
            rate *= spec.prototype_lr if kind == "prototypes" else 1.0
            options: dict[str, Any] = {
                "share": getattr(module, "trained_share", 1.0),  # of the steps, after which a parameter stays
                "weight_decay": spec.weight_decay if matrix and kind != "prototypes" and stage.weight_decay else 0.0,
            }
            if muon:
                options |= {"weight_decay": 0.0, "orthogonal": kind == "matrices", "momentum": MUON_MOMENTUM}
            if muon and kind != "matrices":
                rate *= muon_rates[kind] * n_rows
                decay = MUON_SHRINK * n_rows / rate if kind == "vectors" else 0.0
                options |= {"weight_decay": decay, "momentum": MUON_VECTOR_MOMENTUM}
            options |= {"lr": rate, "peak_lr": rate}
            groups.setdefault(tuple(options.items()), {"params": [], **options})["params"].append(parameter)
    made = list(groups.values())
    if not made:
        raise ValueError(
            f"method {spec.method} leaves nothing to train: the encoder has no parameters, or its blocks are frozen. "
            "Use another method, or neck='linear'."
        )
    if muon:
        return Muon(made, lr, dtype=torch.bfloat16 if spec.precision == "bf16" else torch.float32)
    if spec.optimizer == "adamw":
        return optim.AdamW(made, fused=True)
    return optim.SGD(made, momentum=spec.momentum, nesterov=spec.momentum > 0)


def lr_factor(step: int, n_steps: int, warmup: float, schedule: str = "cosine") -> float:
    """Return the learning rate of a step as a share of its peak: a linear rise, then a line or half a cosine to 0."""
    n_warmup = int(warmup * n_steps)
    if step < n_warmup:
        return (step + 1) / (n_warmup + 1)
    done = min(1.0, (step - n_warmup) / max(1, n_steps - n_warmup))
    return 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def set_lr(optimizer: optim.Optimizer, step: int, n_steps: int, spec: TrainSpec) -> float:
    """Set every group to its rate in this step; return that of the first group."""
    for group in optimizer.param_groups:
        n_group_steps = max(1, round(group["share"] * n_steps))
        group["lr"] = group["peak_lr"] * lr_factor(step, n_group_steps, spec.warmup, spec.schedule)
    rate: float = optimizer.param_groups[0]["lr"]
    return rate
