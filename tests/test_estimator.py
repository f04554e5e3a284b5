"""The estimator: scikit-learn's contract, labels, training, calibration, saving."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, make_blobs, make_classification
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.metrics import recall_score, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import esupcon
from esupcon import ContrastiveClassifier
from esupcon._io import read_sealed_json, write_sealed_json
from esupcon.methods import METHODS
from esupcon.probability import adapt_to_priors, negative_log_likelihood
from esupcon.training.run import Run


def quick(**parameters: Any) -> ContrastiveClassifier:
    """Return an estimator that fits in a fraction of a second, separates blobs and learns something about digits."""
    return ContrastiveClassifier(**{"epochs": 25, "lr": 0.01, "random_state": 0, "auto_calibrate": False, **parameters})


def blobs(n: int = 90, centers: int = 3, seed: int = 0) -> tuple[Any, Any]:
    X, y = make_blobs(n, centers=centers, n_features=5, cluster_std=1.0, random_state=seed)
    return X, y


def digit_images(n: int = 200) -> tuple[Any, Any]:
    """Return uint8 (n, 8, 8) and labels."""
    data = load_digits()
    return np.rint(data.images[:n] * (255 / 16)).astype(np.uint8), data.target[:n]


# --- scikit-learn ----------------------------------------------------------------------------------------------------


CHECKED = ContrastiveClassifier(epochs=24, batch_size=512, lr=0.05, encoder="mlp-64x1", auto_calibrate=False)
# Checks that are made with calibration, which trains five times as often.
CALIBRATED = ("check_classifiers_classes", "check_estimators_pickle", "check_fit_idempotent", "check_dict_unchanged")


@parametrize_with_checks([CHECKED])
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(clone(estimator).set_params(auto_calibrate=check.func.__name__ in CALIBRATED))


def test_pipeline_grid_search_and_calibrated_classifier() -> None:
    X, y = blobs()
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), quick()),
        {"contrastiveclassifier__temperature": [0.1, 0.3], "contrastiveclassifier__auto_calibrate": [False]},
        cv=2,
    )
    assert search.fit(X, y).best_score_ > 0.9
    names = np.array(["ash", "birch", "cedar"])[y]
    assert (CalibratedClassifierCV(quick(), cv=2).fit(X, names).predict(X) == names).mean() > 0.9


def test_copies_predict_the_same_and_clones_are_unfitted() -> None:
    X, y = blobs()
    fitted = quick(auto_calibrate=True).fit(X, y)
    expected = fitted.predict_proba(X)
    for twin in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(twin.predict_proba(X), expected)
        assert twin.get_params() == fitted.get_params()
    fresh = clone(fitted)
    for name in ("predict", "explain", "ood_score", "adapt_priors", "save"):
        with pytest.raises(NotFittedError):
            getattr(fresh, name)(X)
    for name in ("add_class", "calibrate"):
        with pytest.raises(NotFittedError):
            getattr(fresh, name)(X, y)
    for use in (fresh.label_issues, lambda: fresh.prototypes_):
        with pytest.raises(NotFittedError):
            use()


def test_output_as_a_frame_with_names() -> None:
    X, y = blobs()
    frame = pd.DataFrame(X, columns=list("abcde"), index=np.arange(len(X)) + 7)
    classifier = quick().fit(frame, y).set_output(transform="pandas")
    embedding = classifier.transform(frame)
    assert list(embedding.columns) == list(classifier.get_feature_names_out())
    assert embedding.columns[0] == "contrastiveclassifier0"
    assert embedding.index.tolist() == frame.index.tolist()
    assert classifier.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(frame[list("edcba")])


# --- Inputs and labels -----------------------------------------------------------------------------------------------


def test_an_estimator_of_tables_can_be_fitted_to_images() -> None:
    X, y = blobs()
    classifier = quick(encoder="mlp-32x1", epochs=1).fit(X, y)
    images, digits = digit_images(60)
    classifier.fit(images, digits)
    assert not hasattr(classifier, "n_features_in_")
    assert classifier.predict(images).shape == (60,)


def test_scales_of_columns_do_not_matter() -> None:
    X, y = blobs()
    factors = np.array([1e-6, 1.0, 1e6, 3.0, 1e3])
    plain, scaled = quick().fit(X, y), quick().fit(X * factors + 5, y)
    np.testing.assert_allclose(scaled.predict_proba(X * factors + 5), plain.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("names", [["ash", "birch", "cedar"], [7, -3, 100]])
def test_predictions_are_labels_as_given(names: list[Any]) -> None:
    X, codes = blobs(45)
    y = np.array(names)[codes]
    classifier = quick(epochs=40).fit(X, y)
    assert classifier.classes_.tolist() == sorted(names)
    predicted = classifier.predict(X)
    assert classifier.score(X, y) == (predicted == y).mean() > 0.9
    np.testing.assert_array_equal(classifier.classes_[classifier.predict_proba(X).argmax(axis=1)], predicted)


def test_booleans_categories_objects_and_columns_as_labels() -> None:
    X, codes = blobs(45, centers=2)
    classifier = quick(epochs=1).fit(X, codes.astype(bool))
    assert classifier.classes_.dtype == bool and classifier.predict(X).dtype == bool
    words = pd.Series(["low", "high"], dtype=object).take(codes)
    for y in (words, words.astype("category"), words.tolist()):
        assert quick(epochs=1).fit(pd.DataFrame(X), y).classes_.tolist() == ["high", "low"]
    with pytest.warns(DataConversionWarning):
        quick(epochs=1).fit(X, codes[:, None])
    for y, message in (([("a", code) for code in codes], "1d array"), ([None, *words[1:]], "contains None")):
        with pytest.raises(ValueError, match=message):
            quick(epochs=1).fit(X, y)


# --- Training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str) -> None:
    X, y = blobs()
    classifier = quick(method=method, epochs=40).fit(X, y)
    assert classifier.score(X, y) > 0.9
    assert (classifier.prototypes_ is None) == (METHODS[method].head == "linear")
    explanation = classifier.explain(X)  # by prototypes or, with a linear head, by class means
    assert (explanation.prototype_similarity.argmax(axis=1) == y).mean() > 0.9
    if classifier.prototypes_ is not None:
        assert classifier.prototypes_.shape == (3, classifier.transform(X).shape[1])


def test_equal_seeds_give_equal_probabilities_and_leave_global_randomness_unchanged() -> None:
    X, y = blobs(60)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    first = quick(auto_calibrate=True).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(quick(auto_calibrate=True).fit(X, y).predict_proba(X), first)
    assert torch.equal(torch.get_rng_state(), torch_before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[index]
    assert not np.array_equal(quick(auto_calibrate=True, random_state=1).fit(X, y).predict_proba(X), first)


def test_probabilities_are_the_calibrated_softmax_of_cosines() -> None:
    X, y = blobs()
    classifier = quick(auto_calibrate=True).fit(X, y)
    z = classifier.transform(X).astype(np.float64)
    cosines = z / np.linalg.norm(z, axis=1, keepdims=True) @ classifier.prototypes_.T
    weights = np.exp(cosines / classifier.recipe_.train.temperature / classifier.calibration_temperature_)
    np.testing.assert_allclose(classifier.predict_proba(X), weights / weights.sum(1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), classifier.predict_proba(X))


def test_training_starts_from_a_module_and_does_not_change_it() -> None:
    X, y = blobs()
    module = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    classifier = quick(encoder=module).fit(X, y)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert classifier.transform(X).shape == (90, 16)
    assert classifier.score(X, y) > 0.9
    trained = classifier.classifier_.network.encoder.module.state_dict()  # type: ignore[union-attr]
    assert any(not torch.equal(trained[name], value) for name, value in before.items())


def test_balanced_drawing_helps_the_rare_class() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (190, 2)), rng.normal(1.3, 1, (10, 2))])
    y = np.repeat([0, 1], [190, 10])
    test = np.concatenate([rng.normal(0, 1, (500, 2)), rng.normal(1.3, 1, (500, 2))])
    truth = np.repeat([0, 1], 500)
    plain, balanced = (quick(class_weight=w, epochs=20).fit(X, y) for w in (None, "balanced"))
    gain = recall_score(truth, balanced.predict(test)) - recall_score(truth, plain.predict(test))
    assert gain > 0.05
    halfway = np.sqrt([0.95, 0.05])  # the mean contrast corrects halfway
    np.testing.assert_allclose(plain.priors_, halfway / halfway.sum())
    np.testing.assert_allclose(balanced.priors_, [0.5, 0.5])


def test_priors_are_those_that_probabilities_are_for_and_are_saved(tmp_path) -> None:
    X, y = blobs(200, centers=2)
    X = X + np.random.default_rng(0).normal(0, 4, X.shape)
    rows = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:25]])
    plain, equal, given = (
        quick(auto_calibrate=True, priors=priors).fit(X[rows], y[rows])
        for priors in ("training", "balanced", {0: 0.25, 1: 0.75})
    )
    assert plain.target_priors_ is None
    for other, target in ((equal, [0.5, 0.5]), (given, [0.25, 0.75])):
        assert other.calibration_temperature_ == plain.calibration_temperature_
        expected = adapt_to_priors(plain.predict_proba(X), plain.priors_, target)
        np.testing.assert_allclose(other.predict_proba(X), expected, atol=1e-9)
        loaded = esupcon.load(other.save(tmp_path / str(target[0])))
        assert loaded.get_params()["priors"] == other.priors
        np.testing.assert_array_equal(loaded.predict_proba(X), other.predict_proba(X))
    assert "| 1 | 0.75 |" in (tmp_path / "0.25" / "README.md").read_text()
    with pytest.raises(ValueError, match="priors must be for the classes 0, 1; got one for 7"):
        quick(priors={7: 1.0}).fit(X, y)


def test_class_weights_multiply_posteriors() -> None:
    X, y = blobs(centers=2)
    plain, weighted = quick().fit(X, y), quick(class_weight={1: 4.0}).fit(X, y)
    odds = [p[:, 1] / p[:, 0] for p in (plain.predict_proba(X), weighted.predict_proba(X))]
    np.testing.assert_allclose(odds[1], 4 * odds[0])
    np.testing.assert_allclose(weighted.priors_, [0.2, 0.8])
    for wrong in ({7: 1.0}, {1: 0.0}, {1: np.inf}):
        with pytest.raises(ValueError, match="class_weight"):
            quick(class_weight=wrong).fit(X, y)


def test_warm_start_continues() -> None:
    X, y = blobs()
    classifier = quick(warm_start=True, epochs=5).fit(X, y)
    first = classifier.history_[-1]["loss"]
    again = classifier.fit(X, y).history_[0]["loss"]
    fresh = quick(epochs=5).fit(X, y).history_[0]["loss"]
    assert again < fresh and again < first * 1.5
    with pytest.raises(ValueError, match="warm_start can only be used where"):
        classifier.fit(X, y + 1)
    with pytest.raises(ValueError, match="method and encoder it began with"):
        classifier.set_params(method="ce").fit(X, y)


def test_partial_fit_learns_in_parts() -> None:
    X, y = load_digits(return_X_y=True)
    classifier = quick()
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        classifier.partial_fit(X[:50], y[:50])
    for start in range(0, 1400, 100):
        classifier.partial_fit(X[start : start + 100], y[start : start + 100], classes=np.arange(10))
    assert classifier.score(X[1400:], y[1400:]) > 0.75
    assert classifier.n_iter_ == 14
    np.testing.assert_allclose(classifier.classifier_.preprocessing.mean, X[:1400].mean(axis=0), atol=1e-9)
    with pytest.raises(ValueError, match="is not the same as on last call to partial_fit"):
        classifier.partial_fit(X[:9], y[:9], classes=[1, 2])
    with pytest.raises(ValueError, match="not one of the 10 classes"):
        classifier.partial_fit(X[:2], [1, 11])
    with pytest.raises(ValueError, match="needs the embeddings of the training samples"):
        classifier.explain(X[:2])
    assert classifier.partial_fit(X[:1], y[:1]).ood_score(X[:3]).shape == (3,)


def test_early_stopping_keeps_the_best() -> None:
    X, y = blobs(120)
    classifier = quick(early_stopping=True, patience=2, epochs=200, validation_fraction=0.25).fit(X, y)
    assert classifier.n_iter_ < 200
    accuracies = [record["held_out_accuracy"] for record in classifier.history_]
    assert accuracies.index(max(accuracies)) == len(accuracies) - 3


def test_verbose_shows_progress_and_silence_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    X, y = blobs(30)
    quick(epochs=2).fit(X, y)
    assert capfd.readouterr() == ("", "")
    quick(epochs=2, verbose=1).fit(X, y)
    assert "ESupCon" in capfd.readouterr().err


def test_a_method_registered_after_the_import_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = blobs(60)
    with pytest.raises(ValueError, match="'method' parameter"):
        quick(method="late").fit(X, y)
    monkeypatch.setitem(METHODS, "late", replace(METHODS["esupcon"], key="late"))
    assert quick(method="late").fit(X, y).predict_proba(X).shape == (len(X), 3)


# --- Calibration, priors, examples -----------------------------------------------------------------------------------


def test_how_to_calibrate_depends_on_the_number_of_samples() -> None:
    X, y = blobs(400)
    assert quick(auto_calibrate=True, epochs=2, validation_fraction=0.3).fit(X, y).calibration_ == "held-out"
    assert quick(auto_calibrate=True, epochs=2).fit(X, y).calibration_ == "cross-fitted"
    for tiny in (quick(auto_calibrate=True, epochs=2).fit(X[:12], y[:12]), quick(epochs=2).fit(X, y)):
        assert tiny.calibration_ == "none" and tiny.calibration_temperature_ == 1.0


def test_networks_of_cross_fitting_take_as_many_steps_as_the_one_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer steps their logits have another scale, and the temperature does not fit."""
    steps, end_step = Counter[str](), Run.end_step

    def counted(run: Run, *arguments: Any, **options: Any) -> None:
        steps[run.data.fingerprint] += 1
        end_step(run, *arguments, **options)

    monkeypatch.setattr(Run, "end_step", counted)
    quick(auto_calibrate=True, epochs=3, batch_size=40).fit(*blobs(99))  # batches of 33: two in two thirds of them
    assert list(steps.values()) == [9, 9, 9, 9]


