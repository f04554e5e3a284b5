"""A plane map of unit embeddings: principal components where they keep classes apart, else t-SNE.

t-SNE here is the exact one of van der Maaten and Hinton (2008) on squared distances 2 - 2 cos, for a few hundred
points: p_ij from Gaussians of one perplexity, q_ij ∝ 1 / (1 + |y_i - y_j|²), and gradient descent on KL(p, q) from
the principal components, so that equal embeddings give equal maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]

MOST_POINTS = 200
MOST_CLASSES = 10  # more colours than that are not told apart
_NEIGHBOURS = 5
_ENOUGH = 0.95  # of the neighbours of one class that the embedding itself has
_ITERATIONS, _EXAGGERATED, _EXAGGERATION = 300, 90, 12.0


@dataclass(frozen=True, eq=False)
class PlaneMap:
    """`points` (n, 2) with their `labels`; `prototypes` (k, 2) of the classes `prototype_labels`, k may be 0."""

    points: Array
    labels: Labels
    prototypes: Array
    prototype_labels: Labels
    method: str


@dataclass(frozen=True, eq=False)
class Embedding:
    """Unit vectors of samples with their labels, and of the classes' prototypes where the head has some."""

    z: Array
    labels: Labels
    prototypes: Array | None


def plane_maps(embeddings: Sequence[Embedding]) -> list[PlaneMap]:
    """Maps that are looked at side by side are made alike: t-SNE for all where components fail for one."""
    cut = [_cut(one) for one in embeddings]
    maps = [_mapped(one, principal_components, "principal components") for one in cut]
    if all(_keeps_apart(one, drawn) for one, drawn in zip(cut, maps, strict=True)):
        return maps
    return [_mapped(one, tsne, "t-SNE") for one in cut]


def _cut(given: Embedding) -> Embedding:
    """Of many classes those with the most samples are kept, of many samples the first."""
    counts = np.bincount(given.labels)
    most = np.argsort(-counts, kind="stable")[:MOST_CLASSES]
    kept = np.sort(most[counts[most] > 0])
    rows = np.flatnonzero(np.isin(given.labels, kept))[:MOST_POINTS]
    # Prototypes keep their places, so that a row is still the number of its class.
    return Embedding(given.z[rows].astype(np.float32), given.labels[rows], given.prototypes)


def _mapped(given: Embedding, project: Callable[[Array], Array], method: str) -> PlaneMap:
    n = len(given.z)
    kinds = np.unique(given.labels)
    if given.prototypes is None:
        return PlaneMap(project(given.z), given.labels, np.zeros((0, 2)), kinds[:0], method)
    of_prototypes = kinds[kinds < len(given.prototypes)]
    plane = project(np.concatenate([given.z, given.prototypes[of_prototypes].astype(np.float32)]))
    return PlaneMap(plane[:n], given.labels, plane[n:], of_prototypes, method)


def _keeps_apart(given: Embedding, drawn: PlaneMap) -> bool:
    """Judged among samples alone: whether a prototype lies with its class is what the map is to show."""
    return neighbour_agreement(drawn.points, drawn.labels) >= _ENOUGH * neighbour_agreement(given.z, given.labels)


def principal_components(x: Array) -> Array:
    """(n, 2): coordinates along the two directions of largest variance; signs fixed by their largest entry."""
    centred = x - x.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    first = directions[:2]
    signs = np.sign(first[np.arange(len(first)), np.abs(first).argmax(axis=1)])
    plane: Array = centred @ (first * signs[:, None]).T
    missing = 2 - plane.shape[1]
    return np.pad(plane, ((0, 0), (0, missing))) if missing else plane


def neighbour_agreement(x: Array, labels: Labels) -> float:
    """Mean share of a point's nearest neighbours that are of its class."""
    n = len(x)
    if n <= _NEIGHBOURS:
        return 1.0
    distances = squared_distances(x)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argpartition(distances, _NEIGHBOURS - 1, axis=1)[:, :_NEIGHBOURS]
    return float(np.mean(labels[nearest] == labels[:, None]))


def squared_distances(x: Array) -> Array:
    norms = np.einsum("ij,ij->i", x, x)
    distances: Array = np.maximum(norms[:, None] + norms[None, :] - 2 * (x @ x.T), 0)
    return distances


def tsne(x: Array, perplexity: float = 20.0) -> Array:
    n = len(x)
    start = principal_components(x)
    spread = start[:, 0].std()
    if n < 5 or spread == 0:
        return start
    p = _joint(squared_distances(x), min(perplexity, (n - 1) / 3))
    y = (start / spread * 1e-2).astype(np.float32)
    velocity, gains = np.zeros_like(y), np.ones_like(y)
    rate = np.float32(max(n / _EXAGGERATION / 4, 50.0))
    attraction = p * np.float32(_EXAGGERATION)
    for iteration in range(_ITERATIONS):
        if iteration == _EXAGGERATED:
            attraction = p
        kernel = _kernel(y)
        force = kernel * np.float32(-1 / kernel.sum())
        force += attraction
        force *= kernel
        gradient = 4 * (force.sum(axis=1)[:, None] * y - force @ y)
        # Steps grow along a direction that keeps its sign, and shrink where it turns.
        gains = np.where(gradient * velocity > 0, np.maximum(gains * np.float32(0.8), 0.01), gains + np.float32(0.2))
        velocity = np.float32(0.5 if iteration < _EXAGGERATED else 0.8) * velocity - rate * gains * gradient
        y = y + velocity
    return np.asarray(y - y.mean(axis=0))


def _kernel(y: Array) -> Array:
    """1 / (1 + |y_i - y_j|²) off the diagonal, from one product of matrices."""
    norms = np.einsum("ij,ij->i", y, y)
    ones = np.ones_like(norms)
    kernel: Array = np.column_stack([y, norms + 1, ones]) @ np.stack([*(-2 * y.T), ones, norms])
    np.maximum(kernel, 1, out=kernel)
    np.reciprocal(kernel, out=kernel)
    np.fill_diagonal(kernel, 0)
    return kernel


def _joint(distances: Array, perplexity: float) -> Array:
    """p_ij = (p_{j|i} + p_{i|j}) / 2n, the width of each Gaussian found by halving so that its entropy is given."""
    n = len(distances)
    target = np.log(perplexity)
    others = ~np.eye(n, dtype=bool)
    low, high = np.zeros(n), np.full(n, np.inf)
    precision = np.ones(n)
    nearest = np.where(others, distances, np.inf).min(axis=1)
    shifted = np.where(others, distances - nearest[:, None], 0.0).astype(np.float32)
    p = np.zeros((n, n))
    for _ in range(30):
        weights = np.exp(shifted * -precision[:, None].astype(np.float32)) * others
        total = weights.sum(axis=1)
        p = weights / total[:, None]
        entropy = np.log(total) + precision * (p * shifted).sum(axis=1)
        too_wide = entropy > target
        low = np.where(too_wide, precision, low)
        high = np.where(too_wide, high, precision)
        precision = np.where(np.isinf(high), 2 * precision, (low + np.where(np.isinf(high), 0, high)) / 2)
    return np.asarray((p + p.T) / (2 * n), dtype=np.float32)
