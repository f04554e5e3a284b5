"""The losses, each as long as its equation.

Throughout, `z` (n, d) holds raw embeddings, `s(a, b)` is their cosine similarity divided by the temperature, and
`P_i` holds the other samples of the class of sample i. All views of a batch are rows of `z`: n is the paper's 2N.
Values are computed in float32 (float64 for float64 input), also under autocast.

`anchors` (a slice or index tensor) restricts the outer sum to some rows while all rows remain contrast and the
divisor stays that of the whole batch: values and gradients of disjoint anchors add up to those of the batch.

>>> import torch
>>> from esupcon import functional as F
>>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])  # two views of two images
>>> labels, prototypes = torch.tensor([0, 1, 0, 1]), torch.eye(2)
>>> round(F.supcon_loss(z, labels, temperature=0.1).item(), 4)
0.0003
>>> round(F.esupcon_loss(z, labels, prototypes).item(), 4)
0.2273

Memory is linear in n. Second derivatives (`create_graph=True`) and `torch.func` transforms need n-by-n tensors.
`torch.compile(fullgraph=True)` accepts every loss.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from esupcon._console import check_choice
from esupcon._contrast import (
    class_sums,
    contrastive_loss,
    logsumexp,
    prototype_losses,
    unit_rows,
    without_autocast,
)

__all__ = [
    "Anchors",
    "Average",
    "ContrastWeight",
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
#: Weight of the samples in l_pt: a number, or "mean": together as much as the prototypes.
ContrastWeight = float | Literal["mean"]


@without_autocast
def simclr_loss(z: Tensor, *, temperature: float = 0.5) -> Tensor:
    """`1/n sum_i [ -s(z_i, z_i') + log sum_{j != i} exp s(z_i, z_j) ]`, `z_i'` the other view of image i.

    This is `supcon_loss` with each image as its own class.

    Parameters
    ----------
    z : Tensor of shape (n, d)
        Embeddings, `cat(view1, view2)`: row i pairs with row i + n/2.
    temperature : float, default=0.5
        Divides the cosine similarities.
    """
    if z.ndim == 2 and len(z) % 2:
        raise ValueError(
            f"simclr_loss needs two views of every image, z = cat(view1, view2); got an odd number of rows, {len(z)}."
        )
    images = torch.arange(len(z) // 2, device=z.device)
    return supcon_loss(z, images.repeat(2), temperature=temperature)


@without_autocast
def supcon_loss(z: Tensor, labels: Tensor, *, temperature: float = 0.1, anchors: Anchors = None) -> Tensor:
    """`mean_i [ -1/|P_i| sum_{p in P_i} s(z_i, z_p) + log sum_{j != i} exp s(z_i, z_j) ]`.

    The mean runs over the samples that have a positive; a batch without any is a ValueError.

    Parameters
    ----------
    z : Tensor of shape (n, d)
        Embeddings, a row for each view of each sample.
    labels : integer Tensor of shape (n,)
        Class of each row.
    temperature : float, default=0.1
        Divides the cosine similarities.
    """
    temperature = check_number("temperature", temperature)
    z = check_embeddings(z)
    ids, counts, n_alone = count_classes(labels, len(z), needs_pair=True)
    weight = (counts != 1).to(z.dtype) / (len(z) - n_alone)
    return contrastive_loss(z, None, ids, counts, weight, None, temperature, temperature, anchors=anchors)


@without_autocast
def spce_loss(
    z: Tensor,
    labels: Tensor,
    *,
    temperature: float = 0.1,
    average: Average = "class",
    n_classes: int | None = None,
    anchors: Anchors = None,
) -> Tensor:
    """`-1/n sum_i log [ exp l(i, y_i) / sum_k exp l(i, k) ]`, `l(i, k) = 1/m_k sum_{j: y_j = k} s(z_i, z_j)`.

    Parameters
    ----------
    z, labels, temperature
        As in `supcon_loss`.
    average : {"class", "batch"}, default="class"
        "class": `m_k` is the size of class k, and classes absent from the batch take no part in the softmax. "batch":
        `m_k = n`, the literal equation with temperature 1, in which an absent class contributes exp(0).
    n_classes : int, default=None
        Number of classes for `average="batch"`; None: the highest label plus one.
    """
    temperature = check_number("temperature", temperature)
    check_choice("average", average, ("class", "batch"))
    z = check_embeddings(z)
    ids, counts, _ = count_classes(labels, len(z), n_classes, only_present=True)
    unit = unit_rows(z)
    means = class_sums(unit, ids, len(counts)) / (counts.unsqueeze(1) if average == "class" else len(z))
    rows = _take(unit, anchors)
    log_normaliser = logsumexp(rows, means, temperature)
    if average == "batch":
        highest = labels.long().max() if n_classes is None else torch.as_tensor(n_classes - 1)
        n_absent = highest - len(counts) + 1
        log_normaliser = torch.logaddexp(log_normaliser, n_absent.to(log_normaliser).log())
    own = (rows * means.index_select(0, _take(ids, anchors))).sum(1) / temperature
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

    Parameters
    ----------
    z, z_support : Tensor of shape (n, d), Tensor of shape (m, d)
        Embeddings to classify, and embeddings of labelled samples.
    labels_support : integer Tensor of shape (m,)
        Class of each support sample.
    n_classes : int
        Number of classes.
    temperature, average : float, {"class", "batch"}
        As in `spce_loss`.

    Returns
    -------
    probabilities : Tensor of shape (n, n_classes)
        A class without support has probability 0 for `average="class"`; for `average="batch"` it keeps the exp(0) that
        the equation gives it.
    """
    temperature = check_number("temperature", temperature)
    check_choice("average", average, ("class", "batch"))
    z, z_support = check_embeddings(z), check_embeddings(z_support, "z_support")
    _check_width("z_support", z_support, z)
    ids, counts, *_ = count_classes(labels_support, len(z_support), n_classes)
    sums = class_sums(unit_rows(z_support), ids, n_classes)
    means = sums / (counts.clamp_min(1).unsqueeze(1) if average == "class" else len(z_support))
    logits = unit_rows(z).to(means.dtype) @ means.T / temperature
    if average == "class":
        logits = logits.masked_fill(counts == 0, -torch.inf)
    return logits.softmax(1)


