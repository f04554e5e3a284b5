import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.covariance import ledoit_wolf
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors

from esupcon.probability import (
    auroc,
    detection_table,
    energy_score,
    fit_mahalanobis,
    format_detection_table,
    fpr_at_tpr,
    knn_score,
    max_logit_score,
    max_softmax_score,
    ood,
    prototype_distance_score,
    softmax,
)

scores = hnp.arrays(np.float64, st.integers(1, 25), elements=st.integers(-4, 4).map(float))


@settings(deadline=None, max_examples=150)
@given(scores, scores)
def test_auroc_is_the_share_of_pairs_in_order(inside, outside) -> None:
    pairs = [(o > i) + 0.5 * (o == i) for o in outside for i in inside]
    assert auroc(inside, outside) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    is_out = np.append(np.zeros(len(inside)), np.ones(len(outside)))
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(is_out, np.append(inside, outside)), abs=1e-12)


@settings(deadline=None, max_examples=150)
@given(scores, scores, st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]))
def test_fpr_is_read_off_the_roc_curve_with_inliers_positive(inside, outside, tpr: float) -> None:
    is_in = np.append(np.ones(len(inside)), np.zeros(len(outside)))
    fpr, tprs, _ = roc_curve(is_in, -np.append(inside, outside), drop_intermediate=False)
    assert fpr_at_tpr(inside, outside, tpr) == pytest.approx(fpr[tprs >= tpr - 1e-12].min(), abs=1e-12)


def test_detection_by_hand() -> None:
    assert auroc([1, 2, 3], [4, 5]) == 1.0
    assert auroc([4, 5], [1, 2, 3]) == 0.0
    assert fpr_at_tpr([1, 2, 3], [4, 5]) == 0.0
    assert fpr_at_tpr(np.arange(20), [18.5, 17.5, 100]) == pytest.approx(1 / 3)
    assert auroc([0.0, 1.0], [np.inf, 1.0]) == 0.875


@pytest.mark.parametrize("function", [auroc, fpr_at_tpr])
@pytest.mark.parametrize("bad", [[], [np.nan, 1.0], [[1.0]], ["a"], 3.0])
def test_scores_that_are_none(function, bad) -> None:
    with pytest.raises(ValueError, match="in_scores must"):
        function(bad, [1.0])
    with pytest.raises(ValueError, match="out_scores must"):
        function([1.0], bad)


@pytest.mark.parametrize("tpr", [0.0, 1.1, 95])
def test_rates_that_are_none(tpr: float) -> None:
    with pytest.raises(ValueError, match="tpr must lie in"):
        fpr_at_tpr([1.0], [2.0], tpr)


def test_logit_scores_by_hand() -> None:
    z = np.array([[2.0, 0.0, -1.0], [0.1, 0.0, -np.inf]])
    np.testing.assert_allclose(max_softmax_score(z), 1 - softmax(z).max(axis=1))
    np.testing.assert_allclose(energy_score(z), [-np.log(np.exp(2) + 1 + np.exp(-1)), -np.log(np.exp(0.1) + 1)])
    np.testing.assert_allclose(energy_score(z, 0.5), 0.5 * energy_score(2 * z))
    np.testing.assert_allclose(max_logit_score(z), [-2.0, -0.1])


def test_confident_rows_do_not_tie() -> None:
    z = np.array([[50.0, 0.0], [60.0, 0.0], [0.0, 70.0]])
    assert (np.diff(max_softmax_score(z)) < 0).all()


def test_prototype_distance_by_hand() -> None:
    got = prototype_distance_score([[2.0, 0.0], [1.0, 1.0], [-3.0, 0.0]], [[5.0, 0.0], [0.0, 0.1]])
    np.testing.assert_allclose(got, [0.0, 1 - np.sqrt(0.5), 1.0], atol=1e-12)


def test_vectors_of_any_length_have_a_direction() -> None:
    got = prototype_distance_score([[1e-300, 0.0], [0.0, 1e300]], [[1.0, 0.0]])
    np.testing.assert_allclose(got, [0.0, 1.0], atol=1e-12)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_knn_agrees_with_scikit_learn_in_any_blocks(monkeypatch, k: int) -> None:
    rng = np.random.default_rng(0)
    x, reference = rng.normal(size=(31, 6)), rng.normal(size=(40, 6))
    unit = reference / np.linalg.norm(reference, axis=1, keepdims=True)
    peer = NearestNeighbors(n_neighbors=k).fit(unit)
    expected = peer.kneighbors(x / np.linalg.norm(x, axis=1, keepdims=True))[0][:, -1]
    np.testing.assert_allclose(knn_score(x, reference, k), expected, atol=1e-9)
    for entries in (1, 100, 1000):
        monkeypatch.setattr(ood, "_BLOCK_ENTRIES", entries)
        np.testing.assert_allclose(knn_score(x, reference, k), expected, atol=1e-9)