def test_calibration_improves_the_likelihood() -> None:
    n = 150
    X, y = make_classification(n + 2000, 8, n_informative=4, flip_y=0.3, class_sep=0.7, random_state=0)
    too_sure = {"epochs": 40, "temperature": 0.01, "weight_decay": 0.0}
    plain, calibrated = (quick(auto_calibrate=auto, **too_sure).fit(X[:n], y[:n]) for auto in (False, True))
    losses = [negative_log_likelihood(c.predict_proba(X[n:]), y[n:]) for c in (plain, calibrated)]
    assert losses[1] < losses[0]
    assert plain.calibrate(X[n : n + 500], y[n : n + 500]) is plain
    assert plain.calibration_ == "given"
    assert negative_log_likelihood(plain.predict_proba(X[n:]), y[n:]) < losses[0]
    with pytest.raises(ValueError, match="not one of the 2 classes"):
        plain.calibrate(X[:2], [0, 5])


@pytest.fixture(scope="module")
def digits_without_nine() -> Any:
    X, y = load_digits(return_X_y=True)
    kept = y < 9
    return quick(epochs=30).fit(X[kept], y[kept]), X, y


@pytest.mark.parametrize("method", ["auto", "knn", "prototype", "energy", "softmax"])
def test_a_class_that_was_never_seen_scores_higher(digits_without_nine: Any, method: str) -> None:
    classifier, X, y = digits_without_nine
    scores = classifier.ood_score(X, method=method)
    assert roc_auc_score(y == 9, scores) > 0.85


