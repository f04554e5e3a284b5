"""Neighbours, doubtful labels, foreign samples, new classes, other class shares."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from estimator_data import blobs, quick
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from esupcon import ContrastiveClassifier
from esupcon.estimator.insight import Examples, doubtful_labels, nearest, unit
from esupcon.probability import auroc, softmax


@pytest.fixture(scope="module")
def digits_without_nine():
    X, y = load_digits(return_X_y=True)
    kept = y < 9
    return quick(epochs=30).fit(X[kept], y[kept]), X, y


def test_wrong_labels_of_digits_are_found() -> None:
    seed = 0
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(y))[: len(y) // 10]
    noisy = y.copy()
    noisy[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
    classifier = ContrastiveClassifier(random_state=seed).fit(X, noisy)
    ranked = classifier.label_issues()
    assert sorted(ranked) == list(range(len(y)))
    assert np.isin(wrong, ranked[: len(y) // 10]).mean() >= 0.8
    issues = classifier.label_issues(return_details=True)
    np.testing.assert_array_equal(issues.indices, ranked)
    np.testing.assert_array_equal(issues.given, noisy[ranked])
    found = np.isin(issues.indices, wrong)
    assert (issues.suggested[found] == y[issues.indices[found]]).mean() > 0.8
    assert issues.likelihood[:50].mean() < issues.likelihood[-50:].mean()


def test_beliefs_about_labels_follow_their_definition() -> None:
    rng = np.random.default_rng(0)
    z, codes = unit(rng.normal(size=(30, 4))).astype(np.float32), rng.integers(0, 3, 30)
    expected = []
    for i in range(30):
        others = [j for j in range(30) if j != i]
        near = sorted(others, key=lambda j: -float(z[i].astype(float) @ z[j].astype(float)))[:10]
        votes = np.array([sum(codes[j] == k for j in near) / 10 for k in range(3)])
        means = [sum(z[j].astype(float) for j in others if codes[j] == k) for k in range(3)]
        cosines = np.array([[z[i] @ m / np.linalg.norm(m) for m in means]])
        belief = (votes + softmax(cosines / 0.1)[0]) / 2
        expected.append((belief[codes[i]], belief[codes[i]] - max(np.delete(belief, codes[i]))))
    found = doubtful_labels(Examples(z, codes), np.array(["a", "b", "c"]))
    order = np.argsort([margin for _, margin in expected], kind="stable")
    np.testing.assert_array_equal(found.indices, order)
    np.testing.assert_allclose(found.likelihood, np.array(expected)[order, 0], atol=1e-6)


def test_explanations_are_the_nearest_by_cosine() -> None:
    X, y = blobs()
    names = np.array(["ash", "birch", "cedar"])[y]
    classifier = quick().fit(X, names)
    new = X[:4] + 0.1
    explanation = classifier.explain(new, n_neighbors=3)
    z, stored = unit(classifier.transform(new)), unit(classifier.transform(X))
    for i in range(4):
        expected = np.argsort(-(stored @ z[i]), kind="stable")[:3]
        np.testing.assert_allclose(explanation.neighbour_similarity[i], (stored @ z[i])[expected], atol=1e-5)
        assert explanation.neighbour_labels[i].tolist() == names[explanation.neighbours[i]].tolist()
    np.testing.assert_allclose(explanation.prototype_similarity, z @ classifier.prototypes_.T, atol=1e-5)
    np.testing.assert_array_equal(explanation.predicted, classifier.predict(new))
    assert str(explanation).count("\n") == 3 and "with its class" in str(explanation)
    with pytest.raises(ValueError, match="n_neighbors must be 1 to the 90"):
        classifier.explain(new, n_neighbors=91)


def test_a_linear_head_explains_by_class_means() -> None:
    X, y = blobs()
    explanation = quick(method="ce").fit(X, y).explain(X)
    assert (explanation.prototype_similarity.argmax(axis=1) == y).mean() > 0.9


def test_neighbours_in_blocks_leave_themselves_out(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    examples = Examples(unit(rng.normal(size=(23, 3))).astype(np.float32), np.zeros(23, np.int64))
    z = examples.embedding.astype(np.float64)
    whole = nearest(z, examples, 4, leave_out_self=True)[0]
    monkeypatch.setattr("esupcon.estimator.insight._BLOCK", 60)
    np.testing.assert_array_equal(nearest(z, examples, 4, leave_out_self=True)[0], whole)
    assert not (whole == np.arange(23)[:, None]).any()


@pytest.mark.parametrize("method", ["auto", "knn", "prototype", "energy", "softmax"])
def test_a_class_that_was_never_seen_scores_higher(digits_without_nine, method: str) -> None:
    classifier, X, y = digits_without_nine
    scores = classifier.ood_score(X, method=method)
    assert auroc(scores[y < 9], scores[y == 9]) > 0.85


def test_unknown_scores_and_unfitted_use_are_refused(digits_without_nine) -> None:
    classifier, X, _ = digits_without_nine
    with pytest.raises(ValueError, match="method must be one of auto, knn"):
        classifier.ood_score(X[:2], method="odin")
    for use in (
        lambda c: c.label_issues(),
        lambda c: c.explain(X),
        lambda c: c.ood_score(X),
        lambda c: c.adapt_priors(X),
        lambda c: c.add_class(X, "new"),
        lambda c: c.save("nowhere"),
        lambda c: c.calibrate(X, X),
    ):
        with pytest.raises(NotFittedError):
            use(ContrastiveClassifier())


def test_a_class_is_added_without_training(digits_without_nine) -> None:
    classifier, X, y = digits_without_nine
    larger = copy.deepcopy(classifier)
    nines = np.flatnonzero(y == 9)
    before = classifier.predict(X[y < 9])
    larger.add_class(X[nines[:40]], 9)
    assert larger.classes_.tolist() == list(range(10))
    # Nines lie between digits that were trained apart: some are found without training, and nothing else is lost.
    assert (larger.predict(X[nines[40:]]) == 9).mean() > 0.25
    assert (larger.predict(X[y < 9]) == before).mean() > 0.9
    assert larger.explain(X[nines[41:42]], n_neighbors=1).neighbours[0, 0] >= (y < 9).sum()
    np.testing.assert_allclose(larger.priors_.sum(), 1)
    assert larger.priors_[9] == pytest.approx(40 / ((y < 9).sum() + 40))
    with pytest.raises(ValueError, match="9 is known already"):
        larger.add_class(X[nines], 9)


def test_added_classes_keep_the_columns_sorted() -> None:
    X, y = blobs(120, centers=4)
    names = np.array(["b", "d", "a", "c"])[y]
    first = np.isin(names, ["b", "d"])
    classifier = quick().fit(X[first], names[first])
    prototypes = dict(zip(classifier.classes_, classifier.prototypes_, strict=True))
    classifier.add_class(X[~first], names[~first])
    assert classifier.classes_.tolist() == ["a", "b", "c", "d"]
    for label in "bd":
        np.testing.assert_allclose(classifier.prototypes_[list("abcd").index(label)], prototypes[label], atol=1e-6)
    assert classifier.predict_proba(X).shape == (120, 4)
    assert classifier.score(X, names) > 0.9
    with pytest.raises(ValueError, match="linear head"):
        quick(method="ce", epochs=1).fit(X, names).add_class(X, "e")


def test_adapting_to_other_class_shares() -> None:
    X, y = blobs(300, centers=2)
    X = X + np.random.default_rng(0).normal(0, 4, X.shape)
    classifier = quick(calibrate=True).fit(X[:150], y[:150])
    p = classifier.predict_proba(X)
    classifier.adapt_priors(priors={0: 0.9, 1: 0.1})
    expected = p * (np.array([0.9, 0.1]) / classifier.priors_)
    np.testing.assert_allclose(classifier.predict_proba(X), expected / expected.sum(1, keepdims=True))
    rare = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:15]])
    assert classifier.adapt_priors(X[rare]).target_priors_[1] < 0.3
    np.testing.assert_array_equal(classifier.adapt_priors().predict_proba(X), p)
    for wrong, message in (([0.5, 0.6], "sum to 1"), ({3: 1.0}, "not one of the classes")):
        with pytest.raises(ValueError, match=message):
            classifier.adapt_priors(priors=wrong)
    with pytest.raises(ValueError, match="got both"):
        classifier.adapt_priors(X, priors=[0.5, 0.5])