@without_autocast
def tightness_loss(z: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """`-1/n sum_i cos(z_i, theta_{y_i})`.

    Gradient flows to both arguments, as in the equation. Training methods that learn prototypes beside a
    representation pass `z.detach()`: the prototypes then follow the embedding and do not influence it.

    The arguments are those of `esupcon_loss`.
    """
    z, prototypes = _same_dtype(z, prototypes)
    ids, *_ = count_classes(labels, len(z), len(prototypes))
    return -(unit_rows(z) * unit_rows(prototypes).index_select(0, ids)).sum(1).mean()


@without_autocast
def prototype_loss(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    *,
    temperature: float = 0.1,
    prototype_temperature: float | None = None,
    contrast_weight: ContrastWeight = 1.0,
    log_priors: Tensor | None = None,
    anchors: Anchors = None,
) -> Tensor:
    """`-s(z_i, theta_{y_i}) + log( sum_k exp s(z_i, theta_k) + sum_{j != i} exp s(z_i, z_j) )`: l_pt(z_i, theta_{y_i}).

    Equal to log(e^CE + e^SupCon - 1), a smooth maximum of the cross entropy of sample i and of its SupCon loss with
    theta_{y_i} as the positive.

    The arguments are those of `esupcon_loss`.

    Returns
    -------
    losses : Tensor of shape (n,)
        One value per sample, or per anchor.
    """
    temperature = check_number("temperature", temperature)
    prototype_temperature = check_number("prototype_temperature", prototype_temperature, temperature)
    z, prototypes = _same_dtype(z, prototypes)
    contrast_weight = _contrast_weight(contrast_weight, len(z), len(prototypes))
    _check_shape("log_priors", log_priors, (len(prototypes),))
    ids, *_ = count_classes(labels, len(z), len(prototypes))
    unit = unit_rows(z)
    rows, own = _take(unit, anchors), _take(torch.arange(len(z), device=z.device), anchors)
    lse = logsumexp(rows, unit, temperature, own)
    theta = unit_rows(prototypes)
    return prototype_losses(rows, lse, theta, ids[own], prototype_temperature, contrast_weight, log_priors)


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
    contrast_weight: ContrastWeight = 1.0,
    log_priors: Tensor | None = None,
    targets: Tensor | None = None,
    anchors: Anchors = None,
) -> Tensor:
    """`1/(n+K) [ w sum_k 1/n_k sum_{i: y_i = k} l_pt(z_i, theta_k) + sum_i l_SupCon(z_i, P_i) ]`.

    K = len(prototypes), n_k the samples of class k in the batch, w = `prototype_weight`, l_pt as in `prototype_loss`.
    An absent class and a sample without a positive contribute 0 and the divisor stays n + K; no positive pair at all
    is a ValueError.

    Parameters
    ----------
    z, labels
        As in `supcon_loss`.
    prototypes : Tensor of shape (K, d)
        A vector for each class, such as `PrototypeHead.weight`; only its direction matters.
    temperature, prototype_temperature : float, default=0.1; float, default=None
        Divide the similarities to samples and to prototypes; None: the same as `temperature`.
    prototype_weight : float, default=1.0
        w in the equation.
    prototype_share : float, default=None
        If given, s of the loss `s mean(l_pt) + (1 - s) mean(l_SupCon)`, which replaces the equation. The mean of
        l_SupCon is over the samples that have a positive.
    prototype_average : {"class", "sample"}, default="class"
        With a share, the mean of l_pt is over all samples, or first within each class of the batch.
    contrast_weight : float or "mean", default=1.0
        Multiplies the sum over samples in l_pt: with 0 it is the cross entropy of a `PrototypeHead`, with "mean" the
        n - 1 samples weigh as much as the K prototypes: K / (n - 1).
    log_priors : Tensor of shape (K,), default=None
        Added to the quotients of prototypes in l_pt (logit adjustment); a class with prior 0 takes no part.
    targets : Tensor of shape (n, K), default=None
        Soft labels, rows of which sum to 1: l_pt of a sample becomes `sum_k targets_ik l_pt(z_i, theta_k)`.
    """
    temperature = check_number("temperature", temperature)
    prototype_temperature = check_number("prototype_temperature", prototype_temperature, temperature)
    check_prototype_share(prototype_weight, prototype_share, prototype_average)
    z, prototypes = _same_dtype(z, prototypes)
    n, n_classes = len(z), len(prototypes)
    contrast_weight = _contrast_weight(contrast_weight, n, n_classes)
    _check_shape("log_priors", log_priors, (n_classes,))
    _check_shape("targets", targets, (n, n_classes))
    ids, counts, n_alone = count_classes(labels, n, n_classes, needs_pair=True)
    supcon_weight = (counts != 1).to(z.dtype)
    sizes = torch.ones_like(counts) if prototype_average == "sample" else counts.clamp_min(1)
    weight = sizes.to(z.dtype).reciprocal_()
    if prototype_share is None:
        supcon_weight, weight = supcon_weight / (n + n_classes), weight * (prototype_weight / (n + n_classes))
    else:
        n_averaged = n if prototype_average == "sample" else (counts > 0).sum()
        supcon_weight = supcon_weight * (1 - prototype_share) / (n - n_alone)
        weight = weight * prototype_share / n_averaged
    targets = None if targets is None else targets.to(z.dtype)
    settings = (temperature, prototype_temperature, contrast_weight)
    arguments = (z, prototypes, ids, counts, supcon_weight, weight, *settings)
    return contrastive_loss(*arguments, anchors=anchors, log_priors=log_priors, targets=targets)