def test_a_class_is_added_without_training(digits_without_nine: Any) -> None:
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
    halfway = np.sqrt([*np.bincount(y[y < 9]), 40])  # the mean contrast corrects halfway for the shares
    assert larger.priors_[9] == pytest.approx(halfway[9] / halfway.sum())
    for label, message in ((9, "9 is known already"), ("ten", "must be of the type of the classes; got 'ten'")):
        with pytest.raises(ValueError, match=message):
            larger.add_class(X[nines], label)


def test_added_classes_keep_the_columns_sorted() -> None:
    X, y = blobs(120, centers=4)
    names = np.array(["b", "d", "a", "c"])[y]
    first = np.isin(names, ["b", "d"])
    classifier = quick(class_weight={"d": 2.0}).fit(X[first], names[first])
    prototypes = dict(zip(classifier.classes_, classifier.prototypes_, strict=True))
    classifier.add_class(X[~first], names[~first])
    assert classifier.classes_.tolist() == ["a", "b", "c", "d"]
    assert classifier.classifier_.calibration.class_weight == (1.0, 1.0, 1.0, 2.0)
    for label in "bd":
        np.testing.assert_allclose(classifier.prototypes_[list("abcd").index(label)], prototypes[label], atol=1e-6)
    assert classifier.score(X, names) > 0.9
    with pytest.raises(ValueError, match="linear head"):
        quick(method="ce", epochs=1).fit(X, names).add_class(X, "e")