@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.3, 1.0])
def test_mahalanobis_equals_its_definition(monkeypatch, shrinkage) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(4, size=120)
    labels[labels == 2] = 7  # classes need not be contiguous
    mixing = rng.normal(size=(5, 5))
    x = 3 * labels[:, None] + rng.normal(size=(120, 5)) @ mixing
    model = fit_mahalanobis(x, labels, shrinkage=shrinkage)
    means = [x[labels == k].mean(axis=0) for k in np.unique(labels)]
    residuals = np.vstack([x[labels == k] - x[labels == k].mean(axis=0) for k in np.unique(labels)])
    covariance = residuals.T @ residuals / 120
    if shrinkage is None:
        shrunk, amount = ledoit_wolf(residuals, assume_centered=True)
        assert model.shrinkage == pytest.approx(amount, rel=1e-9)
    else:
        shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / 5 * np.eye(5)
    new = 10 * rng.normal(size=(23, 5))
    slow = [min((v - m) @ np.linalg.inv(shrunk) @ (v - m) for m in means) for v in new]
    np.testing.assert_allclose(model.score(new), slow, rtol=1e-8)
    monkeypatch.setattr(ood, "_BLOCK_ENTRIES", 7)
    np.testing.assert_allclose(model.score(new), slow, rtol=1e-8)


def test_fewer_samples_than_dimensions_are_shrunk() -> None:
    rng = np.random.default_rng(2)
    x, labels = rng.normal(size=(12, 30)), np.arange(12) % 3
    model = fit_mahalanobis(x, labels)
    assert 0 < model.shrinkage <= 1
    assert np.isfinite(model.score(x)).all()
    with pytest.raises(ValueError, match=r"12 embeddings in 30 dimensions is singular at shrinkage 0"):
        fit_mahalanobis(x, labels, shrinkage=0.0)


def test_classes_without_variation_are_refused() -> None:
    with pytest.raises(ValueError, match="vary within themselves"):
        fit_mahalanobis(np.eye(3), [0, 1, 2])


def test_embeddings_that_are_none() -> None:
    good = np.ones((4, 3))
    with pytest.raises(ValueError, match=r"embeddings must be finite; got nan at \(0, 1\)"):
        knn_score([[1.0, np.nan, 0.0]], good, 1)
    with pytest.raises(ValueError, match="must have 3 dimensions like what they are compared with; got 2"):
        prototype_distance_score(good[:, :2], good)
    with pytest.raises(ValueError, match="prototypes must have a direction; row 1 is all zeros"):
        prototype_distance_score(good, [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"k must be at most the number of reference samples, 4; got 5"):
        knn_score(good, good, 5)
    with pytest.raises(ValueError, match=r"got shape \(0, 3\)"):
        knn_score(np.zeros((0, 3)), good, 1)
    with pytest.raises(ValueError, match=r"shrinkage must lie in 0\.\.1; got 2"):
        fit_mahalanobis(np.random.default_rng(0).normal(size=(9, 2)), np.arange(9) % 2, shrinkage=2)
    with pytest.raises(ValueError, match="labels must be one class index per row"):
        fit_mahalanobis(good, [0, 1])


@pytest.fixture(scope="module")
def digits_table():
    """A linear classifier of clean digits, asked about held-out digits and about the same ones perturbed."""
    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    train, test = images[:1200], images[1200:]
    model = LogisticRegression(max_iter=300).fit(train, labels[:1200])
    rng = np.random.default_rng(0)
    mahalanobis = fit_mahalanobis(train, labels[:1200])
    prototypes = np.stack([train[labels[:1200] == k].mean(axis=0) for k in range(10)])
    perturbed = {
        "noise": np.clip(test + 0.4 * rng.normal(size=test.shape), 0, 1),
        "shuffled pixels": rng.permuted(test, axis=1),
    }

    def all_scores(x):
        z = model.decision_function(x)
        return {
            "max softmax": max_softmax_score(z),
            "energy": energy_score(z),
            "max logit": max_logit_score(z),
            "prototype": prototype_distance_score(x, prototypes),
            "nearest neighbours": knn_score(x, train),
            "Mahalanobis": mahalanobis.score(x),
        }

    inside = all_scores(test)
    outside = {name: all_scores(x) for name, x in perturbed.items()}
    return detection_table({name: {s: (inside[s], out[s]) for s in inside} for name, out in outside.items()})


def test_every_score_tells_perturbed_digits_from_clean_ones(digits_table) -> None:
    assert len(digits_table) == 12
    for row in digits_table:
        assert row.auroc > 0.6, row
        assert row.fpr95 < 0.95, row
        assert (row.n_in, row.n_out) == (597, 597)
    by_score = {row.score: row.auroc for row in digits_table if row.method == "noise"}
    for name in ("prototype", "nearest neighbours", "Mahalanobis"):
        assert by_score[name] > 0.9


def test_the_table_reads_as_markdown(digits_table) -> None:
    text = format_detection_table(digits_table)
    lines = text.splitlines()
    assert len(lines) == 14
    assert lines[0].startswith("| method | score | AUROC % |")
    first = digits_table[0]
    assert lines[2] == f"| noise | max softmax | {100 * first.auroc:.2f} | {100 * first.fpr95:.2f} | 597 | 597 |"