def _contrast_weight(value: ContrastWeight, n: int, n_classes: int) -> float:
    """Return the factor of the sum over the samples in l_pt."""
    return n_classes / max(1, n - 1) if value == "mean" else check_number("contrast_weight", value, least=0)


def _take(rows: Tensor, anchors: Anchors) -> Tensor:
    """Return the rows of the anchors. Indexing all rows would copy their gradient."""
    return rows if anchors is None else rows[anchors]


def _same_dtype(z: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Check and return embeddings and prototypes, in one dtype."""
    z, prototypes = check_embeddings(z), check_embeddings(prototypes, "prototypes")
    _check_width("prototypes", prototypes, z)
    dtype = torch.promote_types(z.dtype, prototypes.dtype)
    return z.to(dtype), prototypes.to(dtype)


def _check_width(name: str, vectors: Tensor, z: Tensor) -> None:
    if vectors.shape[1] != z.shape[1]:
        raise ValueError(
            f"{name} must be as wide as z, {z.shape[1]}; got shape {tuple(vectors.shape)}. "
            "Pass vectors in the space of the embedding."
        )


def _check_shape(name: str, values: Tensor | None, shape: tuple[int, ...]) -> None:
    if values is not None and values.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, one column per prototype; got {tuple(values.shape)}.")


def check_embeddings(z: Tensor, name: str = "z") -> Tensor:
    """Return a non-empty float matrix. Half precision is raised to float32, in which the losses are computed."""
    if z.ndim != 2 or z.numel() == 0:
        remedy = " Put views below each other: z.flatten(0, 1)." if z.ndim == 3 else ""
        raise ValueError(f"{name} must have shape (n, dim) and must not be empty; got {tuple(z.shape)}.{remedy}")
    if not z.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers; got {z.dtype}. Pass {name}.float().")
    return z if z.dtype == torch.float64 else z.float()


def count_classes(
    labels: Tensor, n: int, n_classes: int | None = None, *, only_present: bool = False, needs_pair: bool = False
) -> tuple[Tensor, Tensor, int | Tensor]:
    """Return the class of each of n samples, the size of each class, and how many samples are alone in theirs.

    The last is a tensor in traced code, which cannot read values. Classes are numbered by their labels; without gaps
    if `only_present`, or if the labels are too large to index a table. `needs_pair` raises an error if no two samples
    share a class.
    """
    if labels.ndim != 1 or len(labels) != n:
        views = n // len(labels) if labels.ndim == 1 and len(labels) and n % len(labels) == 0 else 0
        remedy = f" With {views} views of each sample pass labels.repeat({views})." if views else ""
        raise ValueError(
            f"labels must hold one label for each of the {n} rows of z; got shape {tuple(labels.shape)}.{remedy}"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels must be integers; got {labels.dtype}. Pass labels.long().")
    if torch.compiler.is_compiling():
        ids, counts, n_alone = torch.ops.esupcon.count_classes(labels, n_classes, only_present, needs_pair)
        return ids, counts, n_alone
    return _count_classes(labels.long(), n_classes, only_present, needs_pair)


def _count_classes(
    labels: Tensor, n_classes: int | None, only_present: bool, needs_pair: bool
) -> tuple[Tensor, Tensor, int]:
    lowest, highest = (int(value) for value in labels.aminmax())
    if lowest < 0 or (n_classes is not None and highest >= n_classes):
        limit = "" if n_classes is None else f" and below the number of classes, {n_classes}"
        raise ValueError(
            f"labels must be at least 0{limit}; the lowest is {lowest}, the highest {highest}. "
            "Leave unlabelled samples out, and pass a prototype for every class."
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
    return ids, counts, n_alone


@torch.library.custom_op("esupcon::count_classes", mutates_args=())
def _count_classes_operator(
    labels: Tensor, n_classes: int | None, only_present: bool, needs_pair: bool
) -> tuple[Tensor, Tensor, Tensor]:
    ids, counts, n_alone = _count_classes(labels.long(), n_classes, only_present, needs_pair)
    return ids.clone(), counts, torch.tensor(n_alone, device=labels.device)


@_count_classes_operator.register_fake
def _(labels: Tensor, n_classes: int | None, only_present: bool, needs_pair: bool) -> tuple[Tensor, ...]:
    size = torch.library.get_ctx().new_dynamic_size() if n_classes is None or only_present else n_classes
    return tuple(labels.new_empty(shape, dtype=torch.int64) for shape in (labels.shape, (size,), ()))


def check_number(name: str, value: float | None, default: float | None = None, *, least: float | None = None) -> float:
    """Return a finite number above 0, or of at least `least`; None stands for the default."""
    value = default if value is None else value
    if type(value) is float and 0 < value < math.inf:  # the usual case, without the cost of `isinstance(value, Real)`
        return value
    if not isinstance(value, Real) or not math.isfinite(value) or (value <= 0 if least is None else value < least):
        remedy = f" No gradient flows to a tensor: pass float({name})." if isinstance(value, Tensor) else ""
        allowed = "above 0" if least is None else f"of at least {least}"
        raise ValueError(f"{name} must be a finite number {allowed}; got {value!r}.{remedy}")
    return float(value)


def check_prototype_share(weight: float, share: float | None, average: str) -> None:
    """Check the arguments that weight l_pt in `esupcon_loss`."""
    check_choice("prototype_average", average, ("class", "sample"))
    check_number("prototype_weight", weight, least=0)
    valid = average == "class" if share is None else isinstance(share, Real) and 0 <= share <= 1 and weight == 1
    if not valid:
        raise ValueError(
            "prototype_share must be a number from 0 to 1, which needs prototype_weight=1; or None, which needs "
            f"prototype_average='class'; got share {share!r}, weight {weight!r} and average {average!r}."
        )
