"""Time of the contrastive losses, forward and backward, beside what others compute the same value with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esupcon import functional as F
from esupcon.bench.turns import best_seconds

DENSE_UP_TO = 8192  # beyond, n-by-n tensors fill the memory of an ordinary machine
TEMPERATURE = 0.1


@dataclass(frozen=True)
class LossTimes:
    """Seconds of a forward and a backward pass over n embeddings; None where it was not run."""

    n: int
    supcon: float
    esupcon: float
    dense: float | None
    metric_learning: float | None


def dense_supcon(z: Tensor, labels: Tensor) -> Tensor:
    """SupCon as textbooks write it: an n-by-n mask and n-by-n logits."""
    z = torch.nn.functional.normalize(z)
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    positives = ((labels[:, None] == labels[None, :]) & others).float()
    logits = z @ z.T / TEMPERATURE
    logits = logits - logits.max(1, keepdim=True).values.detach()
    log_probability = logits - (logits.exp() * others).sum(1, keepdim=True).log()
    return -((positives * log_probability).sum(1) / positives.sum(1)).mean()


def time_losses(n: int, *, dim: int = 128, n_classes: int = 10, device: str = "cpu") -> LossTimes:
    """The best of some turns. Everything of n-by-n elements is left out where n is large."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, dim, generator=generator).to(device).requires_grad_()
    prototypes = torch.randn(n_classes, dim, generator=generator).to(device).requires_grad_()
    labels = torch.arange(n, device=device) % n_classes
    losses: dict[str, Callable[[], Tensor]] = {
        "supcon": lambda: F.supcon_loss(z, labels, temperature=TEMPERATURE),
        "esupcon": lambda: F.esupcon_loss(z, labels, prototypes, temperature=TEMPERATURE),
    }
    if n <= DENSE_UP_TO:
        losses["dense"] = lambda: dense_supcon(z, labels)
        peer = _metric_learning()
        if peer is not None:
            losses["metric_learning"] = lambda: peer(z, labels)

    def both_ways(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            z.grad = prototypes.grad = None
            loss().backward()

        return run

    best = best_seconds({name: both_ways(loss) for name, loss in losses.items()}, _rounds(n))
    return LossTimes(n, best["supcon"], best["esupcon"], best.get("dense"), best.get("metric_learning"))


def _rounds(n: int) -> int:
    return 60 if n <= 2048 else 4 if n <= DENSE_UP_TO else 2


def _metric_learning() -> Any:
    """pytorch-metric-learning's SupCon, where it is installed."""
    try:
        from pytorch_metric_learning.losses import (  # type: ignore[import-untyped]  # noqa: PLC0415 - a peer, not a dependency
            SupConLoss,
        )
    except ImportError:
        return None
    return SupConLoss(temperature=TEMPERATURE)
