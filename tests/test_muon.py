"""Muon against a loop in float64 and against the singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import pytorch_optimizer
import torch
from torch import nn
from torch.testing import assert_close

from esupcon._muon import Muon, orthogonalise


def muon_loop(weight: np.ndarray, gradients: list[np.ndarray], lr: float, momentum: float) -> np.ndarray:
    """The algorithm in NumPy, on matrices."""
    buffer = np.zeros_like(weight)
    for gradient in gradients:
        buffer = momentum * buffer + gradient
        x = gradient + momentum * buffer
        x = x / (np.sqrt((x**2).sum()) + 1e-7)
        for _ in range(3):
            outer = x @ x.T
            x = 3.4445 * x - 4.7750 * outer @ x + 2.0315 * outer @ outer @ x
        weight = weight * np.sqrt(len(weight)) / np.sqrt((weight**2).sum()) - lr * x
    return weight


@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (40, 4, 3, 3), (16, 5), (5, 16)])
def test_steps_equal_a_loop_in_float64(shape: tuple[int, ...]) -> None:
    parameter = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    gradients = [torch.randn_like(parameter) for _ in range(4)]
    flat = (parameter.detach().flatten(1).numpy(), [gradient.flatten(1).numpy() for gradient in gradients])
    expected = muon_loop(*flat, lr=0.24, momentum=0.6)
    state = None
    for gradient in gradients:  # every step by a new optimiser from the saved state
        optimizer = Muon([parameter], lr=0.24, momentum=0.6, dtype=torch.float64)
        optimizer.load_state_dict(state or optimizer.state_dict())
        parameter.grad = gradient
        optimizer.step()
        state = optimizer.state_dict()
    assert_close(parameter.detach().flatten(1), torch.from_numpy(expected))


def test_steps_equal_those_of_pytorch_optimizer() -> None:
    """Up to the rescaling of filters, which it lacks, and the rounding of its bfloat16 iterations."""
    ours, theirs = (nn.Parameter(torch.randn(8, 3, 3, 3)) for _ in range(2))
    optimizers = [
        Muon([ours], lr=0.1),
        pytorch_optimizer.Muon(
            [{"params": [theirs], "use_muon": True}], lr=0.1, momentum=0.6, ns_steps=3, weight_decay=0.0
        ),
    ]
    for _ in range(3):
        ours.grad = torch.randn_like(ours)
        theirs.grad = ours.grad.clone()
        rescaled, before = ours.detach() * 8**0.5 / ours.detach().norm(), theirs.detach().clone()
        for optimizer in optimizers:
            optimizer.step()
        assert_close(ours - rescaled, theirs - before, atol=1e-3, rtol=0.02)


@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
def test_orthogonalise_approximates_the_polar_factor(shape: tuple[int, int]) -> None:
    """More iterations bring all singular values near 1 and keep the singular vectors."""
    matrix = torch.randn(shape, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalise(matrix, 5, torch.float64)
    values = (u.T @ found @ vh.T).diag()
    assert_close(u * values @ vh, found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert (orthogonalise(torch.zeros(shape), 3, torch.float32) == 0).all()


def test_parameters_without_gradient_stay_and_zero_filters_stay_finite() -> None:
    still, zero = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.zeros(2, 3))
    zero.grad = torch.ones_like(zero)
    Muon([still, zero], lr=0.1).step()
    assert torch.equal(still, torch.ones(2, 3))
    assert zero.isfinite().all()
