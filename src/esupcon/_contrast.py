"""The kernels of the losses: sums of exponentials of cosine similarities, in linear memory.

For embeddings z_1 ... z_n and temperature t, with s(a, b) = cos(a, b) / t, the contrastive losses are made of
lse_i = log sum_{j != i} exp s(z_i, z_j), the same sum with prototypes, and terms that cost O(n d).

* `contrastive_loss` is the weighted sum of both terms of ESupCon, written as its equation.
* `_loss_and_gradients` is the same by hand, for all rows against all rows: each pair is computed once, a block serving
  its rows and, transposed, its columns; and small batches need few operations. A loss is a number, so its gradient is
  known up to a factor and is computed with it.
* `logsumexp` takes some rows and any columns, one strip of rows at a time, with the maximum of each row subtracted: for
  anchors, for prototypes, and for temperatures whose exponentials would overflow.

The latter two are operators of `torch.library`, so that `torch.compile` does not trace the loop over blocks. Second
derivatives (`create_graph=True`) and `torch.func` transforms use plain operations with n-by-n tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

# Side of a square block: a float32 block of this size stays within the cache of a core.
BLOCK = 384
# Blocks of exponentials are kept for the gradient while they, and three matrices like z, fit into this size:
# reading them back is quicker than computing them again.
KEEP_BYTES = 48 * 2**20
# Size of one strip of similarities.
STRIP_BYTES = 4 * 2**20
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


def contrastive_loss(
    z: Tensor,
    prototypes: Tensor | None,
    ids: Tensor,
    counts: Tensor,
    supcon_weight: Tensor,
    prototype_weight: Tensor | None,
    temperature: float,
    prototype_temperature: float,
    contrast_weight: float = 1.0,
    *,
    anchors: Tensor | slice | None = None,
    log_priors: Tensor | None = None,
    targets: Tensor | None = None,
    by_hand: bool = True,
) -> Tensor:
    """Return sum_i [ w_i (lse_i - 1/|P_i| sum_{p in P_i} s(z_i, z_p)) + v_i l_pt(z_i, theta_{y_i}) ].

    `z` (n, d) and `prototypes` (K, d) are raw vectors, y = `ids` the classes of the samples, `counts` their sizes.
    The weights w and v are given by class. `contrast_weight` multiplies the samples in the denominator of l_pt.
    `anchors` restricts the outer sum to some rows.
    """
    tensors = (z, prototypes, ids, counts, supcon_weight, prototype_weight)
    settings = (temperature, prototype_temperature, contrast_weight)
    # exp(64) summed over 10^9 rows is below the largest float32, and exp(-64) is a normal number.
    fits = 1 / min(temperature, prototype_temperature) <= (300.0 if z.dtype == torch.float64 else 64.0)
    if by_hand and fits and anchors is None and log_priors is None and targets is None and not _in_transform():
        loss: Tensor
        if torch.compiler.is_compiling():
            loss = _loss_operator(*tensors, *settings, True)[0]
        elif torch.is_grad_enabled():  # costs less than the operator
            loss = _ContrastiveLoss.apply(*tensors, *settings)  # type: ignore[no-untyped-call]
        else:
            loss = _loss_and_gradients(*tensors, *settings, False)[0]
        return loss
    rows = unit = unit_rows(z)
    own = torch.arange(len(z), device=z.device)
    sums = class_sums(unit, ids, len(counts))
    if anchors is not None:
        rows, own, ids = unit[anchors], own[anchors], ids[anchors]
        targets = None if targets is None else targets[anchors]
    lse = logsumexp(rows, unit, temperature, own)
    # To the positives of each sample. The similarity with itself, 1 or 0 for a zero vector, has no derivative.
    similarity = (rows * sums.index_select(0, ids)).sum(1) - rows.detach().square().sum(1)
    loss = torch.dot(lse, supcon_weight[ids]) - torch.dot(similarity, _pull(counts, supcon_weight, temperature)[ids])
    if prototypes is None or prototype_weight is None:
        return loss
    theta = unit_rows(prototypes)
    l_pt = prototype_losses(rows, lse, theta, ids, prototype_temperature, contrast_weight, log_priors, targets)
    return loss + torch.dot(l_pt, prototype_weight[ids])


def prototype_losses(
    rows: Tensor,
    lse: Tensor,
    theta: Tensor,
    ids: Tensor,
    temperature: float,
    contrast_weight: float,
    log_priors: Tensor | None,
    targets: Tensor | None = None,
) -> Tensor:
    """Return l_pt(z_i, theta_{y_i}) of unit rows and prototypes; with targets, sum_k targets_ik l_pt(z_i, theta_k)."""
    if log_priors is not None:  # one more coordinate; finite, because 0 times infinity is NaN
        prior = log_priors.to(theta.dtype).clamp_min(-1e4) * temperature
        theta, rows = torch.cat([theta, prior[:, None]], 1), torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    normaliser = logsumexp(rows, theta, temperature)
    if contrast_weight > 0:
        normaliser = torch.logaddexp(lse + math.log(contrast_weight), normaliser)
    if targets is None:
        return normaliser - (rows * theta.index_select(0, ids)).sum(1) / temperature
    return normaliser * targets.sum(1) - (rows * (targets @ theta)).sum(1) / temperature


def unit_rows(z: Tensor) -> Tensor:
    """Return z_i / |z_i| for rows of any finite length. A zero row stays zero and gets zero gradient."""
    if _in_transform() or torch.compiler.is_compiling():
        return _plain_unit_rows(z)
    unit: Tensor = _UnitRows.apply(z)  # type: ignore[no-untyped-call]
    return unit


def class_sums(rows: Tensor, ids: Tensor, n_classes: int) -> Tensor:
    """Return sum_{i: ids_i = k} rows_i, shape (n_classes, d)."""
    return rows.new_zeros(n_classes, rows.shape[1]).index_add(0, ids, rows)


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
            return _differentiable_gradients(_plain_unit_rows, (z,), grad)[0]
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


class _ContrastiveLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, prototypes: Tensor | None, *settings: Any) -> Tensor:
        ctx.settings = settings
        arguments = (*settings, any(ctx.needs_input_grad))
        loss, *gradients = _loss_and_gradients(z, prototypes, *arguments)
        ctx.save_for_backward(z, prototypes, *gradients)
        return loss

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, prototypes, *gradients = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = lambda z, prototypes=None: contrastive_loss(z, prototypes, *ctx.settings, by_hand=False)  # noqa: E731
            gradients = _differentiable_gradients(plain, (z,) if prototypes is None else (z, prototypes), grad)
        else:
            gradients = [g * grad for g in gradients]
        return *gradients, *[None] * (2 - len(gradients) + len(ctx.settings))


def _pull(counts: Tensor, supcon_weight: Tensor, temperature: float) -> Tensor:
    """Return the weight of each pair of one class: supcon_weight / (|P_i| t)."""
    return supcon_weight / (counts - 1).clamp_min_(1) / temperature


def _loss_and_gradients(
    z: Tensor,
    prototypes: Tensor | None,
    ids: Tensor,
    counts: Tensor,
    supcon_weight: Tensor,
    prototype_weight: Tensor | None,
    temperature: float,
    prototype_temperature: float,
    contrast_weight: float,
    gradients: bool,
) -> list[Tensor]:
    """Return `contrastive_loss`, and the gradients of z and of the prototypes if wanted."""
    unit, inverse_length = _normalise(z)
    kept: list[Tensor] = []
    exponentials = unit.new_zeros(len(unit))  # sum_{j != i} exp s_ij for every row i
    bytes_to_keep = KEEP_BYTES - 3 * unit.numel() * unit.element_size() if gradients else 0
    for rows, columns, e in _blocks(unit, temperature, kept, bytes_to_keep):
        exponentials[rows].add_(e.sum(1))
        if rows != columns:
            exponentials[columns].add_(e.sum(0))
    weight = supcon_weight[ids]
    loss = torch.dot(exponentials.log(), weight)
    # The similarities within class k add up to S_k . S_k, S = class sums, with those of samples with themselves.
    pull = _pull(counts, supcon_weight, temperature)
    sums = class_sums(unit, ids, len(counts))
    pulled = sums * pull[:, None]
    loss -= torch.dot(sums.view(-1), pulled.view(-1)) - torch.dot(pull[ids], inverse_length.view(-1).sign())
    grad_unit = pulled.mul_(-2).index_select(0, ids) if gradients else unit.new_empty(0)
    pair_weight = weight.div_(exponentials)  # d loss / d exp s_ij
    found = [grad_unit]
    if prototypes is not None and prototype_weight is not None:
        theta, inverse_length_theta = _normalise(prototypes)
        grad_theta = torch.zeros_like(theta)
        v = prototype_weight[ids]
        for strip, s in _strips(unit, theta, prototype_temperature, None):
            own = ids[strip, None]
            loss -= torch.dot(s.gather(1, own).view(-1), v[strip])
            total = s.exp_().sum(1).add_(exponentials[strip], alpha=contrast_weight)
            loss += torch.dot(total.log(), v[strip])
            if gradients:
                share = v[strip] / total
                pair_weight[strip].add_(share, alpha=contrast_weight)
                p = s.mul_(share[:, None]).scatter_add_(1, own, -v[strip, None])
                grad_unit[strip].addmm_(p, theta, alpha=1 / prototype_temperature)
                grad_theta.addmm_(p.T, unit[strip], alpha=1 / prototype_temperature)
        found.append(_project(grad_theta, theta, inverse_length_theta, grad_theta))
    if not gradients:
        return [loss]
    # Add sum_j e_ij (w_i + w_j) unit_j: i is a row and a column of the symmetric matrix e.
    w, product = pair_weight.div_(temperature), unit.new_empty(min(len(unit), BLOCK) ** 2)
    for rows, columns, e in _blocks(unit, temperature, kept):
        p = torch.add(w[rows, None], w[columns], out=product[: e.numel()].view(e.shape)).mul_(e)
        grad_unit[rows].addmm_(p, unit[columns])
        if rows != columns:
            grad_unit[columns].addmm_(p.T, unit[rows])
    _project(grad_unit, unit, inverse_length, grad_unit)
    return [loss, *found]


def _blocks(
    unit: Tensor, temperature: float, kept: list[Tensor], bytes_to_keep: int = 0
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield exp(similarity / temperature) of the blocks on and above the diagonal, 0 for a row with itself.

    Blocks are taken from `kept`, or computed and added to it as long as `bytes_to_keep` allow; others share a buffer.
    """
    slices, index, buffer = list(_slices(len(unit), BLOCK)), -1, None
    for i, rows in enumerate(slices):
        for columns in slices[i:]:
            index += 1
            if index < len(kept):
                yield rows, columns, kept[index]
                continue
            a = unit[rows]
            b = a if rows == columns else unit[columns]
            if bytes_to_keep > 0:
                out = unit.new_empty(len(a), len(b))
                kept.append(out)
                bytes_to_keep -= out.numel() * out.element_size()
            else:
                buffer = unit.new_empty(BLOCK * BLOCK) if buffer is None else buffer
                out = buffer[: len(a) * len(b)].view(len(a), len(b))
            # With beta = 0 the product is written over whatever the buffer holds.
            e = torch.addmm(out, a, b.T, beta=0, alpha=1 / temperature, out=out).exp_()
            yield rows, columns, e.fill_diagonal_(0) if a is b else e


