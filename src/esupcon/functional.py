"""The losses, each as long as its equation.

Throughout, `z` (n, d) holds raw embeddings, `s(a, b)` is their cosine similarity divided by the temperature, and
`P_i` holds the other samples of the class of sample i. All views of a batch are rows of `z`: n is the paper's 2N.
Values are computed in float32 (float64 for float64 input), also under autocast.

`anchors` (a slice or index tensor) restricts the outer sum to some rows while all rows remain contrast and the
divisor stays that of the whole batch: values and gradients of disjoint anchors add up to those of the batch.
`check_finite=True` looks for NaN and inf first. It is off by default because it costs a pass over `z`.

Memory is linear in n. Second derivatives (`create_graph=True`) and `torch.func` transforms need n-by-n tensors.
`torch.compile(fullgraph=True)` accepts every loss.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from esupcon._contrast import (
    Contrast,
    class_sums,
    columns_logsumexp,
    row_products,
    unit_and_contrast,
    unit_rows,
    without_autocast,
)

__all__ = [
    "Anchors",
    "Average",
    "PrototypeAverage",
    "esupcon_loss",
    "prototype_loss",
    "simclr_loss",
    "spce_loss",
    "spce_posterior",
    "supcon_loss",
    "tightness_loss",
]

#: Rows that the outer sum is restricted to; None: all of them.
Anchors = Tensor | slice | None
#: What `spce_loss` divides the similarities to a class by: the size of the class, or that of the batch.
Average = Literal["class", "batch"]
#: How `esupcon_loss` averages l_pt if a `prototype_share` is given: over samples, or first within classes.
PrototypeAverage = Literal["class", "sample"]


@without_autocast
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


@without_autocast
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
    temperature = check_positive("temperature", temperature)
    z = check_embeddings(z, check_finite=check_finite)
    classes = count_classes(labels, len(z), needs_pair=True)
    contrast, sums = _contrast(z, classes, temperature, anchors)
    return _supcon_sum(contrast, sums, classes, temperature, anchors) / (len(z) - classes.n_alone)


@without_autocast
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
    temperature = check_positive("temperature", temperature)
    check_choice("average", average, ("class", "batch"))
    z = check_embeddings(z, check_finite=check_finite)
    ids, counts, _, highest = count_classes(labels, len(z), n_classes, only_present=True)
    unit = unit_rows(z)
    means = class_sums(unit, ids, len(counts)) / (counts.unsqueeze(1) if average == "class" else len(z))
    rows = _take(unit, anchors)
    log_normaliser = columns_logsumexp(rows, means, temperature=temperature)
    if average == "batch":
        n_absent = torch.as_tensor(highest + 1 if n_classes is None else n_classes) - len(counts)
        log_normaliser = torch.logaddexp(log_normaliser, n_absent.to(log_normaliser).log())
    own = row_products(rows, means.index_select(0, _take(ids, anchors))) / temperature
    return (log_normaliser - own).sum() / len(z)


@without_autocast
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
    temperature = check_positive("temperature", temperature)
    check_choice("average", average, ("class", "batch"))
    z, z_support = check_embeddings(z), check_embeddings(z_support)
    if z.shape[1] != z_support.shape[1]:
        raise ValueError(f"z and z_support must have the same width; got {z.shape[1]} and {z_support.shape[1]}.")
    ids, counts, *_ = count_classes(labels_support, len(z_support), n_classes)
    sums = class_sums(unit_rows(z_support), ids, n_classes)
    means = sums / (counts.clamp_min(1).unsqueeze(1) if average == "class" else len(z_support))
    logits = unit_rows(z).to(means.dtype) @ means.T / temperature
    if average == "class":
        logits = logits.masked_fill(counts == 0, -torch.inf)
    return logits.softmax(1)


@without_autocast
def tightness_loss(z: Tensor, labels: Tensor, prototypes: Tensor, *, check_finite: bool = False) -> Tensor:
    """`-1/n sum_i cos(z_i, theta_{y_i})`.

    Gradient flows to both arguments, as in the equation. Training methods that learn prototypes beside a
    representation pass `z.detach()`: the prototypes then follow the embedding and do not influence it.
    """
    z, theta = _same_dtype(z, prototypes, check_finite)
    ids, *_ = count_classes(labels, len(z), len(theta))
    return -row_products(unit_rows(z), theta.index_select(0, ids)).mean()


@without_autocast
def prototype_loss(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    *,
    temperature: float = 0.1,
    prototype_temperature: float | None = None,
    anchors: Anchors = None,
    check_finite: bool = False,
) -> Tensor:
    """`-s(z_i, theta_{y_i}) + log( sum_k exp s(z_i, theta_k) + sum_{j != i} exp s(z_i, z_j) )`: l_pt(z_i, theta_{y_i}).

    Shape (n,), one value per sample. Equal to log(e^CE + e^SupCon - 1), a smooth maximum of the cross entropy
    of sample i and of its SupCon loss with theta_{y_i} as the positive. `prototype_temperature` divides the
    similarities to prototypes; None: the same as `temperature`.
    """
    temperature, prototype_temperature = _temperatures(temperature, prototype_temperature)
    z, theta = _same_dtype(z, prototypes, check_finite)
    ids, *_ = count_classes(labels, len(z), len(theta))
    unit, to_samples, _, _ = unit_and_contrast(z, temperature=temperature, anchors=anchors)
    rows = _take(unit, anchors)
    to_prototypes = columns_logsumexp(rows, theta, temperature=prototype_temperature)
    own = row_products(rows, theta.index_select(0, _take(ids, anchors))) / prototype_temperature
    return torch.logaddexp(to_samples, to_prototypes) - own


@without_autocast
def esupcon_loss(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    *,
    temperature: float = 0.1,
    prototype_weight: float = 1.0,
    prototype_temperature: float | None = None,
    prototype_share: float | None = None,
    prototype_average: PrototypeAverage = "class",
    anchors: Anchors = None,
    check_finite: bool = False,
) -> Tensor:
    """`1/(n+K) [ w sum_k 1/n_k sum_{i: y_i = k} l_pt(z_i, theta_k) + sum_i l_SupCon(z_i, P_i) ]`.

    K = len(prototypes), n_k the samples of class k in the batch, w = `prototype_weight`. An absent class and a
    sample without a positive contribute 0 and the divisor stays n + K; no positive pair at all is a ValueError.

    With a `prototype_share` s the loss is `s mean(l_pt) + (1 - s) mean(l_SupCon)` instead. Both means run over what
    is there: l_SupCon over the samples that have a positive; l_pt over all samples (`prototype_average="sample"`),
    or first within each class and then over the classes in the batch (`"class"`).

    `prototype_temperature` divides the similarities to prototypes, as in `prototype_loss`.
    """
    temperature, prototype_temperature = _temperatures(temperature, prototype_temperature)
    check_prototype_share(prototype_weight, prototype_share, prototype_average)
    z, theta = _same_dtype(z, prototypes, check_finite)
    classes = count_classes(labels, len(z), len(theta), needs_pair=True)
    contrast, sums = _contrast(z, classes, temperature, anchors)
    supcon = _supcon_sum(contrast, sums, classes, temperature, anchors)

    to_prototypes = columns_logsumexp(_take(contrast.unit, anchors), theta, temperature=prototype_temperature)
    to_all = torch.logaddexp(contrast.lse, to_prototypes)
    weight = classes.counts.clamp_min(1).to(z.dtype).reciprocal_()  # of each sample, by its class
    if prototype_average == "sample":
        weight = torch.ones_like(weight)
    similarity = (sums * theta * weight.unsqueeze(1)).sum()
    prototype = torch.dot(to_all, weight[_take(classes.ids, anchors)]) - similarity / prototype_temperature
    if prototype_share is None:
        return (prototype_weight * prototype + supcon) / (len(z) + len(theta))
    n_averaged = len(z) if prototype_average == "sample" else (classes.counts > 0).sum()
    return prototype_share * prototype / n_averaged + (1 - prototype_share) * supcon / (len(z) - classes.n_alone)


def _take(rows: Tensor, anchors: Anchors) -> Tensor:
    """Return the rows of the anchors. Indexing all rows would copy their gradient."""
    return rows if anchors is None else rows[anchors]


def _contrast(z: Tensor, classes: Classes, temperature: float, anchors: Anchors) -> tuple[Contrast, Tensor]:
    """Return the contrast of a batch and the class sums of its anchors."""
    ids, n_classes = classes.ids, len(classes.counts)
    contrast = unit_and_contrast(z, temperature=temperature, anchors=anchors, ids=ids, n_classes=n_classes)
    if anchors is None:
        return contrast, contrast.class_sums
    return contrast, class_sums(contrast.unit[anchors], ids[anchors], n_classes)


def _supcon_sum(contrast: Contrast, sums: Tensor, classes: Classes, temperature: float, anchors: Anchors) -> Tensor:
    """Return sum_i l_SupCon(z_i, P_i) over the anchors that have a positive, the sum over positives in O(n d).

    With class sums S, the similarities within class k add up to S_k . S_k, those of a sample with itself included;
    those are 1 (0 for a zero vector) and pass no gradient, because the length of a unit vector cannot change.
    """
    ids = _take(classes.ids, anchors)
    share = (classes.counts - 1).clamp_min_(1).to(contrast.unit.dtype).mul_(temperature).reciprocal_()  # 1 / (|P_i| t)
    weighted_sums = contrast.class_sums * share.unsqueeze(1)
    within_classes = torch.dot(sums.flatten(), weighted_sums.flatten())
    with_itself = torch.dot(_take(contrast.with_itself, anchors), share[ids])
    lse = contrast.lse
    if isinstance(classes.n_alone, Tensor) or classes.n_alone > 0:  # a traced number cannot be compared
        lse = lse * (classes.counts != 1)[ids]
    return lse.sum() - within_classes + with_itself


def _same_dtype(z: Tensor, prototypes: Tensor, check_finite: bool) -> tuple[Tensor, Tensor]:
    """Check and return embeddings and unit prototypes, in one dtype."""
    z = check_embeddings(z, check_finite=check_finite)
    prototypes = check_prototypes(prototypes, z.shape[1])
    dtype = torch.promote_types(z.dtype, prototypes.dtype)
    return z.to(dtype), unit_rows(prototypes.to(dtype))


def _temperatures(temperature: float, prototype_temperature: float | None) -> tuple[float, float]:
    temperature = check_positive("temperature", temperature)
    if prototype_temperature is None:
        return temperature, temperature
    return temperature, check_positive("prototype_temperature", prototype_temperature)


# The checks of what the losses accept. Each message says what was expected, what was found, and what to do.


def check_embeddings(z: Tensor, *, check_finite: bool = False) -> Tensor:
    """Return a non-empty float matrix. Half precision is raised to float32, in which the losses are computed."""
    if z.ndim != 2:
        remedy = " Put views below each other: z.flatten(0, 1)." if z.ndim == 3 else ""
        raise ValueError(f"z must have two dimensions (samples, dim); got shape {tuple(z.shape)}.{remedy}")
    if not z.is_floating_point():
        raise ValueError(f"z must hold floating-point embeddings; got {z.dtype}. Pass z.float().")
    if z.numel() == 0:
        raise ValueError(f"z must hold at least one sample and one dimension; got shape {tuple(z.shape)}.")
    if check_finite:
        bad = int((~z.isfinite()).any(1).sum())
        if bad:
            raise ValueError(
                f"z must be finite; {bad} of {len(z)} rows hold NaN or inf. "
                "Lower the learning rate, or look for the first layer that gives such values."
            )
    return z if z.dtype == torch.float64 else z.float()


def check_prototypes(prototypes: Tensor, dim: int) -> Tensor:
    if prototypes.ndim != 2 or len(prototypes) == 0 or prototypes.shape[1] != dim:
        raise ValueError(
            f"prototypes must have shape (classes, {dim}), as wide as z; got {tuple(prototypes.shape)}. "
            "Prototypes live in the space of the embedding they classify."
        )
    if not prototypes.is_floating_point():
        raise ValueError(f"prototypes must be floating-point; got {prototypes.dtype}. Pass prototypes.float().")
    return prototypes if prototypes.dtype == torch.float64 else prototypes.float()


class Classes(NamedTuple):
    """The classes of a batch. The two numbers are tensors in traced code, which cannot read values."""

    ids: Tensor  # (n,) the class of each sample
    counts: Tensor  # the samples of each class
    n_alone: int | Tensor  # samples without another of their class
    highest: int | Tensor  # label


def count_classes(
    labels: Tensor, n: int, n_classes: int | None = None, *, only_present: bool = False, needs_pair: bool = False
) -> Classes:
    """Check the labels of n samples and count their classes.

    Classes are numbered by their labels; without gaps if `only_present`, or if the labels are too large to index a
    table. `needs_pair` raises an error if no two samples share a class.
    """
    if labels.ndim != 1 or len(labels) != n:
        remedy = ""
        if labels.ndim == 1 and len(labels) and n % len(labels) == 0:
            remedy = f" With {n // len(labels)} views of each sample pass labels.repeat({n // len(labels)})."
        raise ValueError(
            f"labels must hold one label for each of the {n} rows of z; got shape {tuple(labels.shape)}.{remedy}"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels must be integers; got {labels.dtype}. Pass labels.long().")
    if torch.compiler.is_compiling():
        return Classes(*torch.ops.esupcon.count_classes(labels, n_classes, only_present, needs_pair))
    return _count_classes(labels.long(), n_classes, only_present, needs_pair)


def _count_classes(labels: Tensor, n_classes: int | None, only_present: bool, needs_pair: bool) -> Classes:
    lowest, highest = (int(value) for value in labels.aminmax())
    if lowest < 0:
        raise ValueError(f"labels must not be negative; the lowest is {lowest}. Leave unlabelled samples out.")
    if n_classes is not None and highest >= n_classes:
        raise ValueError(
            f"labels must be below the number of classes, {n_classes}; the highest is {highest}. "
            "Number the classes from 0, or pass a prototype for every class."
        )
    if only_present or (n_classes is None and highest > len(labels)):
        _, ids, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    else:
        ids, counts = labels, torch.bincount(labels, minlength=n_classes or 0)
    n_alone = int((counts == 1).sum())
    if needs_pair and n_alone == len(labels):
        raise ValueError(
            f"the supervised contrastive loss needs at least one positive pair; {n_alone} samples hold {n_alone} "
            "classes. Pass two views of each sample."
        )
    return Classes(ids, counts, n_alone, highest)


@torch.library.custom_op(
    "esupcon::count_classes",
    mutates_args=(),
    schema="(Tensor labels, SymInt? n_classes, bool only_present, bool needs_pair) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _count_classes_operator(
    labels: Tensor, n_classes: int | None, only_present: bool, needs_pair: bool
) -> tuple[Tensor, ...]:
    ids, counts, n_alone, highest = _count_classes(labels.long(), n_classes, only_present, needs_pair)
    return ids.clone(), counts, torch.tensor(n_alone, device=labels.device), torch.tensor(highest, device=labels.device)


@_count_classes_operator.register_fake
def _(labels: Tensor, n_classes: int | None, only_present: bool, needs_pair: bool) -> tuple[Tensor, ...]:
    size = torch.library.get_ctx().new_dynamic_size() if n_classes is None or only_present else n_classes
    return tuple(labels.new_empty(shape, dtype=torch.int64) for shape in (labels.shape, (size,), (), ()))


def check_positive(name: str, value: float) -> float:
    if type(value) is float and 0 < value < math.inf:  # the usual case, without the cost of `isinstance(value, Real)`
        return value
    if isinstance(value, Tensor):
        raise ValueError(  # noqa: TRY004 - one error type at the public edge
            f"{name} must be a number; got a tensor, to which no gradient would flow. Pass float({name})."
        )
    if not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a finite number above 0; got {value!r}.")
    return float(value)


def check_prototype_share(weight: float, share: float | None, average: str) -> None:
    """Check the arguments that weight l_pt in `esupcon_loss`."""
    check_choice("prototype_average", average, ("class", "sample"))
    if not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
        raise ValueError(f"prototype_weight must be a finite number of at least 0; got {weight!r}.")
    if share is None:
        if average != "class":
            raise ValueError(f"prototype_average={average!r} needs a prototype_share; got None. Pass one from 0 to 1.")
        return
    if not isinstance(share, Real) or not 0 <= share <= 1:
        raise ValueError(f"prototype_share must be a number from 0 to 1, or None; got {share!r}.")
    if weight != 1:
        raise ValueError(
            f"prototype_weight and prototype_share exclude each other; got {weight!r} and {share!r}. "
            "Leave prototype_weight at 1."
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value
