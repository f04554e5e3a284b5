"""The one kernel: row-wise log-sum-exp of cosine similarities, in linear memory, with its own backward.

For embeddings z_1 ... z_n and temperature t, with s(a, b) = cos(a, b) / t,

    lse_i = log( sum_{j != i} exp s(z_i, z_j)  +  sum_c exp s(z_i, e_c) )

where the second sum runs over extra columns e (prototypes), if any. Every contrastive loss of the
package is this quantity minus a tightness term that costs O(n d).

No n-by-n tensor is held for large n: the similarity matrix is visited block by block and the backward
pass visits the blocks again. Two visiting orders exist:

* `_SymmetricContrast`: all rows against all rows. A block serves its rows and, transposed, its columns,
  so each pair is computed once. It normalises its input and sums it by class as well: at small n those
  steps on their own would cost as much as the pairs.
* `_StripLogSumExp`: some rows against any columns, a strip of rows at a time, with the maximum of each
  row subtracted; for anchors, extra columns, and temperatures whose exponentials would overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esupcon.cosine import class_sums, normalise, project, unit_rows
from esupcon.precision import without_autocast

# Side of a square block: two float32 blocks of this size stay within the cache of a core.
BLOCK = 1024
# Exponentials of a whole (symmetric) similarity matrix up to this size are kept for backward:
# below it, reading them back is quicker than computing them again.
KEEP_BYTES = 48 * 2**20
# Size of one strip of similarities.
STRIP_BYTES = 16 * 2**20


def contrast_logsumexp(
    z: Tensor,
    *,
    temperature: float,
    extra: Tensor | None = None,
    anchors: Tensor | slice | None = None,
    block: int | None = None,
) -> Tensor:
    """lse_i of every row (or of the rows in `anchors`) against all other rows and the `extra` columns.

    `z` (n, d) and `extra` (m, d) are raw embeddings in float32 or float64. `anchors` selects the rows whose
    value is wanted, by slice or index tensor, while all rows remain contrast. The result does not depend
    on `block`. A row with nothing to be compared with has the value -inf and passes no gradient on.
    """
    unit, lse, *_ = unit_and_contrast(z, temperature=temperature, anchors=anchors, block=block)
    if extra is None:
        return lse
    rows = unit if anchors is None else unit[anchors]
    to_extra = columns_logsumexp(rows, unit_rows(extra), temperature=temperature, block=block)
    return torch.logaddexp(lse, to_extra)


class Contrast(NamedTuple):
    unit: Tensor  # (n, d) the rows of z as unit vectors
    lse: Tensor  # (n,), or one value an anchor
    with_itself: Tensor  # (n,) the similarity of each row with itself, 1, or 0 for a zero vector; no gradient
    class_sums: Tensor | None  # (n_classes, d) sums of the unit vectors of each class


def unit_and_contrast(
    z: Tensor,
    *,
    temperature: float,
    anchors: Tensor | slice | None = None,
    ids: Tensor | None = None,
    n_classes: int = 0,
    block: int | None = None,
) -> Contrast:
    """`contrast_logsumexp` without extra columns, with the unit vectors it works on and their sums by class."""
    if anchors is None and 1 / temperature <= _largest_exponent(z.dtype):
        return Contrast(*_symmetric_contrast(z, ids, n_classes, temperature, block or BLOCK))
    unit = unit_rows(z)
    index = torch.arange(len(z), device=z.device)
    own = index if anchors is None else index[anchors]
    rows = unit if anchors is None else unit[own]
    lse = _strip_logsumexp(rows, unit, temperature, own, block)
    with_itself = torch.linalg.vector_norm(unit.detach(), dim=1)
    return Contrast(unit, lse, with_itself, None if ids is None else class_sums(unit, ids, n_classes))


def columns_logsumexp(rows: Tensor, columns: Tensor, *, temperature: float, block: int | None = None) -> Tensor:
    """log sum_c exp(rows_i . columns_c / temperature), the vectors taken as they are and none excluded."""
    return _strip_logsumexp(rows, columns, temperature, None, block)


def _largest_exponent(dtype: torch.dtype) -> float:
    """The largest |similarity / temperature| whose exponential can be summed without a shift.

    exp(64) summed over 10^9 rows is below the largest float32, and exp(-64) is a normal number.
    """
    return 300.0 if dtype == torch.float64 else 64.0


class _SymmetricContrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, ids: Tensor | None, n_classes: int, temperature: float, block: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        unit, inverse_length = normalise(z)
        n = len(z)
        keep = ctx.needs_input_grad[0] and n * n * z.element_size() // 2 <= KEEP_BYTES
        kept: list[Tensor] = []
        buffer = None if keep else z.new_empty(min(n, block), min(n, block))
        sums = z.new_zeros(n)
        for rows, columns in _block_pairs(n, block):
            e = _exponentials(unit, rows, columns, temperature, buffer)
            sums[rows] += e.sum(1)
            if rows != columns:
                sums[columns] += e.sum(0)
            if keep:
                kept.append(e)
        with_itself = inverse_length.squeeze(1).sign()
        ctx.mark_non_differentiable(with_itself)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(unit, inverse_length, sums)
        ctx.kept, ctx.ids, ctx.temperature, ctx.block = kept, ids, temperature, block
        return unit, sums.log(), with_itself, None if ids is None else class_sums(unit, ids, n_classes)

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(
        ctx: Any, grad_unit: Tensor | None, grad_lse: Tensor | None, _: None, grad_sums: Tensor | None
    ) -> tuple[Tensor, None, None, None, None]:
        unit, inverse_length, sums = ctx.saved_tensors
        out = torch.zeros_like(unit) if grad_sums is None else grad_sums.index_select(0, ctx.ids)
        if grad_unit is not None:
            out += grad_unit
        if grad_lse is not None:
            # d lse_i / d s_ij = e_ij / sums_i; row k appears as row (weight_k) and as column (weight_j).
            weight = grad_lse / (sums * ctx.temperature).clamp_min_(torch.finfo(sums.dtype).tiny)
            _add_pair_gradients(out, unit, weight, ctx)
        return project(out, unit, inverse_length, in_place=True), None, None, None, None


def _add_pair_gradients(out: Tensor, unit: Tensor, weight: Tensor, ctx: Any) -> None:
    """out_i += sum_j e_ij (weight_i + weight_j) unit_j."""
    n, side = len(unit), min(len(unit), ctx.block)
    recomputed = None if ctx.kept else unit.new_empty(side, side)
    product = unit.new_empty(side, side)
    for index, (rows, columns) in enumerate(_block_pairs(n, ctx.block)):
        e = ctx.kept[index] if ctx.kept else _exponentials(unit, rows, columns, ctx.temperature, recomputed)
        p = torch.add(weight[rows, None], weight[columns], out=_window(product, rows, columns))
        p *= e
        out[rows].addmm_(p, unit[columns])
        if rows != columns:
            out[columns].addmm_(p.T, unit[rows])


class _StripLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None, block: int | None
    ) -> Tensor:
        height = block or _strip_height(columns)
        lse = rows.new_empty(len(rows))
        buffer = rows.new_empty(min(height, len(rows)), len(columns))
        for strip in _slices(len(rows), height):
            s = _strip_similarities(rows, columns, temperature, own, strip, buffer)
            # A row without columns has the maximum -inf; subtracting it would give NaN.
            top = s.amax(1).clamp_min(torch.finfo(s.dtype).min) if s.shape[1] else s.new_zeros(len(s))
            lse[strip] = s.sub_(top[:, None]).exp_().sum(1).log_().add_(top)
        ctx.save_for_backward(rows, columns, lse)
        ctx.own, ctx.height, ctx.temperature = own, height, temperature
        return lse

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        rows, columns, lse = ctx.saved_tensors
        wants_rows, wants_columns = ctx.needs_input_grad[:2]
        grad_rows = torch.zeros_like(rows) if wants_rows else None
        grad_columns = torch.zeros_like(columns) if wants_columns else None
        grad = grad / ctx.temperature
        finite_lse = lse.clamp_min(torch.finfo(lse.dtype).min)
        buffer = rows.new_empty(min(ctx.height, len(rows)), len(columns))
        for strip in _slices(len(rows), ctx.height):
            s = _strip_similarities(rows, columns, ctx.temperature, ctx.own, strip, buffer)
            p = s.sub_(finite_lse[strip, None]).exp_().mul_(grad[strip, None])
            if grad_rows is not None:
                torch.mm(p, columns, out=grad_rows[strip])
            if grad_columns is not None:
                grad_columns.addmm_(p.T, rows[strip])
        return grad_rows, grad_columns, None, None, None


_symmetric_contrast: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]] = _SymmetricContrast.apply
_strip_logsumexp: Callable[[Tensor, Tensor, float, Tensor | None, int | None], Tensor] = _StripLogSumExp.apply


def _exponentials(unit: Tensor, rows: slice, columns: slice, temperature: float, buffer: Tensor | None) -> Tensor:
    """exp(similarity / temperature) of one block, a row's similarity with itself left out."""
    a = unit[rows]
    b = a if rows == columns else unit[columns]
    out = unit.new_empty(len(a), len(b)) if buffer is None else _window(buffer, rows, columns)
    # With beta = 0 the product is written over whatever the buffer holds.
    e = torch.addmm(out, a, b.T, beta=0, alpha=1 / temperature, out=out).exp_()
    return e.fill_diagonal_(0) if a is b else e


def _strip_similarities(
    rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None, strip: slice, buffer: Tensor
) -> Tensor:
    out = buffer[: strip.stop - strip.start]
    s = torch.addmm(out, rows[strip], columns.T, beta=0, alpha=1 / temperature, out=out)
    return s if own is None else s.scatter_(1, own[strip, None], -math.inf)


def _slices(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _block_pairs(n: int, size: int) -> list[tuple[slice, slice]]:
    """The blocks on and above the diagonal."""
    blocks = list(_slices(n, size))
    return [(rows, columns) for i, rows in enumerate(blocks) for columns in blocks[i:]]


def _window(buffer: Tensor, rows: slice, columns: slice) -> Tensor:
    """The part of a reused block buffer that a (smaller) block at the border needs, contiguous."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    if buffer.shape == (height, width):
        return buffer
    return buffer.view(-1)[: height * width].view(height, width)


def _strip_height(columns: Tensor) -> int:
    return max(1, STRIP_BYTES // (columns.element_size() * max(1, len(columns))))
