"""The kernel of the losses: row-wise log-sum-exp of cosine similarities, in linear memory.

For embeddings z_1 ... z_n and temperature t, with s(a, b) = cos(a, b) / t, every contrastive loss of the package is
lse_i = log sum_{j != i} exp s(z_i, z_j), joined with the same sum over prototypes, minus a term that costs O(n d).

For large n the similarity matrix is computed block by block, and again in the backward pass, by one of two kernels:

* `_Contrast`: all rows against all rows. Each pair is computed once: a block serves its rows and, transposed, its
  columns. Normalisation and class sums are part of it; at small n they would otherwise cost as much as the pairs.
* `_LogSumExp`: some rows against any columns, one strip of rows at a time, with the maximum of each row subtracted:
  for anchors, for prototypes, and for temperatures whose exponentials would overflow.

Both are an `autograd.Function` in eager mode, which costs less than an operator (20 of 700 microseconds at n = 256); a
`torch.library` operator under `torch.compile`, so that the loop over blocks is not traced; and plain operations with
n-by-n tensors for second derivatives (`create_graph=True`) and inside `torch.func` transforms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

# Side of a square block: two float32 blocks of this size stay within the cache of a core.
BLOCK = 1024
# Exponentials of a whole (symmetric) similarity matrix up to this size are kept for backward:
# below it, reading them back is quicker than computing them again.
KEEP_BYTES = 48 * 2**20
# Size of one strip of similarities.
STRIP_BYTES = 16 * 2**20
# The gradient of z / |z| grows as 1 / |z|. It is bounded for rows with no entry above this value.
SHORTEST_FOR_GRADIENT = 1e-12
# Rows with lengths between these can be normalised without scaling first.
SAFE_TO_SQUARE = (1e-12, 1e15)
# Rows whose intermediate products are held at once; more would add a second matrix to the peak memory.
ROWS_AT_ONCE = 8192

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_autocast(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a function with autocast off, on the device type of its first tensor argument.

    Backward passes need it as much as forward passes: autograd runs them under the autocast state of the caller of
    `backward()`.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        devices = (value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        device = next(devices, "cpu")
        if not torch.is_autocast_enabled(device):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return run


class Contrast(NamedTuple):
    unit: Tensor  # (n, d) the rows of z as unit vectors
    lse: Tensor  # (n,), or one value per anchor
    with_itself: Tensor  # (n,) the cosine of each row with itself: 1, or 0 for a zero vector; no gradient
    class_sums: Tensor  # (n_classes, d) sums of the unit vectors of each class; empty without `ids`


def unit_and_contrast(
    z: Tensor,
    *,
    temperature: float,
    anchors: Tensor | slice | None = None,
    ids: Tensor | None = None,
    n_classes: int = 0,
    in_blocks: bool = True,
) -> Contrast:
    """Return lse_i of every row, or of the rows in `anchors`, with the unit vectors and their sums by class.

    `z` (n, d) holds raw embeddings in float32 or float64. `anchors` selects rows by slice or index tensor; all rows
    remain contrast. A single row has nothing to be compared with: its value is -inf, or the lowest finite number,
    and passes no gradient on.
    """
    # exp(64) summed over 10^9 rows is below the largest float32, and exp(-64) is a normal number.
    fits = anchors is None and 1 / temperature <= (300.0 if z.dtype == torch.float64 else 64.0)
    in_blocks = in_blocks and fits and not _in_transform()
    if in_blocks and not torch.compiler.is_compiling():
        return Contrast(*_Contrast.apply(z, ids, n_classes, temperature))  # type: ignore[no-untyped-call]
    unit = unit_rows(z)
    if in_blocks:
        lse = torch.ops.esupcon.logsumexp(unit, None, temperature, None)
    else:
        own = torch.arange(len(z), device=z.device)
        own = own if anchors is None else own[anchors]
        lse = logsumexp(unit if anchors is None else unit[own], unit, temperature, own)
    with_itself = torch.linalg.vector_norm(unit.detach(), dim=1)
    return Contrast(unit, lse, with_itself, class_sums(unit, ids, n_classes))


def unit_rows(z: Tensor) -> Tensor:
    """Return z_i / |z_i| for rows of any finite length. A zero row stays zero and gets zero gradient."""
    if _in_transform() or torch.compiler.is_compiling():
        return _plain_unit_rows(z)
    unit: Tensor = _UnitRows.apply(z)  # type: ignore[no-untyped-call]
    return unit


def class_sums(rows: Tensor, ids: Tensor | None, n_classes: int) -> Tensor:
    """Return sum_{i: ids_i = k} rows_i, shape (n_classes, d)."""
    sums = rows.new_zeros(n_classes, rows.shape[1])
    return sums if ids is None else sums.index_add(0, ids, rows)


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        unit, inverse_length = _normalise(z)
        ctx.save_for_backward(z, unit, inverse_length)
        return unit

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:
        z, unit, inverse_length = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable_gradients(_plain_unit_rows, (z,), (grad,))[0]
        return _project(grad, unit, inverse_length, torch.empty_like(grad))


def _normalise(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit rows, and 1 / |z_i| for `_project`: 0 for zero rows, bounded for tiny ones."""
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    shortest, longest = length.aminmax()
    if SAFE_TO_SQUARE[0] < shortest.item() and longest.item() < SAFE_TO_SQUARE[1]:
        inverse_length = length.reciprocal_()
        return z * inverse_length, inverse_length
    # Squares of huge entries overflow and those of tiny ones vanish: divide by the largest entry first.
    tiny = torch.finfo(z.dtype).tiny
    largest = z.abs().amax(1, keepdim=True)
    unit = z / largest.clamp_min(tiny)
    length = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
    unit /= length.clamp_min(tiny)
    inverse_length = (length * largest.clamp_min(SHORTEST_FOR_GRADIENT)).reciprocal_()
    return unit, inverse_length.masked_fill_(length == 0, 0)


