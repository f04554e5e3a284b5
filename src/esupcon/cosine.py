"""Unit vectors and class sums: what a cosine loss needs besides the contrastive kernel.

Each is an autograd.Function because its backward has a short closed form that holds far less memory
than the chain of elementwise operations would.
"""

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
SAFE_TO_SQUARE = (1e-15, 1e15)


def unit_rows(z: Tensor) -> Tensor:
    """z_i / |z_i| for every row, of any finite length; a zero row stays zero and gets zero gradient."""
    return _unit_rows(z)


def row_products(a: Tensor, b: Tensor) -> Tensor:
    """a_i . b_i for every row."""
    products: Tensor = torch.linalg.vecdot(a, b)
    return products


def class_sums(rows: Tensor, ids: Tensor, n_classes: int) -> Tensor:
    """sum_{i: ids_i = k} rows_i, shape (n_classes, d)."""
    return rows.new_zeros(n_classes, rows.shape[1]).index_add(0, ids, rows)


def positive_similarity(unit: Tensor, ids: Tensor, n_classes: int) -> Tensor:
    """sum_{p in P_i} unit_i . unit_p, where P_i holds the other rows of the same class.

    Equal to unit_i . (S_{ids_i} - unit_i) with S the class sums: O(n d), without a mask of pairs.
    """
    return _positive_similarity(unit, ids, n_classes)


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        shortest, longest = length.aminmax()
        if SAFE_TO_SQUARE[0] < shortest.item() and longest.item() < SAFE_TO_SQUARE[1]:
            unit: Tensor = z / length
        else:
            # Squares of huge entries overflow and those of tiny ones vanish: divide by the largest entry first.
            tiny = torch.finfo(z.dtype).tiny
            largest = z.abs().amax(1, keepdim=True)
            unit = z / largest.clamp_min(tiny)
            length = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
            unit /= length.clamp_min(tiny)
            length *= largest
        ctx.save_for_backward(unit, length)
        return unit

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        unit, length = ctx.saved_tensors
        inverse = length.clamp_min(SHORTEST_FOR_GRADIENT).reciprocal().masked_fill_(length == 0, 0)
        along = row_products(unit, grad).unsqueeze(1)
        out: Tensor = torch.addcmul(grad, unit, along, value=-1).mul_(inverse)
        return out


class _PositiveSimilarity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unit: Tensor, ids: Tensor, n_classes: int) -> Tensor:
        sums = class_sums(unit, ids, n_classes)
        ctx.save_for_backward(unit, ids, sums)
        return row_products(unit, sums.index_select(0, ids).sub_(unit))

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        unit, ids, sums = ctx.saved_tensors
        # As anchor a row meets S - unit with weight grad_i, as positive it meets every anchor of its class.
        weight = grad.unsqueeze(1)
        weighted_sums = class_sums(unit * weight, ids, len(sums))
        out = sums.index_select(0, ids).mul_(weight).add_(weighted_sums.index_select(0, ids))
        return out.addcmul_(unit, weight, value=-2), None, None


_unit_rows: Callable[[Tensor], Tensor] = _UnitRows.apply
_positive_similarity: Callable[[Tensor, Tensor, int], Tensor] = _PositiveSimilarity.apply
