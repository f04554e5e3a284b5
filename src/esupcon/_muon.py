"""Muon: momentum whose steps are orthogonalised matrices, for convolution filters and linear layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Take steps of equal length in all directions: the momentum M = U S V^T of a filter bank is replaced by U V^T.

    Filters (out, in, h, w) are treated as matrices (out, h w in); `torch.optim.Muon` of torch 2.15 still refuses them.
    Before each step a bank is rescaled to the norm sqrt(out), so its scale neither grows nor needs weight decay.
    U V^T is approximated by Newton-Schulz iterations, computed in `dtype`; bfloat16 halves their time.

    Groups with ``orthogonal=False``, such as biases and heads, take the steps of SGD with Nesterov momentum.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        momentum: float = 0.6,
        weight_decay: float = 0.0,
        iterations: int = 3,
        orthogonal: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        options = {"momentum": momentum, "weight_decay": weight_decay, "orthogonal": orthogonal}
        super().__init__(params, {"lr": lr, "iterations": iterations, **options})
        self.dtype = dtype
        for p in (p for group in self.param_groups if group["orthogonal"] for p in group["params"]):
            if p.ndim < 2:
                raise ValueError(f"Muon needs matrices or filters; got a parameter of shape {tuple(p.shape)}.")

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                grad = p.grad.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else p.grad
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(group["momentum"]).add_(grad)
                update = grad.add(momentum, alpha=group["momentum"])  # Nesterov
                if group["orthogonal"]:
                    p.mul_(len(p) ** 0.5 / torch.linalg.vector_norm(p).clamp_min(torch.finfo(p.dtype).tiny))
                    update = update.movedim(1, -1)  # the order in memory of channels_last: no copy
                    flat = orthogonalise(update.flatten(1), group["iterations"], self.dtype)
                    update = flat.view_as(update).movedim(-1, 1)
                p.sub_(update, alpha=group["lr"])


def orthogonalise(matrix: Tensor, iterations: int, dtype: torch.dtype) -> Tensor:
    """Return approximately U V^T of the matrix U S V^T by a quintic Newton-Schulz iteration; zero stays zero.

    The coefficients of Keller Jordan bring singular values near 1 fast, to between about 0.7 and 1.2. Each iteration
    multiplies X by a polynomial P of X X^T. The next X X^T is P X X^T P, so only the first and the last product have
    the size of the matrix; the others, in float32 or more, have that of its shorter side.
    """
    x: Tensor = matrix.to(dtype)
    x = x / (torch.linalg.vector_norm(x) + 1e-7)
    tall = len(x) > x.shape[1]
    square = (x.T @ x if tall else x @ x.T).to(torch.promote_types(dtype, torch.float32))
    product: Tensor | None = None
    for last in range(iterations - 1, -1, -1):
        polynomial = torch.addmm(square, square, square, beta=-4.7750, alpha=2.0315)
        polynomial.diagonal().add_(3.4445)
        product = polynomial if product is None else polynomial @ product
        square = polynomial @ square @ polynomial if last else square
    assert product is not None  # one iteration or more
    return (x @ product.to(dtype) if tall else product.to(dtype) @ x).to(matrix.dtype)