# --- Saving ----------------------------------------------------------------------------------------------------------


def test_tables_come_back_unchanged(tmp_path: Path) -> None:
    X, y = blobs()
    frame = pd.DataFrame(X, columns=list("abcde"))
    names = np.array(["ash", "birch", "cedar"])[y]
    classifier = quick(auto_calibrate=True, class_weight={"ash": 2.0}, temperature=0.2).fit(frame, names)
    classifier.adapt_priors(priors=[0.2, 0.3, 0.5])
    classifier.save(tmp_path / "model")
    again = esupcon.load(tmp_path / "model")
    assert isinstance(again, ContrastiveClassifier)
    assert again.get_params() == classifier.get_params()
    for method in ("predict_proba", "transform", "ood_score"):
        np.testing.assert_array_equal(getattr(again, method)(frame), getattr(classifier, method)(frame))
    np.testing.assert_array_equal(again.prototypes_, classifier.prototypes_)
    np.testing.assert_array_equal(again.classes_, classifier.classes_)
    np.testing.assert_array_equal(again.label_issues(), classifier.label_issues())
    assert (again.calibration_, again.n_iter_, again.n_features_in_) == ("cross-fitted", 25, 5)
    assert again.history_ == classifier.history_
    assert again.feature_names_in_.tolist() == list("abcde")
    assert again.classes_.dtype == classifier.classes_.dtype
    again.partial_fit(frame, names)


