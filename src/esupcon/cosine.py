"""Unit vectors and class sums: what a cosine loss needs besides the contrastive kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esupcon.precision import without_autocast

# The gradient of z / |z| grows as 1 / |z|; shorter rows get the gradient of a row of this length.
SHORTEST_FOR_GRADIENT = 1e-12
# Rows with lengths between these can be normalised without scaling first.
SAFE_TO_SQUARE = (1e-12, 1e15)
# Rows whose intermediate products are held at once; more would add a second matrix to the peak memory.
ROWS_AT_ONCE = 8192


def unit_rows(z: Tensor) -> Tensor:
    """z_i / |z_i| for every row, of any finite length; a zero row stays zero and gets zero gradient."""
    return _unit_rows(z)


def row_products(a: Tensor, b: Tensor) -> Tensor:
    """a_i . b_i for every row."""
    return (a * b).sum(1)


def class_sums(rows: Tensor, ids: Tensor, n_classes: int) -> Tensor:
    """sum_{i: ids_i = k} rows_i, shape (n_classes, d)."""
    return rows.new_zeros(n_classes, rows.shape[1]).index_add(0, ids, rows)


def normalise(z: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows, and 1 / |z_i| as `project` takes it."""
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    shortest, longest = length.aminmax()
    if SAFE_TO_SQUARE[0] < shortest.item() and longest.item() < SAFE_TO_SQUARE[1]:
        inverse_length = length.reciprocal_()
        return z * inverse_length, inverse_length
    return _normalise_any_length(z)


def project(grad: Tensor, unit: Tensor, inverse_length: Tensor, *, in_place: bool = False) -> Tensor:
    """The gradient of z from that of its unit rows u: (g - u (u . g)) / |z|; a chunk of rows at a time."""
    out = grad if in_place else torch.empty_like(grad)
    for start in range(0, len(grad), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        g, u = grad[rows], unit[rows]
        along = (u * g).sum(1, keepdim=True)
        torch.addcmul(g, u, along, value=-1, out=out[rows]).mul_(inverse_length[rows])
    return out


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        unit, inverse_length = normalise(z)
        ctx.save_for_backward(unit, inverse_length)
        return unit

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return project(grad, *ctx.saved_tensors)


def _normalise_any_length(z: Tensor) -> tuple[Tensor, Tensor]:
    """`normalise` for rows of any length; the inverse length is 0 for zero rows and bounded for tiny ones."""
    # Squares of huge entries overflow and those of tiny ones vanish: divide by the largest entry first.
    tiny = torch.finfo(z.dtype).tiny
    largest = z.abs().amax(1, keepdim=True)
    unit = z / largest.clamp_min(tiny)
    length = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
    unit /= length.clamp_min(tiny)
    length *= largest
    return unit, length.clamp_min(SHORTEST_FOR_GRADIENT).reciprocal_().masked_fill_(length == 0, 0)


_unit_rows: Callable[[Tensor], Tensor] = _UnitRows.apply
