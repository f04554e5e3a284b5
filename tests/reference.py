"""Slow float64 twin of every loss: loops over samples, written from the paper's equations.

They share no code with the package and are built from differentiable operations, so autograd gives their derivatives.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """cos(a_i, b_j), 0 where a vector is zero."""
    lengths = a.norm(dim=1)[:, None] * b.norm(dim=1)
    return a @ b.T / torch.where(lengths > 0, lengths, 1.0)


def others(n: int, i: int) -> list[int]:
    return [j for j in range(n) if j != i]


def supcon_samples(z: Tensor, labels: Tensor, t: float) -> list[Tensor]:
    """1/|P_i| sum_{p in P_i} [ -s(z_i, z_p) + log sum_{j != i} exp s(z_i, z_j) ] of every sample with a positive."""
    s, values = cosines(z, z) / t, []
    for i in range(len(z)):
        positives = [p for p in others(len(z), i) if labels[p] == labels[i]]
        if positives:
            values.append(torch.stack([s[i, others(len(z), i)].logsumexp(0) - s[i, p] for p in positives]).mean())
    return values


def supcon(z: Tensor, labels: Tensor, t: float) -> Tensor:
    return torch.stack(supcon_samples(z, labels, t)).mean()


def simclr(z: Tensor, t: float) -> Tensor:
    s, half = cosines(z, z) / t, len(z) // 2
    pairs = [(i, (i + half) % len(z)) for i in range(len(z))]
    return torch.stack([s[i, others(len(z), i)].logsumexp(0) - s[i, j] for i, j in pairs]).mean()


def spce_logits(row: Tensor, support: Tensor, labels: Tensor, n_classes: int, t: float, average: str) -> Tensor:
    """One logit per class; -inf where the class takes no part in the softmax."""
    s, logits = cosines(row[None], support)[0] / t, []
    for k in range(n_classes):
        members = s[labels == k]
        absent = -torch.inf if average == "class" else 0.0
        divisor = len(members) if average == "class" else len(support)
        logits.append(members.sum() / divisor if len(members) else s.new_tensor(absent))
    return torch.stack(logits)


def spce(z: Tensor, labels: Tensor, t: float, average: str, n_classes: int) -> Tensor:
    rows = [spce_logits(row, z, labels, n_classes, t, average) for row in z]
    return torch.stack(
        [row[row > -torch.inf].logsumexp(0) - row[y] for row, y in zip(rows, labels, strict=True)]
    ).mean()


def spce_posterior(z: Tensor, support: Tensor, labels: Tensor, n_classes: int, t: float, average: str) -> Tensor:
    return torch.stack([spce_logits(row, support, labels, n_classes, t, average).softmax(0) for row in z])


def tightness(z: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    return -torch.stack([cosines(z, prototypes)[i, y] for i, y in enumerate(labels)]).mean()


def prototype(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    t: float,
    pt: float,
    log_priors: Tensor | float = 0.0,
    contrast_weight: float = 1.0,
) -> Tensor:
    """l_pt(z_i, theta_{y_i}) of every sample, with a temperature and log priors for the prototypes."""
    to_samples, to_prototypes = cosines(z, z) / t, cosines(z, prototypes) / pt + log_priors
    values = []
    for i, y in enumerate(labels):
        weighted = to_samples[i, others(len(z), i)] + math.log(contrast_weight) if contrast_weight else z.new_empty(0)
        values.append(torch.cat([weighted, to_prototypes[i]]).logsumexp(0) - to_prototypes[i, y])
    return torch.stack(values)


def esupcon(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    t: float,
    pt: float,
    weight: float,
    log_priors: Tensor | float = 0.0,
) -> Tensor:
    """The literal equation, the prototype term multiplied by `weight`."""
    l_pt = prototype(z, labels, prototypes, t, pt, log_priors)
    within_classes = [l_pt[labels == k].mean() for k in range(len(prototypes)) if (labels == k).any()]
    total = weight * torch.stack(within_classes).sum() + torch.stack(supcon_samples(z, labels, t)).sum()
    return total / (len(z) + len(prototypes))


def esupcon_share(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    t: float,
    pt: float,
    share: float,
    average: str,
    contrast_weight: float = 1.0,
) -> Tensor:
    l_pt = prototype(z, labels, prototypes, t, pt, contrast_weight=contrast_weight)
    if average == "class":
        l_pt = torch.stack([l_pt[labels == k].mean() for k in labels.unique()])
    return share * l_pt.mean() + (1 - share) * supcon(z, labels, t)


def esupcon_targets(
    z: Tensor, labels: Tensor, prototypes: Tensor, t: float, pt: float, share: float, average: str, targets: Tensor
) -> Tensor:
    """Every l_pt(z_i, theta_k), weighted by targets_ik."""
    by_class = [prototype(z, torch.full_like(labels, k), prototypes, t, pt) for k in range(len(prototypes))]
    l_pt = (targets * torch.stack(by_class, 1)).sum(1)
    if average == "class":
        l_pt = torch.stack([l_pt[labels == k].mean() for k in labels.unique()])
    return share * l_pt.mean() + (1 - share) * supcon(z, labels, t)