@pytest.mark.parametrize("scale", [1, 1 / 255, 16 / 255])
def test_images_come_back_with_their_range(tmp_path: Path, scale: float) -> None:
    images, y = digit_images(60)
    X = images if scale == 1 else images * scale
    classifier = quick(epochs=1, encoder="resnet10-w8", image_size=(8, 8)).fit(X, y)
    classifier.save(tmp_path / "model")
    again = esupcon.load(tmp_path / "model")
    # Training leaves weights in the channels-last layout, whose sums round differently.
    np.testing.assert_allclose(again.predict_proba(X), classifier.predict_proba(X), atol=1e-5)
    assert again.get_params()["image_size"] == (8, 8)  # type: ignore[union-attr]


def test_saving_without_examples(tmp_path: Path) -> None:
    X, y = blobs()
    classifier = quick(epochs=1).fit(X, y)
    classifier.save(tmp_path / "model")
    with pytest.raises(FileExistsError, match="holds a model already"):
        classifier.save(tmp_path / "model")
    classifier.save(tmp_path / "model", overwrite=True, examples=False)
    again = esupcon.load(tmp_path / "model")
    with pytest.raises(ValueError, match=r"save\(path, examples=True\)"):
        again.label_issues()
    assert again.ood_score(X).shape == (90,)


@pytest.mark.parametrize(
    "parameters",
    [{"epochs": -1}, {"surprise": 1}, {"class_weight": [[1]]}, {"class_weight": [[[1], 2]]}, {"image_size": ["a"]}],
)
def test_forged_parameters_are_refused_in_one_line(tmp_path: Path, parameters: dict[str, Any]) -> None:
    X, y = blobs(30)
    folder = quick(epochs=1).fit(X, y).save(tmp_path / "model")
    values = read_sealed_json(folder / "config.json")
    values["about"]["parameters"] |= parameters
    write_sealed_json(folder / "config.json", values)
    if parameters == {"image_size": ["a"]}:
        esupcon.load(folder)  # only `fit` reads it, and refuses it there
        return
    with pytest.raises(ValueError, match="holds parameters that ContrastiveClassifier does not take") as caught:
        esupcon.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("n", "how"), [(1040, "held-out"), (90, "cross-fitted")])
def test_command_and_estimator_give_the_same_classifier(tmp_path: Path, n: int, how: str) -> None:
    """The same rows in the same order, seed and settings: equal tensors, normalisation and temperature."""
    digits = load_digits()
    x, y = np.round(digits.images * (255 / 16)).astype(np.uint8), digits.target % 3
    np.savez(tmp_path / "data.npz", x_train=x[:n], y_train=y[:n], x_test=x[n : n + 30], y_test=y[n : n + 30])
    train = esupcon.TrainSpec(seed=3, epochs=2, batch_size=40)
    source = {"source": str(tmp_path / "data.npz"), "cross_fit": True, "validation_fraction": 0.1, "train": train}
    esupcon.train(esupcon.RunSpec(**source), tmp_path / "run", log=lambda line: None, progress=False)
    command = esupcon.load(tmp_path / "run")
    estimator = ContrastiveClassifier(random_state=3, epochs=2, batch_size=40).fit(x[:n], y[:n]).classifier_
    assert command.calibration.how == estimator.calibration.how == how
    for (name, a), b in zip(command.network.state_dict().items(), estimator.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert command.preprocessing.mean == estimator.preprocessing.mean
    assert command.preprocessing.std == estimator.preprocessing.std
    assert command.calibration.temperature == estimator.calibration.temperature
