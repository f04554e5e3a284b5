"""Small networks trained for real on scikit-learn's digits, with a watch beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from esupcon.doctor import Finding, Watch
from esupcon.functional import esupcon_loss, spce_loss, supcon_loss, tightness_loss
from esupcon.heads import LinearHead, PrototypeHead

BATCH, DIM = 128, 32
TERMS = {
    "esupcon": {"esupcon": 1.0},
    "supcon_tt": {"supcon": 1.0, "tightness": 1.0},
    "spce": {"spce": 1.0, "tightness": 1.0},
    "ce": {"ce": 1.0},
    "ce_n": {"ce": 1.0},
}


@dataclass
class Outcome:
    found: list[tuple[int, Finding]] = field(default_factory=list)  # with the number of steps before
    accuracy: float = 0.0

    @property
    def findings(self) -> list[Finding]:
        return [finding for _, finding in self.found]

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self.findings]


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    inputs, labels = torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])
    return inputs[:1408], labels[:1408], inputs[1408:], labels[1408:]


def train(
    method: str = "esupcon",
    *,
    lr: float = 0.1,
    temperature: float = 0.1,
    epochs: int = 10,
    warmup: float = 0.1,
    seed: int = 0,
    labels: Tensor | None = None,
) -> Outcome:
    x, y, x_test, y_test = digits()
    y = y if labels is None else labels
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, DIM))
    head: nn.Module = LinearHead(DIM, 10) if method == "ce" else PrototypeHead(DIM, 10, temperature)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=lr, momentum=0.9)
    per_epoch = len(x) // BATCH
    n_steps, n_warmup = per_epoch * epochs, int(warmup * per_epoch * epochs)
    watch = Watch(
        losses=TERMS[method],
        n_batch=BATCH,
        n_classes=10,
        n_steps=n_steps,
        warmup_steps=n_warmup,
        temperature=temperature,
        head="linear" if method == "ce" else "prototype",
        class_counts=np.bincount(y, minlength=10),
    )
    outcome = Outcome()
    for epoch in range(epochs):
        total = 0.0
        for i, rows in enumerate(torch.randperm(len(x)).split(BATCH)):
            step = epoch * per_epoch + i
            rate = lr * _schedule(step, n_steps, n_warmup)
            for group in optimizer.param_groups:
                group["lr"] = rate
            views = x[rows].repeat(2, 1) + 0.05 * torch.randn(2 * BATCH, 64)
            loss = _loss(method, encoder(views), y[rows].repeat(2), head, temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            outcome.found += [(step + 1, one) for one in watch.step(loss.item(), rate)]
            if not math.isfinite(loss.item()):
                return outcome
        with torch.no_grad():
            outcome.accuracy = (head(encoder(x_test)).argmax(1) == y_test).float().mean().item()
            z = encoder(x[:512])
            found = watch.epoch(epoch, total / per_epoch, outcome.accuracy, z, y[:512], logits=head(z))
        outcome.found += [(step + 1, one) for one in found]
    return outcome


def _schedule(step: int, n_steps: int, n_warmup: int) -> float:
    if step < n_warmup:
        return (step + 1) / (n_warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / (n_steps - n_warmup)))


def _loss(method: str, z: Tensor, y: Tensor, head: nn.Module, temperature: float) -> Tensor:
    if method == "esupcon":
        return esupcon_loss(z, y, head.weight, temperature=temperature)
    if method == "supcon_tt":
        return supcon_loss(z, y, temperature=temperature) + tightness_loss(z.detach(), y, head.weight)
    if method == "spce":
        return spce_loss(z, y, temperature=temperature) + tightness_loss(z.detach(), y, head.weight)
    return nn.functional.cross_entropy(head(z), y)
