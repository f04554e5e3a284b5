"""The one kernel: row-wise log-sum-exp of similarities, in linear memory, with its own backward.

For unit rows z_1 ... z_n and temperature t,

    lse_i = log( sum_{j != i} exp(z_i . z_j / t)  +  sum_c exp(z_i . e_c / t) )

where the second sum runs over extra columns e (prototypes), if any. Every contrastive loss of the
package is this quantity minus a tightness term that costs O(n d).

No n-by-n tensor is held for large n: the similarity matrix is visited block by block and the backward
pass visits the blocks again. Two visiting orders exist:

* `_SymmetricLogSumExp`: all rows against all rows. A block serves its rows and, transposed, its columns,
  so each pair is computed once.
* `_StripLogSumExp`: some rows against any columns, a strip of rows at a time, with the maximum of each
  row subtracted; for anchors, extra columns, and temperatures whose exponentials would overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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

    `z` (n, d) and `extra` (m, d) hold unit vectors in float32 or float64. `anchors` selects the rows whose
    value is wanted, by slice or index tensor, while all rows remain contrast. The result does not depend
    on `block`. A row with nothing to be compared with has the value -inf and passes no gradient on.
    """
    if anchors is None and 1 / temperature <= _largest_exponent(z.dtype):
        lse = _symmetric_logsumexp(z, temperature, block or BLOCK)
        rows = z
    else:
        index = torch.arange(len(z), device=z.device)
        own = index if anchors is None else index[anchors]
        rows = z if anchors is None else z[own]
        lse = _strip_logsumexp(rows, z, temperature, own, block)
    if extra is None:
        return lse
    return torch.logaddexp(lse, columns_logsumexp(rows, extra, temperature=temperature, block=block))


def columns_logsumexp(rows: Tensor, columns: Tensor, *, temperature: float, block: int | None = None) -> Tensor:
    """log sum_c exp(rows_i . columns_c / temperature), none excluded."""
    return _strip_logsumexp(rows, columns, temperature, None, block)


def _largest_exponent(dtype: torch.dtype) -> float:
    """The largest |similarity / temperature| whose exponential can be summed without a shift.

    exp(64) summed over 10^9 rows is below the largest float32, and exp(-64) is a normal number.
    """
    return 300.0 if dtype == torch.float64 else 64.0


class _SymmetricLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, temperature: float, block: int) -> Tensor:
        scaled = z * temperature**-0.5  # so that a product of two rows is similarity / temperature
        n = len(z)
        keep = ctx.needs_input_grad[0] and n * n * z.element_size() // 2 <= KEEP_BYTES
        kept: list[Tensor] = []
        buffer = None if keep else z.new_empty(min(n, block), min(n, block))
        sums = z.new_zeros(n)
        for rows, columns in _block_pairs(n, block):
            e = _exponentials(scaled, rows, columns, buffer)
            sums[rows] += e.sum(1)
            if rows != columns:
                sums[columns] += e.sum(0)
            if keep:
                kept.append(e)
        ctx.save_for_backward(scaled, sums)
        ctx.kept, ctx.block, ctx.temperature = kept, block, temperature
        return sums.log()

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        scaled, sums = ctx.saved_tensors
        n, block = len(scaled), ctx.block
        # d lse_i / d s_ij = e_ij / sums_i, and row k appears as row (weight_k) and as column (weight_j).
        weight = grad / sums.clamp_min(torch.finfo(sums.dtype).tiny)
        out = torch.zeros_like(scaled)
        side = min(n, block)
        recomputed = None if ctx.kept else scaled.new_empty(side, side)
        product = scaled.new_empty(side, side)
        for index, (rows, columns) in enumerate(_block_pairs(n, block)):
            e = ctx.kept[index] if ctx.kept else _exponentials(scaled, rows, columns, recomputed)
            p = torch.add(weight[rows, None], weight[columns], out=_window(product, rows, columns))
            p *= e
            out[rows].addmm_(p, scaled[columns])
            if rows != columns:
                out[columns].addmm_(p.T, scaled[rows])
        return out.mul_(ctx.temperature**-0.5), None, None


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


_symmetric_logsumexp: Callable[[Tensor, float, int], Tensor] = _SymmetricLogSumExp.apply
_strip_logsumexp: Callable[[Tensor, Tensor, float, Tensor | None, int | None], Tensor] = _StripLogSumExp.apply


def _exponentials(scaled: Tensor, rows: slice, columns: slice, buffer: Tensor | None) -> Tensor:
    """exp(similarity / temperature) of one block, a row's similarity with itself left out."""
    out = None if buffer is None else _window(buffer, rows, columns)
    e = torch.mm(scaled[rows], scaled[columns].T, out=out).exp_()
    return e.fill_diagonal_(0) if rows == columns else e


def _strip_similarities(
    rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None, strip: slice, buffer: Tensor
) -> Tensor:
    out = buffer[: strip.stop - strip.start]
    s = torch.mm(rows[strip], columns.T, out=out).div_(temperature)
    return s if own is None else s.scatter_(1, own[strip, None], -math.inf)


def _slices(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _block_pairs(n: int, size: int) -> Iterator[tuple[slice, slice]]:
    """The blocks on and above the diagonal."""
    for rows in _slices(n, size):
        for columns in _slices(n, size):
            if columns.start >= rows.start:
                yield rows, columns


def _window(buffer: Tensor, rows: slice, columns: slice) -> Tensor:
    """The part of a reused block buffer that a (smaller) block at the border needs, contiguous."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    return buffer.view(-1)[: height * width].view(height, width)


def _strip_height(columns: Tensor) -> int:
    return max(1, STRIP_BYTES // (columns.element_size() * max(1, len(columns))))