def _slices(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def logsumexp(rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None = None) -> Tensor:
    """Return log sum_c exp(rows_i . columns_c / temperature), without the column `own_i` if given."""
    kernel: Any = _plain_logsumexp if _in_transform() else _logsumexp_operator
    lse: Tensor = kernel(rows, columns, temperature, own)
    return lse


@torch.library.custom_op("esupcon::logsumexp", mutates_args=())
def _logsumexp_operator(rows: Tensor, columns: Tensor, temperature: float, own: Tensor | None) -> Tensor:
    lse = rows.new_empty(len(rows))
    for strip, s in _strips(rows, columns, temperature, own):
        # A row without columns has the maximum -inf; subtracting it would give NaN.
        top = s.amax(1).clamp_min(torch.finfo(s.dtype).min)
        lse[strip] = s.sub_(top[:, None]).exp_().sum(1).log_().add_(top)
    return lse


@torch.library.custom_op("esupcon::logsumexp_gradients", mutates_args=())
def _logsumexp_gradients(
    grad: Tensor, rows: Tensor, columns: Tensor, lse: Tensor, temperature: float, own: Tensor | None
) -> list[Tensor]:
    grad_rows, grad_columns = torch.empty_like(rows), torch.zeros_like(columns)
    grad = grad / temperature
    lse = lse.clamp_min(torch.finfo(lse.dtype).min)
    for strip, s in _strips(rows, columns, temperature, own):
        p = s.sub_(lse[strip, None]).exp_().mul_(grad[strip, None])
        torch.mm(p, columns, out=grad_rows[strip])
        grad_columns.addmm_(p.T, rows[strip])
    return [grad_rows, grad_columns]


@_logsumexp_operator.register_fake
def _(rows: Tensor, *_: Any) -> Tensor:
    return rows.new_empty(len(rows))


@_logsumexp_gradients.register_fake
def _(grad: Tensor, rows: Tensor, columns: Tensor, *_: Any) -> list[Tensor]:
    return [torch.empty_like(rows), torch.empty_like(columns)]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, columns, ctx.temperature, own = inputs
    ctx.save_for_backward(rows, columns, output, own)


@without_autocast
def _logsumexp_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, columns, lse, own = ctx.saved_tensors
    if torch.is_grad_enabled():
        plain = functools.partial(_plain_logsumexp, temperature=ctx.temperature, own=own)
        return *_differentiable_gradients(plain, (rows, columns), grad), None, None
    return *_logsumexp_gradients(grad, rows, columns, lse, ctx.temperature, own), None, None


_logsumexp_operator.register_autograd(_logsumexp_backward, setup_context=_save_for_backward)


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
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of the inputs of a plain function, as tensors that can be differentiated again."""
    inputs = tuple(x.view_as(x) for x in inputs)  # one tensor passed twice counts as two
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(function(*inputs), wanted, grad, create_graph=True))
    return [next(found) if x.requires_grad else None for x in inputs]


# The same kernel as an operator, which `torch.compile` puts into its graph without looking inside.
_loss_operator = torch.library.custom_op("esupcon::contrastive_loss", _loss_and_gradients, mutates_args=())


@_loss_operator.register_fake
def _(z: Tensor, prototypes: Tensor | None, *_: Any) -> list[Tensor]:
    return [z.new_empty(()), *(torch.empty_like(x) for x in (z, prototypes) if x is not None)]


def _loss_operator_backward(ctx: Any, grads: list[Tensor]) -> tuple[Tensor | None, ...]:
    gradients = [g * grads[0] for g in ctx.saved_tensors]
    return *gradients, *[None] * (10 - len(gradients))


_loss_operator.register_autograd(
    _loss_operator_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*output[1:])
)
