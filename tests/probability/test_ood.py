import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from esupcon.probability import (
    energy_score,
    fit_mahalanobis,
    knn_score,
    max_softmax_score,
    prototype_distance_score,
    softmax,
)


def test_logit_scores_equal_their_definitions() -> None:
    z = np.array([[2.0, 0.0, -1.0], [0.1, 0.0, -np.inf]])
    np.testing.assert_allclose(max_softmax_score(z), 1 - softmax(z).max(axis=1))
    np.testing.assert_allclose(energy_score(z), [-np.log(np.exp(2) + 1 + np.exp(-1)), -np.log(np.exp(0.1) + 1)])
    np.testing.assert_allclose(energy_score(z, 0.5), 0.5 * energy_score(2 * z))


def test_confident_rows_do_not_tie() -> None:
    z = np.array([[50.0, 0.0], [60.0, 0.0], [0.0, 70.0]])
    assert (np.diff(max_softmax_score(z)) < 0).all()


def test_prototype_distance_equals_a_computation_by_hand_for_vectors_of_any_length() -> None:
    got = prototype_distance_score([[2e-300, 0.0], [1.0, 1.0], [-3e300, 0.0]], [[5.0, 0.0], [0.0, 0.1]])
    np.testing.assert_allclose(got, [0.0, 1 - np.sqrt(0.5), 1.0], atol=1e-12)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_knn_is_the_distance_to_the_kth_nearest_unit_vector(k: int) -> None:
    rng = np.random.default_rng(0)
    x, reference = rng.normal(size=(31, 6)), rng.normal(size=(40, 6))
    x[0] = 7 * reference[3]
    unit, stored = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, reference))
    expected = [sorted(np.linalg.norm(row - other) for other in stored)[k - 1] for row in unit]
    np.testing.assert_allclose(knn_score(x, reference, k), expected, atol=1e-7)


def test_mahalanobis_equals_its_definition() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(4, size=120)
    labels[labels == 2] = 7  # classes need not be contiguous
    mixing = rng.normal(size=(5, 5))
    x = 3 * labels[:, None] + rng.normal(size=(120, 5)) @ mixing
    model = fit_mahalanobis(x, labels)
    means = [x[labels == k].mean(axis=0) for k in np.unique(labels)]
    residuals = np.vstack([x[labels == k] - x[labels == k].mean(axis=0) for k in np.unique(labels)])
    shrunk, _ = ledoit_wolf(residuals, assume_centered=True)
    new = 10 * rng.normal(size=(23, 5))
    slow = [min((v - m) @ np.linalg.inv(shrunk) @ (v - m) for m in means) for v in new]
    np.testing.assert_allclose(model.score(new), slow, rtol=1e-8)


def test_fewer_samples_than_dimensions_give_finite_scores() -> None:
    rng = np.random.default_rng(2)
    x, labels = rng.normal(size=(12, 30)), np.arange(12) % 3
    x[:, 7] = 0.0  # as of a unit that is never active
    model = fit_mahalanobis(x, labels)
    assert np.isfinite(model.score(x)).all()
    assert model.score([1e3 * x[0]]) > 100 * model.score(x).max()


def test_invalid_embeddings_are_refused() -> None:
    good = np.ones((4, 3))
    for call, says in (
        (lambda: fit_mahalanobis(np.eye(3), [0, 1, 2]), "vary within themselves"),
        (lambda: fit_mahalanobis(good, [0, 1]), r"shape \(4,\); got int64 of shape \(2,\)"),
        (lambda: knn_score([[1.0, np.inf, 0.0]], good, 1), "embeddings must be finite; got inf at row 0, column 1"),
        (lambda: knn_score(np.zeros((0, 3)), good, 1), r"got shape \(0, 3\)"),
        (lambda: prototype_distance_score(good[:, :2], good), "must have 3 dimensions; got 2"),
        (
            lambda: prototype_distance_score(good, [[1.0, 0, 0], [0.0, 0, 0]]),
            "prototypes must have a direction; .* row 1",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            call()
