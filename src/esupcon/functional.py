"""The losses, each as long as its equation.

Throughout, `z` (n, d) holds raw embeddings, `s(a, b)` is their cosine similarity divided by the temperature, and
`P_i` holds the other samples of the class of sample i. All views of a batch are rows of `z`: n is the paper's 2N.
Values are computed in float32 (float64 for float64 input) whatever autocast says.

`anchors` (a slice or index tensor) restricts the outer sum to some rows while all rows remain contrast and the
divisor stays that of the whole batch: values and gradients of disjoint anchors add up to those of the batch.
`check_finite=True` looks for NaN and inf first; it is off by default because it costs a pass over `z`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, ParamSpec

import torch
from torch import Tensor

from esupcon.contrast import Contrast, columns_logsumexp, unit_and_contrast
from esupcon.cosine import class_sums, row_products, unit_rows
from esupcon.precision import without_autocast
from esupcon.validation import (
    check_choice,
    check_embeddings,
    check_labels,
    check_prototypes,
    check_temperature,
    check_weight,
)

#: Rows that the outer sum is restricted to; None: all of them.
Anchors = Tensor | slice | None
#: What `spce_loss` divides the similarities to a class by: the size of the class, or that of the batch.
Average = Literal["class", "batch"]
_P = ParamSpec("_P")


def _as_written(loss: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    """Runs a loss as it is written: in full precision under autocast, and never traced by torch.compile.

    Tracing would unroll the kernel's loop over blocks; a compiled module calls the loss between two graphs.
    """

    untraced: Callable[_P, Tensor] = torch.compiler.disable(without_autocast(loss))
    return untraced


@_as_written
def simclr_loss(z: Tensor, *, temperature: float = 0.5, check_finite: bool = False) -> Tensor:
    """`1/n sum_i [ -s(z_i, z_i') + log sum_{j != i} exp s(z_i, z_j) ]`, `z_i'` the other view of image i.

    `z = cat(view1, view2)`: row i pairs with row i + n/2. This is `supcon_loss` with each image its own class.
    """
    if z.ndim == 2 and len(z) % 2:
        raise ValueError(
            f"simclr_loss needs two views of every image, z = cat(view1, view2); got an odd number of rows, {len(z)}."
        )
    images = torch.arange(len(z) // 2, device=z.device)
    return supcon_loss(z, images.repeat(2), temperature=temperature, check_finite=check_finite)


@_as_written
def supcon_loss(
    z: Tensor,
    labels: Tensor,
    *,
    temperature: float = 0.1,
    anchors: Anchors = None,
    check_finite: bool = False,
) -> Tensor:
    """`mean_i [ -1/|P_i| sum_{p in P_i} s(z_i, z_p) + log sum_{j != i} exp s(z_i, z_j) ]`.

    The mean runs over the samples that have a positive; a batch without any is a ValueError.
    """
    temperature = check_temperature(temperature)
    z = check_embeddings(z, check_finite=check_finite)
    labels = check_labels(labels, len(z))
    ids, class_counts = _class_ids(labels)
    n_alone = _check_some_positive(class_counts, len(z))
    contrast = unit_and_contrast(z, temperature=temperature, anchors=anchors, ids=ids, n_classes=len(class_counts))
    return _supcon_sum(contrast, ids, class_counts, n_alone, temperature, anchors) / (len(z) - n_alone)


@_as_written
def spce_loss(
    z: Tensor,
    labels: Tensor,
    *,
    temperature: float = 0.1,
    average: Average = "class",
    n_classes: int | None = None,
    anchors: Anchors = None,
    check_finite: bool = False,
) -> Tensor:
    """`-1/n sum_i log [ exp l(i, y_i) / sum_k exp l(i, k) ]`, `l(i, k) = 1/m_k sum_{j: y_j = k} s(z_i, z_j)`.

    `average="class"`: `m_k` is the size of class k, and classes absent from the batch take no part in the softmax.
    `average="batch"`: `m_k = n`, the literal equation with temperature 1; an absent class contributes exp(0), so
    the number of classes matters: `n_classes`, by default the highest label plus one.
    """
    temperature = check_temperature(temperature)
    check_choice("average", average, ("class", "batch"))
    z = check_embeddings(z, check_finite=check_finite)
    labels = check_labels(labels, len(z), n_classes=n_classes)
    unit = unit_rows(z)
    present, ids, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = class_sums(unit, ids, len(present))
    means = sums / (counts.unsqueeze(1) if average == "class" else len(z))
    rows = _rows(anchors)
    log_normaliser = columns_logsumexp(unit[rows], means, temperature=temperature)
    if average == "batch":
        n_absent = (n_classes or int(labels.max()) + 1) - len(present)
        log_normaliser = torch.logaddexp(log_normaliser, log_normaliser.new_tensor(float(n_absent)).log())
    own = row_products(unit[rows], means.index_select(0, ids[rows])) / temperature
    return (log_normaliser - own).sum() / len(z)


@_as_written
def spce_posterior(
    z: Tensor,
    z_support: Tensor,
    labels_support: Tensor,
    n_classes: int,
    *,
    temperature: float = 0.1,
    average: Average = "class",
) -> Tensor:
    """`p(k | z_i) = exp l(i, k) / sum_c exp l(i, c)`, the softmax inside `spce_loss`, over support samples.

    Shape (n, n_classes). A class without support has probability 0 for `average="class"`; for
    `average="batch"` it keeps the exp(0) that the equation gives it.
    """
    temperature = check_temperature(temperature)
    check_choice("average", average, ("class", "batch"))
    z, z_support = check_embeddings(z), check_embeddings(z_support)
    if z.shape[1] != z_support.shape[1]:
        raise ValueError(f"z and z_support must have the same width; got {z.shape[1]} and {z_support.shape[1]}.")
    labels = check_labels(labels_support, len(z_support), n_classes=n_classes)
    counts = torch.bincount(labels, minlength=n_classes)
    sums = class_sums(unit_rows(z_support), labels, n_classes)
    means = sums / (counts.clamp_min(1).unsqueeze(1) if average == "class" else len(z_support))
    logits = unit_rows(z).to(means.dtype) @ means.T / temperature
    if average == "class":
        logits = logits.masked_fill(counts == 0, -torch.inf)
    return logits.softmax(1)


@_as_written
def tightness_loss(z: Tensor, labels: Tensor, prototypes: Tensor, *, check_finite: bool = False) -> Tensor:
    """`-1/n sum_i cos(z_i, theta_{y_i})`.

    Gradient flows to both arguments, as the equation says. The training methods that learn prototypes beside a
    representation pass `z.detach()`, so that the prototypes follow the embedding and do not steer it: the
    caller detaches, never this function.
    """
    z = check_embeddings(z, check_finite=check_finite)
    prototypes = check_prototypes(prototypes, z.shape[1])
    labels = check_labels(labels, len(z), n_classes=len(prototypes))
    return -row_products(unit_rows(z), unit_rows(prototypes).index_select(0, labels)).mean()


@_as_written
def prototype_loss(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    *,
    temperature: float = 0.1,
    anchors: Anchors = None,
    check_finite: bool = False,
) -> Tensor:
    """`-s(z_i, theta_{y_i}) + log( sum_k exp s(z_i, theta_k) + sum_{j != i} exp s(z_i, z_j) )`: l_pt(z_i, theta_{y_i}).

    Shape (n,), one value a sample. Equal to log(e^CE + e^SupCon - 1), a smooth maximum of the cross entropy
    of sample i and of its SupCon loss with theta_{y_i} as the positive.
    """
    temperature = check_temperature(temperature)
    z, labels, theta = _classified(z, labels, prototypes, check_finite)
    rows = _rows(anchors)
    unit, to_samples, *_ = unit_and_contrast(z, temperature=temperature, anchors=anchors)
    to_prototypes = columns_logsumexp(unit[rows], theta, temperature=temperature)
    own = row_products(unit[rows], theta.index_select(0, labels[rows])) / temperature
    return torch.logaddexp(to_samples, to_prototypes) - own


@_as_written
def esupcon_loss(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    *,
    temperature: float = 0.1,
    prototype_weight: float = 1.0,
    anchors: Anchors = None,
    check_finite: bool = False,
) -> Tensor:
    """`1/(n+K) [ w sum_k 1/n_k sum_{i: y_i = k} l_pt(z_i, theta_k) + sum_i l_SupCon(z_i, P_i) ]`.

    K = len(prototypes), n_k the samples of class k in the batch, w = `prototype_weight`. An absent class and a
    sample without a positive contribute 0 and the divisor stays n + K; no positive pair at all is a ValueError.
    """
    temperature = check_temperature(temperature)
    prototype_weight = check_weight("prototype_weight", prototype_weight)
    z, labels, theta = _classified(z, labels, prototypes, check_finite)
    class_counts = torch.bincount(labels, minlength=len(theta))
    n_alone = _check_some_positive(class_counts, len(z))
    contrast = unit_and_contrast(z, temperature=temperature, anchors=anchors, ids=labels, n_classes=len(theta))
    unit, to_samples, of_anchors = contrast.unit, contrast.lse, _sums_of_anchors(contrast, labels, anchors)
    supcon = _supcon_sum(contrast, labels, class_counts, n_alone, temperature, anchors)

    rows = _rows(anchors)
    to_all = torch.logaddexp(to_samples, columns_logsumexp(unit[rows], theta, temperature=temperature))
    share = class_counts.clamp_min(1).to(unit.dtype).reciprocal_()
    similarity = (of_anchors * theta * share.unsqueeze(1)).sum()
    prototype = torch.dot(to_all, share[labels[rows]]) - similarity / temperature
    return (prototype_weight * prototype + supcon) / (len(z) + len(theta))


def _rows(anchors: Anchors) -> Tensor | slice:
    return slice(None) if anchors is None else anchors


def _classified(z: Tensor, labels: Tensor, prototypes: Tensor, check_finite: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, labels and unit prototypes, of one dtype."""
    z = check_embeddings(z, check_finite=check_finite)
    prototypes = check_prototypes(prototypes, z.shape[1])
    labels = check_labels(labels, len(z), n_classes=len(prototypes))
    dtype = torch.promote_types(z.dtype, prototypes.dtype)
    return z.to(dtype), labels, unit_rows(prototypes.to(dtype))


