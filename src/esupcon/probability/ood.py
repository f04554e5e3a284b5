"""Score how far samples lie from the training data, from logits or embeddings. Higher means further out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.predictions import (
    FloatArray,
    as_labels,
    as_logits,
    as_table,
    log_softmax,
    refuse,
    softmax,
)


def max_softmax_score(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return 1 - max_k p(k | x), (n,), summed over the other classes so that confident rows do not tie at 0."""
    p = softmax(logits, temperature)
    p[np.arange(len(p)), p.argmax(axis=1)] = 0.0
    return np.asarray(p.sum(axis=1))


def energy_score(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return -T log Σ_k exp(z_k / T), (n,)."""
    z = as_logits(logits)
    return np.asarray(temperature * log_softmax(z, temperature).max(axis=1) - z.max(axis=1))


def prototype_distance_score(embeddings: ArrayLike, prototypes: ArrayLike) -> FloatArray:
    """Return 1 - max_k cos(x, prototype_k), (n,): the cosine distance to the nearest of (K, d) prototypes."""
    stored = _unit_rows(prototypes, name="prototypes")
    x = _unit_rows(embeddings, width=stored.shape[1])
    return np.asarray(1.0 - (x @ stored.T).max(axis=1))


def knn_score(embeddings: ArrayLike, reference: ArrayLike, k: int = 10) -> FloatArray:
    """Return the distance to the k-th nearest of the `reference` embeddings (training samples), all as unit vectors."""
    from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415 - takes a second

    stored = _unit_rows(reference, name="reference")
    x = _unit_rows(embeddings, width=stored.shape[1])
    return np.asarray(NearestNeighbors(n_neighbors=k, algorithm="brute").fit(stored).kneighbors(x)[0][:, -1])


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Class means and a shared covariance, stored as `whitening` (d, d) with whitening · whiteningᵀ = covariance⁻¹."""

    means: FloatArray
    whitening: FloatArray

    def score(self, embeddings: ArrayLike) -> FloatArray:
        """Return min_k (x - mean_k)ᵀ covariance⁻¹ (x - mean_k), (n,)."""
        white = _embeddings(embeddings, width=self.means.shape[1]) @ self.whitening
        centres = self.means @ self.whitening
        nearest = (np.square(centres).sum(axis=1) - 2.0 * white @ centres.T).min(axis=1)
        return np.asarray(np.maximum(nearest + np.square(white).sum(axis=1), 0.0))


def fit_mahalanobis(embeddings: ArrayLike, labels: ArrayLike) -> Mahalanobis:
    """Fit the means of all classes in `labels` and their pooled covariance, shrunk as by Ledoit and Wolf (2004).

    Pass embeddings as the encoder gives them, not scaled to unit length. For tables, append the standardised columns.
    """
    from sklearn.covariance import ledoit_wolf  # noqa: PLC0415 - takes a second

    x = _embeddings(embeddings)
    classes, index = np.unique(as_labels(labels, n=len(x)), return_inverse=True)
    sums = np.zeros((len(classes), x.shape[1]))
    np.add.at(sums, index, x)
    means = sums / np.bincount(index)[:, None]
    residuals = x - means[index]
    if float(np.mean(residuals**2)) <= np.finfo(np.float64).eps * float(np.mean(x**2)):
        raise ValueError("fit_mahalanobis needs classes that vary within themselves. Pass several samples per class.")
    covariance, _ = ledoit_wolf(residuals, assume_centered=True)  # invertible with few samples too
    variances, directions = np.linalg.eigh(covariance)
    # Shrinkage can be 0 up to rounding; a direction without variance must not have an infinite weight.
    variances = np.maximum(variances, len(variances) * np.finfo(np.float64).eps * variances[-1])
    return Mahalanobis(means, directions / np.sqrt(variances))


def _embeddings(values: ArrayLike, *, name: str = "embeddings", width: int | None = None) -> FloatArray:
    embeddings = as_table(values, name=name, columns="dimensions")
    refuse(np.isinf(embeddings), f"{name} must be finite", embeddings, "Find out where the encoder diverged.")
    if width not in (None, embeddings.shape[1]):
        raise ValueError(f"{name} must have {width} dimensions; got {embeddings.shape[1]}. Take both from one layer.")
    return embeddings


def _unit_rows(values: ArrayLike, *, name: str = "embeddings", width: int | None = None) -> FloatArray:
    vectors = _embeddings(values, name=name, width=width)
    # Scaling by the largest entry first keeps the squares of tiny and huge vectors in range.
    largest = np.abs(vectors).max(axis=1)
    refuse(largest == 0, f"{name} must have a direction", largest, "Leave out rows that are all zeros.")
    scaled = vectors / largest[:, None]
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1, keepdims=True))
