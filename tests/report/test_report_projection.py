"""Projections to a plane against those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE, trustworthiness

from esupcon.report.projection import (
    MOST_CLASSES,
    MOST_POINTS,
    Embedding,
    neighbour_agreement,
    plane_maps,
    principal_components,
    sample,
    tsne,
)


def clusters(n_classes: int, n: int = 160, dim: int = 32, spread: float = 0.12, seed: int = 0) -> Embedding:
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:n_classes]
    labels = np.arange(n) % n_classes
    z = centres[labels] + spread * rng.normal(size=(n, dim))
    return sample((z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float16), labels, centres)


def test_principal_components_agree_with_scikit_learn() -> None:
    x = np.random.default_rng(0).normal(size=(50, 7)) * np.arange(1, 8)
    theirs = PCA(2).fit_transform(x)
    ours = principal_components(x)
    assert np.allclose(np.abs(ours), np.abs(theirs), atol=1e-8)


def test_tsne_is_as_trustworthy_as_that_of_scikit_learn() -> None:
    x = clusters(10, n=150).z
    theirs = TSNE(init="pca", perplexity=20, random_state=0, n_jobs=1, max_iter=500).fit_transform(x)
    assert trustworthiness(x, tsne(x)) > trustworthiness(x, theirs) - 0.01


def test_components_are_used_if_they_suffice_for_all_maps() -> None:
    few, many = clusters(3), clusters(10)
    assert plane_maps([few])[0] == "principal components"
    way, maps = plane_maps([few, many])
    assert way == "t-SNE"
    for one, (points, prototypes) in zip((few, many), maps, strict=True):
        assert neighbour_agreement(points, one.labels) > 0.95
        centres = np.stack([points[one.labels == k].mean(axis=0) for k in np.unique(one.labels)])
        nearest = np.linalg.norm(prototypes[:, None] - centres, axis=2).argmin(axis=1)
        assert nearest.tolist() == list(range(len(centres))), "a prototype lies with its class"
    (again, _) = plane_maps([few, many])[1]
    assert np.array_equal(again[0], maps[0][0]), "equal embeddings give equal maps"


def test_only_some_of_many_classes_and_samples_are_kept() -> None:
    kept = clusters(30, n=900)
    assert len(np.unique(kept.labels)) == len(kept.prototypes) == MOST_CLASSES and len(kept.z) <= MOST_POINTS


@pytest.mark.parametrize(("n", "dim"), [(3, 4), (4, 4), (6, 1), (40, 4)])
def test_collapsed_embedding_has_a_map(n: int, dim: int) -> None:
    _, ((points, prototypes),) = plane_maps([sample(np.ones((n, dim), dtype=np.float16) / 2, np.arange(n) % 2, None)])
    assert points.shape == (n, 2) and np.isfinite(points).all() and len(prototypes) == 0
