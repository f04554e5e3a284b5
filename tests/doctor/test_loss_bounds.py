"""Best and collapsed value of every loss, against the losses themselves on the embeddings they describe."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esupcon.doctor import Watch
from esupcon.doctor.watch import temperature_for
from esupcon.functional import esupcon_loss, spce_loss, supcon_loss, tightness_loss
from esupcon.probability import softmax

Loss = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def cross_entropy(z: Tensor, y: Tensor, theta: Tensor, t: float) -> Tensor:
    unit, directions = torch.nn.functional.normalize(z, dim=1), torch.nn.functional.normalize(theta, dim=1)
    return torch.nn.functional.cross_entropy(unit @ directions.T / t, y)


LOSSES: dict[str, Loss] = {
    "supcon": lambda z, y, theta, t: supcon_loss(z, y, temperature=t),
    "spce": lambda z, y, theta, t: spce_loss(z, y, temperature=t),
    "esupcon": lambda z, y, theta, t: esupcon_loss(z, y, theta, temperature=t, prototype_weight=3.0),
    "tightness": lambda z, y, theta, t: tightness_loss(z, y, theta),
    "ce": cross_entropy,
}


def watch(losses: dict[str, float], **changes: Any) -> Watch:
    values: dict[str, Any] = {
        "n_batch": 30,
        "n_classes": 5,
        "n_steps": 100,
        "temperature": 0.3,
        "prototype_weight": 3.0,
        "class_counts": [6] * 5,  # all of them in the batch: every expectation is exact
    }
    return Watch(losses=losses, **{**values, **changes})


def simplex(n_classes: int) -> Tensor:
    corners = torch.eye(n_classes, dtype=torch.float64)
    return corners - corners.mean(0)


@pytest.mark.parametrize("temperature", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("name", LOSSES)
def test_best_and_collapsed_are_the_values_of_the_loss(name: str, temperature: float) -> None:
    found = watch({name: 1.0}, temperature=temperature)
    y = torch.arange(5).repeat_interleave(12)
    theta, point = simplex(5), torch.ones(60, 5, dtype=torch.float64)
    loss = LOSSES[name]
    assert loss(theta[y], y, theta, temperature).item() == pytest.approx(found.best, abs=1e-9)
    assert loss(point, y, point[:5], temperature).item() == pytest.approx(found.collapsed, abs=1e-9)


@pytest.mark.parametrize(("name", "below"), [("supcon", 1e-9), ("spce", 1e-9), ("esupcon", 1e-3)])
def test_no_trained_embedding_is_better_than_the_best(name: str, below: float) -> None:
    """Within a thousandth of the span for esupcon, whose prototype term pushes a class a little apart."""
    found = watch({name: 1.0})
    y = torch.arange(5).repeat_interleave(12)
    generator = torch.Generator().manual_seed(0)
    z, theta = (torch.randn(n, 6, dtype=torch.float64, generator=generator).requires_grad_() for n in (60, 5))
    optimizer = torch.optim.Adam([z, theta], lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        loss = LOSSES[name](z, y, theta, 0.3)
        loss.backward()
        optimizer.step()
    assert found.best - below * found.span <= loss.item() < found.best + 0.05 * found.span


def test_collapsed_cross_entropy_is_the_entropy_of_the_class_shares() -> None:
    shares = np.array([0.7, 0.2, 0.1])
    found = watch({"ce": 1.0}, n_classes=3, class_counts=[70, 20, 10])
    assert found.collapsed == pytest.approx(-(shares * np.log(shares)).sum())


def test_bounds_of_spce_averaged_over_the_batch() -> None:
    found = watch({"spce": 1.0}, temperature=1.0, spce_average="batch")
    y = torch.arange(5).repeat_interleave(12)
    theta, point = simplex(5), torch.ones(60, 5, dtype=torch.float64)
    best = spce_loss(theta[y], y, temperature=1.0, average="batch").item()
    collapsed = spce_loss(point, y, temperature=1.0, average="batch").item()
    assert (found.best, found.collapsed) == (pytest.approx(best), pytest.approx(collapsed))
    assert [one.code for one in found.step(collapsed, 0.1)] == ["temperature-too-high"]  # the loss hardly moves


@given(st.integers(2, 1000), st.floats(0.01, 0.999))
def test_suggested_temperature_gives_a_perfect_embedding_that_posterior(n_classes: int, posterior: float) -> None:
    if posterior * n_classes > 1.01:  # less than a guess is reached by no temperature
        cosines = np.append(1.0, np.full(n_classes - 1, -1 / (n_classes - 1)))
        assert softmax([cosines], temperature_for(n_classes, posterior))[0, 0] == pytest.approx(posterior)


@given(
    st.dictionaries(st.sampled_from(list(LOSSES)), st.floats(0.1, 2), min_size=1),
    st.integers(2, 300),
    st.integers(2, 200),
    st.floats(1e-3, 100),
)
def test_bounds_are_finite_in_order_and_add_up(
    losses: dict[str, float], n_batch: int, n_classes: int, temperature: float
) -> None:
    changes = {"n_batch": n_batch, "n_classes": n_classes, "temperature": temperature, "class_counts": None}
    found, parts = watch(losses, **changes), [watch({name: weight}, **changes) for name, weight in losses.items()]
    assert math.isfinite(found.best) and found.best <= found.collapsed + 1e-9
    assert found.best == pytest.approx(sum(part.best for part in parts))
    assert found.collapsed == pytest.approx(sum(part.collapsed for part in parts))
