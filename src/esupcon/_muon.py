"""Muon: momentum whose steps are orthogonalised matrices, for convolution filters and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Take steps of equal length in all directions: the momentum M = U S V^T of a filter bank is replaced by U V^T.

    Filters (out, in, h, w) are treated as matrices (out, in h w); `torch.optim.Muon` of torch 2.15 still refuses them.
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
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                grad = p.grad.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else p.grad
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(group["momentum"]).add_(grad)
                update = grad.add(momentum, alpha=group["momentum"])  # Nesterov
                if group["orthogonal"]:
                    p.mul_(len(p) ** 0.5 / torch.linalg.vector_norm(p).clamp_min(torch.finfo(p.dtype).tiny))
                    update = orthogonalise(update.flatten(1), group["iterations"], self.dtype).view_as(p)
                p.sub_(update, alpha=group["lr"])
        return loss


def orthogonalise(matrix: Tensor, iterations: int, dtype: torch.dtype) -> Tensor:
    """Return approximately U V^T of the matrix U S V^T by a quintic Newton-Schulz iteration; zero stays zero.

    The coefficients of Keller Jordan bring singular values near 1 fast, to between about 0.7 and 1.2.
    """
    x: Tensor = matrix.to(dtype)
    x = x / (torch.linalg.vector_norm(x) + 1e-7)
    if tall := len(x) > x.shape[1]:  # the smaller of the two products
        x = x.T
    for _ in range(iterations):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.T if tall else x).to(matrix.dtype)
