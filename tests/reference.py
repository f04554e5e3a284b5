"""Slow float64 twins of every loss: loops over Python floats, written from the paper's equations.

They share no code with the package. z is a list of rows; s(a, b) = cos(a, b) / temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[float]


def cosine(a: Row, b: Row) -> float:
    length = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0


def log_sum_exp(values: Sequence[float]) -> float:
    if not values:
        return -math.inf
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def supcon_pair(z: Sequence[Row], i: int, p: int, t: float) -> float:
    """l_SupCon(z_i, z_p) = -s(z_i, z_p) + log sum_{j != i} exp s(z_i, z_j)."""
    return -cosine(z[i], z[p]) / t + log_sum_exp([cosine(z[i], z[j]) / t for j in range(len(z)) if j != i])


def supcon_sample(z: Sequence[Row], labels: Sequence[int], i: int, t: float) -> float | None:
    positives = [p for p in range(len(z)) if p != i and labels[p] == labels[i]]
    return math.fsum(supcon_pair(z, i, p, t) for p in positives) / len(positives) if positives else None


def supcon(z: Sequence[Row], labels: Sequence[int], t: float) -> float:
    terms = [term for i in range(len(z)) if (term := supcon_sample(z, labels, i, t)) is not None]
    return math.fsum(terms) / len(terms)


def simclr(z: Sequence[Row], t: float) -> float:
    half = len(z) // 2
    return math.fsum(supcon_pair(z, i, i + half, t) + supcon_pair(z, i + half, i, t) for i in range(half)) / len(z)


def spce_logits(row: Row, support: Sequence[Row], labels: Sequence[int], n_classes: int, t: float, average: str):
    """One logit a class; None where the class takes no part in the softmax."""
    logits: list[float | None] = []
    for k in range(n_classes):
        members = [cosine(row, other) / t for other, label in zip(support, labels, strict=True) if label == k]
        if average == "class":
            logits.append(math.fsum(members) / len(members) if members else None)
        else:
            logits.append(math.fsum(members) / len(support))
    return logits


def spce(z: Sequence[Row], labels: Sequence[int], t: float, average: str, n_classes: int) -> float:
    total = 0.0
    for row, label in zip(z, labels, strict=True):
        logits = spce_logits(row, z, labels, n_classes, t, average)
        total += log_sum_exp([v for v in logits if v is not None]) - logits[label]
    return total / len(z)


def spce_posterior(z, support, labels, n_classes: int, t: float, average: str) -> list[list[float]]:
    out = []
    for row in z:
        logits = spce_logits(row, support, labels, n_classes, t, average)
        normaliser = log_sum_exp([v for v in logits if v is not None])
        out.append([0.0 if v is None else math.exp(v - normaliser) for v in logits])
    return out


def tightness(z: Sequence[Row], labels: Sequence[int], prototypes: Sequence[Row]) -> float:
    return math.fsum(-cosine(row, prototypes[label]) for row, label in zip(z, labels, strict=True)) / len(z)


def prototype_sample(z, labels, prototypes, i: int, t: float) -> float:
    """l_pt(z_i, theta_{y_i})."""
    to_prototypes = [cosine(z[i], theta) / t for theta in prototypes]
    to_samples = [cosine(z[i], z[j]) / t for j in range(len(z)) if j != i]
    return -to_prototypes[labels[i]] + log_sum_exp(to_prototypes + to_samples)


def esupcon(z, labels, prototypes, t: float, prototype_weight: float) -> float:
    total = 0.0
    for k in range(len(prototypes)):
        members = [i for i in range(len(z)) if labels[i] == k]
        if members:
            terms = [prototype_sample(z, labels, prototypes, i, t) for i in members]
            total += prototype_weight * math.fsum(terms) / len(members)
    for i in range(len(z)):
        total += supcon_sample(z, labels, i, t) or 0.0
    return total / (len(z) + len(prototypes))