def _project(grad: Tensor, unit: Tensor, inverse_length: Tensor, out: Tensor) -> Tensor:
    """Write the gradient of z from that of its unit rows u into `out`: (g - u (u . g)) / |z|."""
    for rows in _slices(len(grad), ROWS_AT_ONCE):
        g, u = grad[rows], unit[rows]
        along = (u * g).sum(1, keepdim=True)
        torch.addcmul(g, u, along, value=-1, out=out[rows]).mul_(inverse_length[rows])
    return out


def _plain_unit_rows(z: Tensor) -> Tensor:
    constant = z.detach()
    largest = constant.abs().amax(1, keepdim=True)
    is_zero = largest == 0
    scaled = constant / largest.clamp_min(torch.finfo(z.dtype).tiny)
    scaled = scaled + (z - constant) / largest.clamp_min(SHORTEST_FOR_GRADIENT)  # the same value, a bounded gradient
    squared_length = scaled.square().sum(1, keepdim=True) + is_zero
    return scaled * squared_length.rsqrt() * ~is_zero


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, ids: Tensor | None, n_classes: int, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        unit, inverse_length = _normalise(z)
        keep = ctx.needs_input_grad[0] and len(z) ** 2 * z.element_size() // 2 <= KEEP_BYTES
        sums, ctx.kept = _sums_of_exponentials(unit, temperature, keep=keep)
        with_itself = inverse_length.squeeze(1).sign()
        ctx.mark_non_differentiable(with_itself)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(z, unit, inverse_length, sums)
        ctx.ids, ctx.n_classes, ctx.temperature = ids, n_classes, temperature
        return unit, sums.log(), with_itself, class_sums(unit, ids, n_classes)

    @staticmethod
    @without_autocast
    def backward(
        ctx: Any, grad_unit: Tensor | None, grad_lse: Tensor | None, _: None, grad_sums: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        z, unit, inverse_length, sums = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = functools.partial(
                unit_and_contrast, temperature=ctx.temperature, ids=ctx.ids, n_classes=ctx.n_classes, in_blocks=False
            )
            return *_differentiable_gradients(plain, (z,), (grad_unit, grad_lse, None, grad_sums)), None, None, None
        out = torch.zeros_like(unit) if grad_sums is None else grad_sums.index_select(0, ctx.ids)
        if grad_unit is not None:
            out += grad_unit
        if grad_lse is not None:
            _add_pair_gradients(out, grad_lse, unit, sums, ctx.temperature, ctx.kept)
        return _project(out, unit, inverse_length, out), None, None, None


def _sums_of_exponentials(unit: Tensor, temperature: float, *, keep: bool) -> tuple[Tensor, list[Tensor]]:
    """Return sum_{j != i} exp s_ij for every row i, and the blocks of exponentials if they are to be kept."""
    n, side = len(unit), min(len(unit), BLOCK)
    kept: list[Tensor] = []
    buffer = None if keep else unit.new_empty(side, side)
    sums = unit.new_zeros(n)
    for rows, columns in _block_pairs(n):
        e = _exponentials(unit, rows, columns, temperature, buffer)
        sums[rows] += e.sum(1)
        if rows != columns:
            sums[columns] += e.sum(0)
        if keep:
            kept.append(e)
    return sums, kept


def _add_pair_gradients(
    out: Tensor, grad: Tensor, unit: Tensor, sums: Tensor, temperature: float, kept: Sequence[Tensor]
) -> None:
    """Add the gradient of the unit rows, from that of lse = log sums, to `out`.

    d lse_i / d s_ij = e_ij / sums_i. Row i occurs as row and as column of the symmetric matrix, so
    out_i += sum_j e_ij (weight_i + weight_j) unit_j with weight_i = grad_i / (sums_i temperature).
    """
    weight = grad / (sums * temperature).clamp_min_(torch.finfo(sums.dtype).tiny)
    side = min(len(unit), BLOCK)
    recomputed = None if kept else unit.new_empty(side, side)
    product = unit.new_empty(side, side)
    for index, (rows, columns) in enumerate(_block_pairs(len(unit))):
        e = kept[index] if kept else _exponentials(unit, rows, columns, temperature, recomputed)
        p = torch.add(weight[rows, None], weight[columns], out=_window(product, rows, columns))
        p *= e
        out[rows].addmm_(p, unit[columns])
        if rows != columns:
            out[columns].addmm_(p.T, unit[rows])


def _exponentials(unit: Tensor, rows: slice, columns: slice, temperature: float, buffer: Tensor | None) -> Tensor:
    """Return exp(similarity / temperature) of one block, with 0 for the similarity of a row with itself."""
    a = unit[rows]
    b = a if rows == columns else unit[columns]
    out = unit.new_empty(len(a), len(b)) if buffer is None else _window(buffer, rows, columns)
    # With beta = 0 the product is written over whatever the buffer holds.
    e = torch.addmm(out, a, b.T, beta=0, alpha=1 / temperature, out=out).exp_()
    return e.fill_diagonal_(0) if a is b else e


def _slices(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _block_pairs(n: int) -> list[tuple[slice, slice]]:
    """Return the blocks on and above the diagonal."""
    blocks = list(_slices(n, BLOCK))
    return [(rows, columns) for i, rows in enumerate(blocks) for columns in blocks[i:]]


def _window(buffer: Tensor, rows: slice, columns: slice) -> Tensor:
    """Return the contiguous part of a reused buffer that a (smaller) block at the border needs."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    if buffer.shape == (height, width):
        return buffer
    return buffer.view(-1)[: height * width].view(height, width)


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None) -> Tensor:
        lse = _logsumexp_by_strips(rows, columns, temperature, own)
        ctx.save_for_backward(rows, columns, lse)
        ctx.own, ctx.temperature = own, temperature
        return lse

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns, lse = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = functools.partial(_plain_logsumexp, temperature=ctx.temperature, own=ctx.own)
            return *_differentiable_gradients(plain, (rows, columns), (grad,)), None, None
        wanted = ctx.needs_input_grad
        return *_logsumexp_gradients(grad, rows, columns, lse, ctx.temperature, ctx.own, wanted), None, None


def logsumexp(rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None = None) -> Tensor:
    """Return log sum_c exp(rows_i . columns_c / temperature), without the column `own_i` if given."""
    if _in_transform():
        return _plain_logsumexp(rows, columns, temperature, own)
    kernel: Any = torch.ops.esupcon.logsumexp if torch.compiler.is_compiling() else _LogSumExp.apply
    lse: Tensor = kernel(rows, columns, temperature, own)
    return lse


def _logsumexp_by_strips(rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None) -> Tensor:
    lse = rows.new_empty(len(rows))
    for strip, s in _strips(rows, columns, temperature, own):
        # A row without columns has the maximum -inf; subtracting it would give NaN.
        top = s.amax(1).clamp_min(torch.finfo(s.dtype).min)
        lse[strip] = s.sub_(top[:, None]).exp_().sum(1).log_().add_(top)
    return lse


def _logsumexp_gradients(
    grad: Tensor,
    rows: Tensor,
    columns: Tensor,
    lse: Tensor,
    temperature: float,
    own: Tensor | None,
    wanted: Sequence[bool] = (True, True),
) -> list[Tensor | None]:
    """Return the gradients of rows and columns, or None where they are not wanted."""
    grad_rows = torch.empty_like(rows) if wanted[0] else None
    grad_columns = torch.zeros_like(columns) if wanted[1] else None
    grad = grad / temperature
    lse = lse.clamp_min(torch.finfo(lse.dtype).min)
    for strip, s in _strips(rows, columns, temperature, own):
        p = s.sub_(lse[strip, None]).exp_().mul_(grad[strip, None])
        if grad_rows is not None:
            torch.mm(p, columns, out=grad_rows[strip])
        if grad_columns is not None:
            grad_columns.addmm_(p.T, rows[strip])
    return [grad_rows, grad_columns]


def _strips(rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield the similarities of some rows at a time, in one buffer, with -inf for the column `own_i`."""
    height = max(1, min(len(rows), STRIP_BYTES // (columns.element_size() * len(columns))))
    buffer = rows.new_empty(height, len(columns))
    for strip in _slices(len(rows), height):
        out = buffer[: strip.stop - strip.start]
        s = torch.addmm(out, rows[strip], columns.T, beta=0, alpha=1 / temperature, out=out)
        yield strip, s if own is None else s.scatter_(1, own[strip, None], -torch.inf)


def _plain_logsumexp(rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None) -> Tensor:
    # In float64, which autocast leaves alone: it would round the products of backward passes to half precision.
    s = rows.double() @ columns.double().T / temperature
    if own is not None:  # not -inf: the derivative of a row without other columns would be NaN
        s = s.scatter(1, own[:, None], torch.finfo(rows.dtype).min)
    return s.logsumexp(1).to(rows.dtype)


def _in_transform() -> bool:
    """Return whether a torch.func transform (grad, vmap, jvp, ...) is active, as `autograd.Function.apply` asks too."""
    return torch._C._are_functorch_transforms_active()


def _differentiable_gradients(
    function: Callable[..., Tensor | tuple[Tensor, ...]], inputs: tuple[Tensor, ...], grads: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """Return the gradients of the inputs of a plain function, as tensors that can be differentiated again."""
    inputs = tuple(x.view_as(x) for x in inputs)  # one tensor passed twice counts as two
    outputs = function(*inputs)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    known = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    known_outputs, known_grads = zip(*known, strict=True)
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(known_outputs, wanted, known_grads, create_graph=True))
    return [next(found) if x.requires_grad else None for x in inputs]


# The same kernels as an operator and its gradient, which `torch.compile` puts into its graph without looking inside.


@torch.library.custom_op("esupcon::logsumexp", mutates_args=())
def _logsumexp_operator(rows: Tensor, columns: Tensor | None, temperature: float, own: Tensor | None) -> Tensor:
    """Compute `_logsumexp`; without columns, of every row and all others."""
    if columns is None:
        return _sums_of_exponentials(rows, temperature, keep=False)[0].log()
    return _logsumexp_by_strips(rows, columns, temperature, own)


@torch.library.custom_op("esupcon::logsumexp_gradients", mutates_args=())
def _gradients_operator(
    grad: Tensor, rows: Tensor, columns: Tensor | None, lse: Tensor, temperature: float, own: Tensor | None
) -> list[Tensor]:
    if columns is not None:
        return [x for x in _logsumexp_gradients(grad, rows, columns, lse, temperature, own) if x is not None]
    grad_rows = torch.zeros_like(rows)
    _add_pair_gradients(grad_rows, grad, rows, lse.exp(), temperature, ())
    return [grad_rows]


@_logsumexp_operator.register_fake
def _(rows: Tensor, *_: Any) -> Tensor:
    return rows.new_empty(len(rows))


@_gradients_operator.register_fake
def _(grad: Tensor, rows: Tensor, columns: Tensor | None, *_: Any) -> list[Tensor]:
    return [torch.empty_like(x) for x in (rows, columns) if x is not None]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, columns, ctx.temperature, own = inputs
    ctx.save_for_backward(rows, columns, output, own)


def _operator_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, columns, lse, own = ctx.saved_tensors
    gradients = _gradients_operator(grad, rows, columns, lse, ctx.temperature, own)
    return gradients[0], None if columns is None else gradients[1], None, None


_logsumexp_operator.register_autograd(_operator_backward, setup_context=_save_for_backward)
