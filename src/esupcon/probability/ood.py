"""Score how far samples lie from the training data. For all scores, higher means further out.

From logits: max_softmax_score, energy_score, max_logit_score. From embeddings: prototype_distance_score, knn_score and
fit_mahalanobis(...).score. auroc measures how well a score separates two sets.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.predictions import (
    FloatArray,
    as_count,
    as_labels,
    as_logits,
    as_numbers,
    as_table,
    log_softmax,
    softmax,
)

_BLOCK_ENTRIES = 2**22  # similarities held at a time: 32 MB


def max_softmax_score(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return 1 - max_k p(k | x), (n,), summed over the other classes so that confident rows do not tie at 0."""
    p = softmax(logits, temperature)
    p[np.arange(len(p)), p.argmax(axis=1)] = 0.0
    others: FloatArray = p.sum(axis=1)
    return others


def energy_score(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return -T log Σ_k exp(z_k / T), (n,)."""
    z = as_logits(logits)
    rows, best = np.arange(len(z)), z.argmax(axis=1)
    energy: FloatArray = temperature * log_softmax(z, temperature)[rows, best] - z[rows, best]
    return energy


def max_logit_score(logits: ArrayLike) -> FloatArray:
    """Return -max_k z_k, (n,)."""
    largest: FloatArray = as_logits(logits).max(axis=1)
    return -largest


def prototype_distance_score(embeddings: ArrayLike, prototypes: ArrayLike) -> FloatArray:
    """Return 1 - max_k cos(x, prototype_k), (n,): the cosine distance to the nearest of (K, d) prototypes."""
    return 1.0 - _kth_largest_cosine(embeddings, prototypes, 1, "prototypes")


def knn_score(embeddings: ArrayLike, reference: ArrayLike, k: int = 10) -> FloatArray:
    """Return the distance to the k-th nearest of the `reference` embeddings (training samples), all as unit vectors.

    Memory grows with the reference set, not with its product with the rows.
    """
    similarity = _kth_largest_cosine(embeddings, reference, k, "reference")
    distances: FloatArray = np.sqrt(np.maximum(2.0 - 2.0 * similarity, 0.0))
    return distances


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Class means and a shared covariance, stored as `whitening` (d, d) with whitening · whiteningᵀ = covariance⁻¹."""

    means: FloatArray
    whitening: FloatArray
    shrinkage: float

    def score(self, embeddings: ArrayLike) -> FloatArray:
        """Return min_k (x - mean_k)ᵀ covariance⁻¹ (x - mean_k), (n,)."""
        x = _embeddings(embeddings, width=self.means.shape[1])
        centres = self.means @ self.whitening
        squared_norms = np.einsum("kd,kd->k", centres, centres)
        scores = np.empty(len(x))
        for rows in _blocks(len(x), max(x.shape[1], len(centres))):
            white = x[rows] @ self.whitening
            distances = squared_norms - 2.0 * white @ centres.T
            scores[rows] = distances.min(axis=1) + np.einsum("nd,nd->n", white, white)
        return np.maximum(scores, 0.0)


def fit_mahalanobis(embeddings: ArrayLike, labels: ArrayLike) -> Mahalanobis:
    """Fit the means of all classes in `labels` and their pooled covariance, shrunk as by Ledoit and Wolf (2004).

    Shrinkage makes the covariance invertible with fewer samples than dimensions too. Pass embeddings as the encoder
    gives them, not scaled to unit length. For tables, append the standardised columns: an encoder with layer norms
    gives a row multiplied by 1,000 nearly the embedding of the row itself.
    """
    from sklearn.covariance import ledoit_wolf  # noqa: PLC0415 - takes a second

    x = _embeddings(embeddings)
    classes, index = np.unique(as_labels(labels, n=len(x)), return_inverse=True)
    sums = np.zeros((len(classes), x.shape[1]))
    np.add.at(sums, index, x)
    means = sums / np.bincount(index)[:, None]
    residuals = x - means[index]
    if float(np.mean(residuals**2)) <= np.finfo(np.float64).eps * float(np.mean(x**2)):
        raise ValueError(
            f"fit_mahalanobis needs classes that vary within themselves; {len(x)} embeddings of {len(classes)} classes "
            "do not. Pass several different samples per class."
        )
    covariance, shrinkage = ledoit_wolf(residuals, assume_centered=True)
    variances, directions = np.linalg.eigh(covariance)
    # Shrinkage can be 0 up to rounding; a direction without variance must not have an infinite weight.
    variances = np.maximum(variances, len(variances) * np.finfo(np.float64).eps * variances[-1])
    return Mahalanobis(means=means, whitening=directions / np.sqrt(variances), shrinkage=float(shrinkage))


def auroc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Return P(out > in) + P(out = in)/2 for a random pair: 1.0 if every outlier scores higher, 0.5 for random scores.

    Our own code, because scikit-learn's roc_auc_score refuses infinite scores.
    """
    inside, outside = np.sort(_scores(in_scores, "in_scores")), _scores(out_scores, "out_scores")
    below = np.searchsorted(inside, outside, side="left")
    not_above = np.searchsorted(inside, outside, side="right")
    return float((below + not_above).sum() / (2.0 * len(inside) * len(outside)))


def _kth_largest_cosine(embeddings: ArrayLike, reference: ArrayLike, k: int, name: str) -> FloatArray:
    stored = _unit_rows(_embeddings(reference, name=name), name)
    if as_count(k, name="k") > len(stored):
        raise ValueError(f"k must be at most the number of reference samples, {len(stored)}; got {k}. Lower k.")
    x = _unit_rows(_embeddings(embeddings, width=stored.shape[1]), "embeddings")
    similarity = np.empty(len(x))
    place = len(stored) - k
    for rows in _blocks(len(x), len(stored)):
        similarity[rows] = np.partition(x[rows] @ stored.T, place, axis=1)[:, place]
    return similarity


def _embeddings(values: ArrayLike, *, name: str = "embeddings", width: int | None = None) -> FloatArray:
    embeddings = as_table(values, name=name, columns="dimensions")
    bad = np.isinf(embeddings).any(axis=1)
    if bad.any():
        raise ValueError(f"{name} must be finite; row {int(bad.argmax())} is not. Find out where the encoder diverged.")
    if width is not None and embeddings.shape[1] != width:
        raise ValueError(
            f"{name} must have {width} dimensions like what they are compared with; got {embeddings.shape[1]}. "
            "Take both from the same layer."
        )
    return embeddings


def _unit_rows(vectors: FloatArray, name: str) -> FloatArray:
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


def _scores(values: ArrayLike, name: str) -> FloatArray:
    scores = as_numbers(values, name=name)
    if scores.ndim != 1 or len(scores) == 0 or np.isnan(scores).any():
        raise ValueError(
            f"{name} must be a non-empty vector without NaN, one score per sample; got shape {scores.shape}. "
            "Pass what one of the *_score functions returns."
        )
    return scores


def _blocks(n: int, width: int) -> list[slice]:
    rows = max(1, _BLOCK_ENTRIES // width)
    return [slice(start, start + rows) for start in range(0, n, rows)]
