"""What an embedding with examples and prototypes can tell: neighbours, doubtful labels, foreign samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.probability import energy_score, knn_score, max_softmax_score, prototype_distance_score, softmax

__all__ = [
    "OOD_METHODS",
    "Examples",
    "Explanation",
    "LabelIssues",
    "class_means",
    "doubtful_labels",
    "nearest",
    "ood_scores",
    "unit",
]

OOD_METHODS = ("auto", "knn", "prototype", "energy", "softmax")
NEIGHBOURS = 10
_BLOCK = 2**22  # similarities held at a time

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass
class Examples:
    """The training samples as the classifier remembers them: unit embeddings (n, d) and columns of their labels."""

    embedding: NDArray[np.float32]
    codes: Codes


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a classifier answered as it did, for n samples, k neighbours and K classes.

    `neighbours` (n, k) are rows of the training data, nearest first, `neighbour_labels` their given labels and
    `neighbour_similarity` the cosines of the embeddings; `prototype_similarity` (n, K) are the cosines with what
    stands for each class: its prototype, or the mean of its training samples where the head is linear.
    """

    predicted: NDArray[Any]
    probability: Floats
    classes: NDArray[Any]
    prototype_similarity: Floats
    neighbours: Codes
    neighbour_labels: NDArray[Any]
    neighbour_similarity: Floats

    def __str__(self) -> str:
        lines = []
        for i, label in enumerate(self.predicted):
            near = ", ".join(
                f"#{row} {name} ({cosine:.2f})"
                for row, name, cosine in zip(
                    self.neighbours[i], self.neighbour_labels[i], self.neighbour_similarity[i], strict=True
                )
            )
            second = int(np.argsort(self.prototype_similarity[i])[-2])
            lines.append(
                f"{label} ({100 * self.probability[i].max():.1f} %): cosine {self.prototype_similarity[i].max():.2f} "
                f"with its class, {self.prototype_similarity[i, second]:.2f} with {self.classes[second]}; near {near}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class LabelIssues:
    """Training samples from the most to the least doubtful: `indices` into the training data, the label `given`,
    the label `suggested`, and how likely the given one is, `likelihood` in 0 .. 1."""

    indices: Codes
    given: NDArray[Any]
    suggested: NDArray[Any]
    likelihood: Floats


def unit(z: NDArray[Any]) -> Floats:
    """z / |z|; a row of zeros, which has no direction, stays."""
    z = np.asarray(z, np.float64)
    length = np.linalg.norm(z, axis=1, keepdims=True)
    found: Floats = np.divide(z, length, out=np.zeros_like(z), where=length > 0)
    return found


def nearest(z: Floats, examples: Examples, k: int, *, leave_out_self: bool = False) -> tuple[Codes, Floats]:
    """Rows of the k examples with the largest cosine, and the cosines, (n, k) each, nearest first.

    With `leave_out_self` z are the examples themselves and none is its own neighbour.
    """
    stored = examples.embedding.astype(np.float64)
    rows, cosines = np.empty((len(z), k), np.int64), np.empty((len(z), k))
    step = max(1, _BLOCK // len(stored))
    for start in range(0, len(z), step):
        similarity = z[start : start + step] @ stored.T
        if leave_out_self:
            here = np.arange(len(similarity))
            similarity[here, start + here] = -np.inf
        best = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(similarity, best, 1), axis=1, kind="stable")
        rows[start : start + step] = np.take_along_axis(best, order, 1)
        cosines[start : start + step] = np.take_along_axis(similarity, rows[start : start + step], 1)
    return rows, cosines


def ood_scores(
    method: str, z: Floats, logits: Floats, temperature: float, prototypes: Floats, examples: Examples | None
) -> Floats:
    """How far each sample lies from what was trained on; higher is further out."""
    if method == "auto":
        method = "prototype" if examples is None else "knn"
    if method == "knn":
        assert examples is not None
        return knn_score(_with_direction(z), examples.embedding, k=min(NEIGHBOURS, len(examples.embedding)))
    if method == "prototype":
        return prototype_distance_score(_with_direction(z), prototypes)
    if method == "energy":
        return energy_score(logits, temperature)
    return max_softmax_score(logits, temperature)


def _with_direction(z: Floats) -> Floats:
    """Rows of zeros, which an encoder that ends in a ReLU can give, point nowhere: any direction will do."""
    z = z.copy()
    z[~z.any(axis=1)] = 1.0
    return z


def class_means(examples: Examples, n_classes: int) -> Floats:
    """The direction of each class's mean, (K, d)."""
    means = np.zeros((n_classes, examples.embedding.shape[1]))
    np.add.at(means, examples.codes, examples.embedding)
    return unit(means)


def doubtful_labels(examples: Examples, classes: NDArray[Any]) -> LabelIssues:
    """Training samples whose label neither their neighbours nor their class bear out, worst first.

    For each sample two beliefs over the classes are averaged, each made without its own label: the shares of labels
    among its ten nearest others, and the softmax of the cosines with the class means at temperature 0.1. The score
    is the belief in the likeliest other class less that in the given one.
    """
    z, codes, K = examples.embedding.astype(np.float64), examples.codes, len(classes)
    n = len(codes)
    here = np.arange(n)
    k = min(NEIGHBOURS, n - 1)
    rows, _ = nearest(z, examples, k, leave_out_self=True)
    votes = np.zeros((n, K))
    np.add.at(votes, (np.repeat(here, k), codes[rows].ravel()), 1 / k)
    belief = (votes + _means_belief(z, codes, K)) / 2
    given = belief[here, codes]
    others = belief.copy()
    others[here, codes] = -np.inf
    order = np.argsort(given - others.max(axis=1), kind="stable")
    return LabelIssues(order, classes[codes[order]], classes[others.argmax(axis=1)[order]], given[order])


def _means_belief(z: Floats, codes: Codes, n_classes: int) -> Floats:
    sums = np.zeros((n_classes, z.shape[1]))
    np.add.at(sums, codes, z)
    cosines = z @ unit(sums).T
    here = np.arange(len(z))
    cosines[here, codes] = np.einsum("nd,nd->n", z, unit(sums[codes] - z))  # its own class without itself
    present = np.bincount(codes, minlength=n_classes) > 0
    return softmax(np.where(present, cosines / 0.1, -np.inf))
