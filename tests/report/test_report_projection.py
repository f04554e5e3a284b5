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


def test_neighbour_agreement_agrees_with_counting() -> None:
    x = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [100.0]])
    labels = np.array([0, 0, 0, 1, 1, 1, 1])
    shares = []
    for i in range(7):
        nearest = sorted((j for j in range(7) if j != i), key=lambda j: abs(x[i, 0] - x[j, 0]))[:5]
        shares.append(sum(labels[j] == labels[i] for j in nearest) / 5)
    # The outermost points have six others, of which the farthest is left out; ties do not occur there.
    assert neighbour_agreement(x, labels) == pytest.approx(sum(shares) / 7)


def test_components_are_used_if_they_suffice_for_all_maps() -> None:
    few, many = clusters(3), clusters(10)
    (alone,) = plane_maps([few])
    assert alone.method == "principal components"
    together = plane_maps([few, many])
    assert [one.method for one in together] == ["t-SNE", "t-SNE"]
    for one in together:
        assert neighbour_agreement(one.points, one.labels) > 0.95
        for at, k in zip(one.prototypes, np.unique(one.labels), strict=True):
            own = one.points[one.labels == k].mean(axis=0)
            others = [one.points[one.labels == j].mean(axis=0) for j in set(one.labels.tolist()) - {k}]
            assert np.linalg.norm(at - own) < min(np.linalg.norm(at - other) for other in others)


def test_equal_embeddings_give_equal_maps() -> None:
    first, second = (plane_maps([clusters(8)])[0] for _ in range(2))
    assert np.array_equal(first.points, second.points)


def test_only_some_of_many_classes_and_samples_are_kept() -> None:
    (drawn,) = plane_maps([clusters(30, n=900)])
    assert len(np.unique(drawn.labels)) == MOST_CLASSES and len(drawn.points) <= MOST_POINTS
    assert len(drawn.prototypes) == MOST_CLASSES


@pytest.mark.parametrize("n", [3, 4, 6, 40])
def test_collapsed_embedding_has_a_map(n: int) -> None:
    z = np.ones((n, 4), dtype=np.float16) / 2
    (drawn,) = plane_maps([sample(z, np.arange(n) % 2, None)])
    assert np.isfinite(drawn.points).all() and len(drawn.prototypes) == 0


def test_one_dimension_gives_a_plane() -> None:
    assert principal_components(np.arange(4.0)[:, None]).shape == (4, 2)
