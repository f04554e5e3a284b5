"""Scores for samples that belong to no class of training. One convention: higher means further out.

From logits: max_softmax_score, energy_score, max_logit_score. From embeddings: prototype_distance_score, knn_score,
and fit_mahalanobis(...).score. How well a score tells two sets apart: auroc, fpr_at_tpr, detection_table.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.detection import Detection, auroc, detection_table, format_detection_table, fpr_at_tpr
from esupcon.probability.posteriors import log_sum_exp, softmax
from esupcon.probability.validation import FloatArray, as_count, as_embeddings, as_labels, as_logits

__all__ = [
    "Detection",
    "Mahalanobis",
    "auroc",
    "detection_table",
    "energy_score",
    "fit_mahalanobis",
    "format_detection_table",
    "fpr_at_tpr",
    "knn_score",
    "max_logit_score",
    "max_softmax_score",
    "prototype_distance_score",
]

_BLOCK_ENTRIES = 2**22  # similarities held at a time: 32 MB


def max_softmax_score(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """1 - max_k p(k | x), (n,), summed from the other classes so that confident rows do not round to a tie at 0."""
    p = softmax(logits, temperature)
    p[np.arange(len(p)), p.argmax(axis=1)] = 0.0
    others: FloatArray = p.sum(axis=1)
    return others


def energy_score(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """-T log Σ_k exp(z_k / T), (n,)."""
    return -log_sum_exp(logits, temperature)


def max_logit_score(logits: ArrayLike) -> FloatArray:
    """-max_k z_k, (n,)."""
    largest: FloatArray = as_logits(logits).max(axis=1)
    return -largest


def prototype_distance_score(embeddings: ArrayLike, prototypes: ArrayLike) -> FloatArray:
    """1 - max_k cos(x, prototype_k), (n,): the cosine distance to the nearest of (K, d) prototypes."""
    targets = _unit_rows(as_embeddings(prototypes, name="prototypes"), name="prototypes")
    x = _unit_rows(as_embeddings(embeddings, width=targets.shape[1]), name="embeddings")
    nearest = np.empty(len(x))
    for rows in _blocks(len(x), len(targets)):
        nearest[rows] = (x[rows] @ targets.T).max(axis=1)
    return 1.0 - nearest


def knn_score(embeddings: ArrayLike, reference: ArrayLike, k: int = 10) -> FloatArray:
    """Euclidean distance to the k-th nearest of the `reference` embeddings (training samples), all on the unit sphere.

    Distances are taken in blocks of rows: memory grows with the reference set, not with its product with the rows.
    """
    stored = _unit_rows(as_embeddings(reference, name="reference"), name="reference")
    if as_count(k, name="k") > len(stored):
        raise ValueError(f"k must be at most the number of reference samples, {len(stored)}; got {k}. Lower k.")
    x = _unit_rows(as_embeddings(embeddings, width=stored.shape[1]), name="embeddings")
    similarity = np.empty(len(x))
    kth_largest = len(stored) - k
    for rows in _blocks(len(x), len(stored)):
        similarity[rows] = np.partition(x[rows] @ stored.T, kth_largest, axis=1)[:, kth_largest]
    distances: FloatArray = np.sqrt(np.maximum(2.0 - 2.0 * similarity, 0.0))
    return distances


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Class means and a shared covariance, kept as `whitening` (d, d) with whitening · whiteningᵀ = covariance⁻¹."""

    means: FloatArray
    whitening: FloatArray
    shrinkage: float

    def score(self, embeddings: ArrayLike) -> FloatArray:
        """min_k (x - mean_k)ᵀ covariance⁻¹ (x - mean_k), (n,)."""
        x = as_embeddings(embeddings, width=self.means.shape[1])
        centres = self.means @ self.whitening
        squared_norms = np.einsum("kd,kd->k", centres, centres)
        scores = np.empty(len(x))
        for rows in _blocks(len(x), max(x.shape[1], len(centres))):
            white = x[rows] @ self.whitening
            distances = squared_norms - 2.0 * white @ centres.T
            scores[rows] = distances.min(axis=1) + np.einsum("nd,nd->n", white, white)
        return np.maximum(scores, 0.0)


def fit_mahalanobis(embeddings: ArrayLike, labels: ArrayLike, *, shrinkage: float | None = None) -> Mahalanobis:
    """Means of the classes present in `labels`, and their pooled covariance S, shrunk so that it can be inverted:

        covariance = (1 - a) S + a · tr(S)/d · I.

    `shrinkage` is a, in [0, 1]; None takes it from the data (Ledoit and Wolf, 2004).
    """
    x = as_embeddings(embeddings)
    given = np.asarray(labels)
    largest = int(given.max()) if given.size and given.dtype.kind in "iu" else 0
    y = as_labels(given, n=len(x), n_classes=largest + 1)
    classes, index = np.unique(y, return_inverse=True)
    sums = np.zeros((len(classes), x.shape[1]))
    np.add.at(sums, index, x)
    means = sums / np.bincount(index)[:, None]
    residuals = x - means[index]
    covariance = residuals.T @ residuals / len(x)
    mean_variance = float(np.trace(covariance)) / x.shape[1]
    if mean_variance <= np.finfo(np.float64).eps * float(np.mean(x**2)):
        raise ValueError(
            f"fit_mahalanobis needs classes that vary within themselves; {len(x)} embeddings of {len(classes)} classes "
            "do not. Pass several different samples per class."
        )
    a = _ledoit_wolf(residuals, covariance) if shrinkage is None else shrinkage
    if not 0.0 <= a <= 1.0:
        raise ValueError(f"shrinkage must lie in 0..1; got {a}. None chooses it from the data.")
    shrunk = (1.0 - a) * covariance + a * mean_variance * np.eye(x.shape[1])
    variances, directions = np.linalg.eigh(shrunk)
    if variances[0] <= len(variances) * np.finfo(np.float64).eps * variances[-1]:
        raise ValueError(
            f"the covariance of {len(x)} embeddings in {x.shape[1]} dimensions is singular at shrinkage {a}. "
            "Raise shrinkage, or leave it at None."
        )
    return Mahalanobis(means=means, whitening=directions / np.sqrt(variances), shrinkage=float(a))


def _ledoit_wolf(residuals: FloatArray, covariance: FloatArray) -> float:
    """a = min(1, noise / spread): noise = E‖x xᵀ - S‖²/n, spread = ‖S - tr(S)/d · I‖², in Frobenius norm."""
    n, d = residuals.shape
    squared_norm = float(np.einsum("ij,ij->", covariance, covariance))
    spread = squared_norm - float(np.trace(covariance)) ** 2 / d
    fourth_moment = float(np.mean(np.einsum("nd,nd->n", residuals, residuals) ** 2))
    noise = (fourth_moment - squared_norm) / n
    return 1.0 if spread <= noise else max(noise / spread, 0.0)


def _unit_rows(vectors: FloatArray, *, name: str) -> FloatArray:
    # Scaling by the largest entry first keeps the squares of tiny and huge vectors in range.
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    if (largest == 0).any():
        raise ValueError(
            f"{name} must have a direction; row {int((largest[:, 0] == 0).argmax())} is all zeros. "
            "Leave such rows out, or find out why the encoder gave them."
        )
    scaled = vectors / largest
    unit: FloatArray = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    return unit


def _blocks(n: int, width: int) -> list[slice]:
    rows = max(1, _BLOCK_ENTRIES // width)
    return [slice(start, start + rows) for start in range(0, n, rows)]
