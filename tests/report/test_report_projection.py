"""Projections to a plane against those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.manifold import TSNE, trustworthiness

from esupcon.report.projection import Embedding, sample, tsne


def clusters(n_classes: int, n: int = 150, dim: int = 32) -> Embedding:
    rng = np.random.default_rng(0)
    centres = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:n_classes]
    labels = np.arange(n) % n_classes
    z = centres[labels] + 0.12 * rng.normal(size=(n, dim))
    return sample((z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float16), labels, centres)


def test_tsne_is_as_trustworthy_as_that_of_scikit_learn() -> None:
    x = clusters(10).z
    theirs = TSNE(init="pca", perplexity=20, random_state=0, n_jobs=1, max_iter=500).fit_transform(x)
    ours = tsne(x)
    assert trustworthiness(x, ours) > trustworthiness(x, theirs) - 0.01
    assert np.array_equal(ours, tsne(x)), "equal embeddings give equal maps"


def test_prototype_lies_with_its_class() -> None:
    given = clusters(10)
    plane = tsne(np.concatenate([given.z, given.prototypes]))
    points, prototypes = plane[: len(given.z)], plane[len(given.z) :]
    centres = np.stack([points[given.labels == k].mean(axis=0) for k in range(10)])
    nearest = np.linalg.norm(prototypes[:, None] - centres, axis=2).argmin(axis=1)
    assert nearest.tolist() == list(range(10))


@pytest.mark.parametrize(("n", "dim"), [(3, 4), (4, 4), (6, 1), (40, 4)])
def test_collapsed_embedding_has_a_map(n: int, dim: int) -> None:
    plane = tsne(np.ones((n, dim), dtype=np.float32) / 2)
    assert plane.shape == (n, 2) and np.isfinite(plane).all()