def _class_ids(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Class numbers small enough to index a table with, and the samples of each."""
    if int(labels.max()) <= len(labels):
        return labels, torch.bincount(labels)
    _, ids, class_counts = torch.unique(labels, return_inverse=True, return_counts=True)
    return ids, class_counts


def _check_some_positive(class_counts: Tensor, n: int) -> int:
    """The number of samples that are alone in their class; an error where all are."""
    n_alone = int((class_counts == 1).sum())
    if n_alone == n:
        raise ValueError(
            f"the supervised contrastive loss needs at least one positive pair; {n} samples hold {n} classes. "
            "Pass two views of each sample."
        )
    return n_alone


def _sums_of_anchors(contrast: Contrast, ids: Tensor, anchors: Anchors) -> Tensor:
    assert contrast.class_sums is not None
    if anchors is None:
        return contrast.class_sums
    return class_sums(contrast.unit[anchors], ids[anchors], len(contrast.class_sums))


def _supcon_sum(
    contrast: Contrast, ids: Tensor, class_counts: Tensor, n_alone: int, temperature: float, anchors: Anchors
) -> Tensor:
    """sum_i l_SupCon(z_i, P_i) over the anchors that have a positive, the sum over positives in O(n d).

    With class sums S, the similarities within class k add up to S_k . S_k, those of a sample with itself included;
    those are 1 (0 for a zero vector) and pass no gradient, because the length of a unit vector cannot change.
    """
    assert contrast.class_sums is not None
    rows = _rows(anchors)
    share = (class_counts - 1).clamp_min_(1).to(contrast.unit.dtype).mul_(temperature).reciprocal_()  # 1 / (|P_i| t)
    weighted_sums = contrast.class_sums * share.unsqueeze(1)
    within_classes = torch.dot(_sums_of_anchors(contrast, ids, anchors).flatten(), weighted_sums.flatten())
    with_itself = torch.dot(contrast.with_itself[rows], share[ids[rows]])
    lse = contrast.lse if n_alone == 0 else contrast.lse[(class_counts != 1)[ids[rows]]]
    return lse.sum() - within_classes + with_itself
