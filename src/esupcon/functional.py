"""The losses, each as long as its equation.

Throughout, z (n, d) holds raw embeddings, s(a, b) is their cosine similarity divided by the temperature, and
P_i holds the other samples of the class of sample i. All views of a batch are rows of z: n is the paper's 2N.
Values are computed in float32 (float64 for float64 input) whatever autocast says.

`anchors` (a slice or index tensor) restricts the outer sum to some rows while all rows remain contrast and the
divisor stays that of the whole batch: values and gradients of disjoint anchors add up to those of the batch.
`check_finite=True` looks for NaN and inf first; it is off by default because it costs a pass over z.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, ParamSpec

import torch
from torch import Tensor

from esupcon.contrast import columns_logsumexp, contrast_logsumexp
from esupcon.cosine import class_sums, positive_similarity, row_products, unit_rows
from esupcon.precision import without_autocast
from esupcon.validation import (
    check_choice,
    check_embeddings,
    check_labels,
    check_prototypes,
    check_temperature,
    check_weight,
)

Anchors = Tensor | slice | None
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
    """1/n sum_i [ -s(z_i, z_i') + log sum_{j != i} exp s(z_i, z_j) ], z_i' the other view of image i.

    z = cat(view1, view2): row i pairs with row i + n/2. This is `supcon_loss` with each image its own class.
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
    """mean_i [ -1/|P_i| sum_{p in P_i} s(z_i, z_p) + log sum_{j != i} exp s(z_i, z_j) ].

    The mean runs over the samples that have a positive; a batch without any is a ValueError.
    """
    temperature = check_temperature(temperature)
    z = check_embeddings(z, check_finite=check_finite)
    labels = check_labels(labels, len(z))
    per_sample, has_positive = _supcon_terms(unit_rows(z), labels, temperature, anchors)
    total = per_sample.sum() if has_positive is None else per_sample[has_positive[_rows(anchors)]].sum()
    return total / (len(z) if has_positive is None else has_positive.sum())


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
    """-1/n sum_i log [ exp l(i, y_i) / sum_k exp l(i, k) ], l(i, k) = 1/m_k sum_{j: y_j = k} s(z_i, z_j).

    `average="class"`: m_k is the size of class k, and classes absent from the batch take no part in the softmax.
    `average="batch"`: m_k = n, the literal equation with temperature 1; an absent class contributes exp(0), so
    the number of classes matters: `n_classes`, by default the highest label plus one.
    """
    temperature = check_temperature(temperature)
    check_choice("average", average, ("class", "batch"))
    z = check_embeddings(z, check_finite=check_finite)
    labels = check_labels(labels, len(z), n_classes=n_classes)
    unit = unit_rows(z)
    present, ids, counts = labels.unique(return_inverse=True, return_counts=True)
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
    """p(k | z_i) = exp l(i, k) / sum_c exp l(i, c), the softmax inside `spce_loss`, over support samples.

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
    """-1/n sum_i cos(z_i, theta_{y_i}).

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
    """l_pt(z_i, theta_{y_i}) = -s(z_i, theta_{y_i}) + log( sum_k exp s(z_i, theta_k) + sum_{j != i} exp s(z_i, z_j) ).

    Shape (n,), one value a sample. Equal to log(e^CE + e^SupCon - 1), a smooth maximum of the cross entropy
    of sample i and of its SupCon loss with theta_{y_i} as the positive.
    """
    temperature = check_temperature(temperature)
    unit, labels, theta = _classified(z, labels, prototypes, check_finite)
    to_samples = contrast_logsumexp(unit, temperature=temperature, anchors=anchors)
    return _prototype_terms(unit, labels, theta, to_samples, temperature, anchors)


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
    """1/(n+K) [ w sum_k 1/n_k sum_{i: y_i = k} l_pt(z_i, theta_k) + sum_i l_SupCon(z_i, P_i) ].

    K = len(prototypes), n_k the samples of class k in the batch, w = `prototype_weight`. An absent class and a
    sample without a positive contribute 0 and the divisor stays n + K; no positive pair at all is a ValueError.
    """
    temperature = check_temperature(temperature)
    prototype_weight = check_weight("prototype_weight", prototype_weight)
    unit, labels, theta = _classified(z, labels, prototypes, check_finite)
    rows, n_classes = _rows(anchors), len(theta)
    to_samples = contrast_logsumexp(unit, temperature=temperature, anchors=anchors)
    supcon, has_positive = _supcon_terms(unit, labels, temperature, anchors, to_samples)
    pt = _prototype_terms(unit, labels, theta, to_samples, temperature, anchors)
    class_counts = torch.bincount(labels, minlength=n_classes)
    prototype_sum = (pt / class_counts[labels[rows]]).sum()
    supcon_sum = supcon.sum() if has_positive is None else supcon[has_positive[rows]].sum()
    return (prototype_weight * prototype_sum + supcon_sum) / (len(z) + n_classes)


def _rows(anchors: Anchors) -> Tensor | slice:
    return slice(None) if anchors is None else anchors


def _classified(z: Tensor, labels: Tensor, prototypes: Tensor, check_finite: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Unit embeddings, labels and unit prototypes of one dtype."""
    z = check_embeddings(z, check_finite=check_finite)
    prototypes = check_prototypes(prototypes, z.shape[1])
    labels = check_labels(labels, len(z), n_classes=len(prototypes))
    dtype = torch.promote_types(z.dtype, prototypes.dtype)
    return unit_rows(z.to(dtype)), labels, unit_rows(prototypes.to(dtype))


def _supcon_terms(
    unit: Tensor, labels: Tensor, temperature: float, anchors: Anchors, to_samples: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """l_SupCon(z_i, P_i) of the anchors, and which samples have a positive (None: all of them)."""
    present, ids, counts = labels.unique(return_inverse=True, return_counts=True)
    if len(present) == len(labels):
        raise ValueError(
            "the supervised contrastive loss needs at least one positive pair; "
            f"{len(labels)} samples hold {len(present)} classes. Pass two views of each sample."
        )
    if to_samples is None:
        to_samples = contrast_logsumexp(unit, temperature=temperature, anchors=anchors)
    rows = _rows(anchors)
    n_positives = (counts - 1)[ids]
    mean_similarity = positive_similarity(unit, ids, len(present))[rows] / n_positives[rows].clamp_min(1)
    terms = to_samples - mean_similarity / temperature
    return terms, (n_positives > 0 if int(counts.min()) == 1 else None)


def _prototype_terms(
    unit: Tensor, labels: Tensor, theta: Tensor, to_samples: Tensor, temperature: float, anchors: Anchors
) -> Tensor:
    rows = _rows(anchors)
    own = row_products(unit[rows], theta.index_select(0, labels[rows])) / temperature
    to_prototypes = columns_logsumexp(unit[rows], theta, temperature=temperature)
    return torch.logaddexp(to_samples, to_prototypes) - own
