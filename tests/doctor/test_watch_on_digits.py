"""Real training of small networks on digits: healthy runs have no findings, and unhealthy ones the right ones."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
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
    labels: Tensor | None = None,
) -> tuple[list[tuple[int, Finding]], float]:
    """Return the findings, each with the number of steps before it, and the accuracy."""
    x, y, x_test, y_test = digits()
    y = y if labels is None else labels
    torch.manual_seed(0)
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
    found, accuracy = [], 0.0
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
            found += [(step + 1, one) for one in watch.step(loss.item(), rate)]
            if not math.isfinite(loss.item()):
                return found, accuracy
        with torch.no_grad():
            accuracy = (head(encoder(x_test)).argmax(1) == y_test).float().mean().item()
            z = encoder(x[:512])
            new = watch.epoch(epoch, total / per_epoch, accuracy, z, y[:512], logits=head(z))
        found += [(step + 1, one) for one in new]
    return found, accuracy


def _schedule(step: int, n_steps: int, n_warmup: int) -> float:
    if step < n_warmup:
        return (step + 1) / (n_warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / (n_steps - n_warmup)))


def _loss(method: str, z: Tensor, y: Tensor, head: nn.Module, temperature: float) -> Tensor:
    if method == "esupcon":
        return esupcon_loss(z, y, head.weight, temperature=temperature)
    if method in ("supcon_tt", "spce"):
        loss = supcon_loss if method == "supcon_tt" else spce_loss
        return loss(z, y, temperature=temperature) + tightness_loss(z.detach(), y, head.weight)
    return nn.functional.cross_entropy(head(z), y)


HEALTHY = [{"method": method} for method in TERMS]
HEALTHY += [{"epochs": 2}, {"warmup": 0.0}, {"temperature": 0.2}, {"lr": 0.02}]
HEALTHY += [{"method": "ce", "temperature": 50.0, "epochs": 3}]  # a linear head has no temperature


@pytest.mark.parametrize("settings", HEALTHY, ids=str)
def test_a_healthy_run_has_no_findings(settings: dict[str, Any]) -> None:
    found, accuracy = train(**settings)
    assert found == []
    assert accuracy > 0.9 or "epochs" in settings or "lr" in settings


def test_noisy_labels_have_no_findings() -> None:
    rng, labels = np.random.default_rng(0), digits()[1].clone()
    wrong = rng.choice(len(labels), int(0.4 * len(labels)), replace=False)
    labels[wrong] = torch.tensor(rng.integers(0, 10, len(wrong)))
    found, accuracy = train(labels=labels)
    assert accuracy > 0.7
    assert found == []


#: Methods, settings, the codes found (None: lr-too-high first), the latest step of the first, words of the last one.
UNHEALTHY = [
    ("esupcon supcon_tt spce", {"lr": 100.0, "warmup": 0.0, "epochs": 6}, None, 20, ""),
    ("ce", {"lr": 100.0}, ["lr-too-high", "loss-not-finite"], 110, "precision 32"),
    ("esupcon ce_n", {"temperature": 1e-3}, ["temperature-too-low", "collapse"], 1, "temperature (now 0.001)"),
    ("esupcon supcon_tt", {"temperature": 0.01}, ["collapse"], 110, "Raise the temperature (now 0.01) to 0.16"),
    ("esupcon ce_n", {"temperature": 50.0, "epochs": 6}, ["temperature-too-high"], 1, "Lower the temperature"),
    ("esupcon ce", {"lr": 1e-6}, ["stuck"], 110, "of 1e-05 instead of 1e-06"),
]
CASES = [({"method": one, **given}, *expected) for methods, given, *expected in UNHEALTHY for one in methods.split()]


@pytest.mark.parametrize(("settings", "codes", "latest", "words"), CASES, ids=str)
def test_an_unhealthy_run_is_explained(settings: dict[str, Any], codes: Any, latest: int, words: str) -> None:
    found, _ = train(**settings)
    if codes is None:
        assert found[0][1].code == "lr-too-high"
        assert "to 10," in found[0][1].remedy
    else:
        assert [finding.code for _, finding in found] == codes
    assert found[0][0] <= latest
    assert words in found[-1][1].remedy
