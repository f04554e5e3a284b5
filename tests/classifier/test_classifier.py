"""One contract for every classifier: built from a network, from an estimator, from a folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from small_classifiers import make_classifier, some_rows

import esupcon
from assets import copy_of
from esupcon import ContrastiveClassifier
from esupcon._io import read_sealed_json, write_sealed_json
from esupcon.classifier import calibrate, evaluate, load_classifier, predict_files
from esupcon.classifier.classifier import (
    Classifier,
    Examples,
    unit,
)
from esupcon.cli import main
from esupcon.data import load
from esupcon.probability import Calibration, softmax

SHAPE = (3, 8, 6)
DIGITS = load_digits()
PIXELS = np.rint(DIGITS.images * (255 / 16)).astype(np.uint8)


def fitted(X: Any, y: Any, **settings: Any) -> ContrastiveClassifier:
    given = {"epochs": 3, "encoder": "mlp-32x1", "lr": 0.01, "random_state": 0, "auto_calibrate": False, **settings}
    return ContrastiveClassifier(**given).fit(X, y)


def trained_network(X: Any, y: Any) -> Classifier:
    """Return what a run has: a network, preprocessing and training rows, without an estimator."""
    estimator = fitted(X, y)
    inner = estimator.classifier_
    counts = np.bincount(y)
    rows = inner.preprocessing.rows(X)
    built = Classifier(inner.network, inner.preprocessing, inner.classes_, about=inner.about)
    built.calibration = Calibration(class_counts=tuple(counts.tolist()))
    return built.remember(rows, y)


@pytest.fixture(scope="module", params=["network", "estimator", "folder"])
def of_digits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    X, y = PIXELS[:300], DIGITS.target[:300]
    if request.param == "network":
        return trained_network(X, y)
    if request.param == "estimator":
        return fitted(X, y)
    return esupcon.load(trained_network(X, y).save(tmp_path_factory.mktemp("saved") / "model"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{i}.png" for i in range(5)]
    for path, image in zip(paths, PIXELS, strict=False):
        Image.fromarray(image).save(path)
    return paths


def test_every_classifier_predicts_explains_and_finds_outliers(of_digits: Any, files: list[Path]) -> None:
    X = PIXELS[:5]
    probabilities = of_digits.predict_proba(X)
    assert probabilities.shape == (5, 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert of_digits.predict(X).tolist() == of_digits.classes_[probabilities.argmax(axis=1)].tolist()
    for same in (files, [str(path) for path in files], [Image.open(path) for path in files], X[:, None]):
        np.testing.assert_array_equal(of_digits.predict_proba(same), probabilities)
    z = unit(of_digits.transform(X))
    np.testing.assert_allclose(np.linalg.norm(of_digits.prototypes_, axis=1), 1)
    explanation = of_digits.explain(X, n_neighbors=2)
    assert explanation.neighbours[:, 0].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(explanation.prototype_similarity, z @ of_digits.prototypes_.T, atol=1e-5)
    assert sorted(of_digits.label_issues()) == list(range(300))
    for method in ("auto", "class_mean", "mahalanobis", "knn", "prototype", "energy", "softmax"):
        assert of_digits.ood_score(X, method=method).shape == (5,)
    noise = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    scores = of_digits.ood_score(np.concatenate([PIXELS[:300], noise]))
    assert roc_auc_score(np.arange(350) >= 300, scores) > 0.9


def test_every_classifier_calibrates_adapts_grows_and_saves(of_digits: Any, tmp_path: Path) -> None:
    changed = copy.deepcopy(of_digits)
    X, y = PIXELS[300:500], DIGITS.target[300:500]
    before = changed.predict_proba(X)
    assert changed.calibrate(X, y) is changed
    assert not np.allclose(changed.predict_proba(X), before)
    assert changed.predict(X).tolist() == of_digits.predict(X).tolist()
    changed.adapt_priors(priors=np.eye(10)[3] * 0.5 + 0.05)
    assert changed.predict_proba(X)[:, 3].mean() > before[:, 3].mean()
    changed.add_class(np.full((4, 8, 8), 255, np.uint8), 10)
    assert changed.classes_.tolist() == list(range(11))
    folder = changed.save(tmp_path / "model")
    assert changed.save(tmp_path / "model", overwrite=True) == folder
    again = esupcon.load(folder)
    assert type(again) is type(changed)
    np.testing.assert_array_equal(again.predict_proba(X), changed.predict_proba(X))
    np.testing.assert_array_equal(again.ood_score(X), changed.ood_score(X))
    np.testing.assert_array_equal(again.explain(X).neighbours, changed.explain(X).neighbours)


# --- Outputs ---------------------------------------------------------------------------------------------------------


def test_logits_are_the_network_on_preprocessed_input() -> None:
    images = make_classifier("resnet10-w4", SHAPE)
    X = some_rows(SHAPE, 7)
    scaled = (X / 255.0 - np.reshape([0.4, 0.5, 0.6], (3, 1, 1))) / np.reshape([0.2, 0.3, 0.4], (3, 1, 1))
    with torch.no_grad():
        expected = images.network(torch.tensor(scaled, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(images.logits(X), expected, rtol=1e-4, atol=1e-4)
    table = make_classifier()
    X = some_rows((3,))
    with torch.no_grad():
        expected = table.network(torch.tensor((X - [0.0, 0.1, 0.2]) / [1.0, 2.0, 3.0])).numpy()
    np.testing.assert_allclose(table.logits(X), expected, rtol=1e-12)


@pytest.mark.parametrize(("shape", "n", "sizes"), [((3,), 300, [128, 128, 44]), ((3, 1024, 1024), 3, [1, 1, 1])])
def test_batches_are_bounded(shape: tuple[int, ...], n: int, sizes: list[int]) -> None:
    classifier = make_classifier("identity" if len(shape) == 1 else "mlp-2x1", shape)
    seen: list[int] = []
    classifier.network.encoder.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    classifier.logits(np.ones((n, *shape), np.uint8))
    assert seen == sizes


def test_outputs_leave_modes_and_statistics_unchanged() -> None:
    classifier = make_classifier("resnet10-w4", SHAPE)
    state = {name: value.clone() for name, value in classifier.network.state_dict().items()}
    first = classifier.logits(some_rows(SHAPE))
    classifier.network.train()
    classifier.network.head.eval()
    np.testing.assert_array_equal(classifier.logits(some_rows(SHAPE)), first)
    assert classifier.network.encoder.training and not classifier.network.head.training
    assert all(torch.equal(value, state[name]) for name, value in classifier.network.state_dict().items())


def test_outputs_that_are_not_finite_are_refused_with_their_row() -> None:
    with pytest.raises(ValueError, match="with NaN or infinity for 1 of 2 rows, first row 1"):
        make_classifier("mlp-8x2", (3,)).predict([[0, 0, 0], [1e308, 1e308, 1e308]])


# --- Examples: neighbours, labels, outliers --------------------------------------------------------------------------


def test_label_issues_follow_their_definition() -> None:
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
    classifier = make_classifier(classes=["a", "b", "c"])
    classifier.examples = Examples(z, codes, np.arange(30), class_means=z[:3])
    found = classifier.label_issues(return_details=True)
    order = np.argsort([margin for _, margin in expected], kind="stable")
    np.testing.assert_array_equal(found.indices, order)  # type: ignore[union-attr]
    np.testing.assert_allclose(found.likelihood, np.array(expected)[order, 0], atol=1e-6)  # type: ignore[union-attr]


def test_remembered_rows_are_spread_evenly_if_there_are_too_many() -> None:
    classifier = make_classifier()
    X = some_rows((3,), 50)
    codes = np.arange(50) % 3
    classifier.remember(classifier.preprocessing.rows(X), codes, most_values=10 * 8)
    assert classifier.examples is not None and len(classifier.examples.codes) == 10
    assert classifier.examples.rows[[0, -1]].tolist() == [0, 49]
    np.testing.assert_array_equal(classifier.examples.codes, codes[classifier.examples.rows])
    assert classifier.explain(X[49:], n_neighbors=1).neighbours.tolist() == [[49]]


@pytest.mark.parametrize(("encoder", "settings"), [("mlp-32x1", {"epochs": 10}), ("fast", {"lr": None})])
def test_outliers_among_images_are_found(encoder: str, settings: dict[str, Any]) -> None:
    known = np.flatnonzero(DIGITS.target < 7)
    train, rest = known[:700], known[700:]
    classifier = fitted(PIXELS[train], DIGITS.target[train], encoder=encoder, **settings).classifier_
    noise = np.random.default_rng(0).integers(0, 256, (200, 8, 8), dtype=np.uint8)
    dark, y = PIXELS[rest] // 4, DIGITS.target[rest]

    def separation(familiar: Any, foreign: Any) -> float:
        scores = classifier.ood_score(np.concatenate([familiar, foreign]))
        return float(roc_auc_score(np.arange(len(scores)) >= len(familiar), scores))

    assert separation(PIXELS[rest], PIXELS[DIGITS.target >= 7]) > 0.8
    assert min(separation(PIXELS[rest], noise), separation(PIXELS[rest], dark)) > 0.95
    # Few training images do not make the images of a class outliers.
    few = np.delete(train, np.flatnonzero(DIGITS.target[train] == 0)[4:])
    classifier.remember(PIXELS[few][:, None], DIGITS.target[few])
    assert separation(PIXELS[rest][y == 0], noise) > 0.95


def test_class_means_are_those_of_samples_that_were_not_held_out() -> None:
    classifier = make_classifier("resnet10-w4", SHAPE)
    X, codes, seen = some_rows(SHAPE, 30), np.arange(30) % 2, np.arange(30) >= 7  # nothing of the third class
    classifier.remember(X, codes, fit_on=seen, most_values=1)
    z, new = unit(classifier.transform(X)), some_rows(SHAPE, 9)
    means = unit(np.stack([z[seen & (codes == k)].mean(axis=0) for k in range(2)]))
    expected = 1 - (unit(classifier.transform(new)) @ means.T).max(axis=1)
    np.testing.assert_allclose(classifier.ood_score(new), expected, atol=1e-6)
    added = some_rows(SHAPE, 4)
    classifier.add_class(added, "fox")
    means = np.vstack([means, unit(unit(classifier.transform(added)).mean(axis=0, keepdims=True))])
    expected = 1 - (unit(classifier.transform(new)) @ means.T).max(axis=1)
    np.testing.assert_allclose(classifier.ood_score(new), expected, atol=1e-6)


@pytest.fixture(scope="module")
def table_of_digits() -> ContrastiveClassifier:
    X, y = load_digits(return_X_y=True)
    return fitted(X[:1000], y[:1000], epochs=10, auto_calibrate=True)


def test_outliers_are_unknown_and_held_out_samples_are_not(table_of_digits: Any, tmp_path: Path) -> None:
    X = DIGITS.data
    table_of_digits.save(tmp_path / "model")
    for classifier in (table_of_digits, esupcon.load(tmp_path / "model")):
        familiar = classifier.predict(X[1000:], unknown=-1)  # type: ignore[union-attr]
        assert np.mean(familiar == -1) < 0.06
        known = familiar != -1
        np.testing.assert_array_equal(familiar[known], classifier.predict(X[1000:])[known])
        assert np.mean(classifier.predict(1000 * X[1000:], unknown=-1) == -1) > 0.99  # type: ignore[union-attr]
    assert table_of_digits.predict(X[:5], unknown="none of these").dtype == object
    with pytest.raises(ValueError, match="unknown must not be one of the classes; got 3"):
        table_of_digits.predict(X, unknown=3)
    # Without the embeddings that the score is computed from, its threshold says nothing.
    bare: Any = esupcon.load(table_of_digits.save(tmp_path / "bare", examples=False))
    assert bare.classifier_.scores_and_logits(X[:3])[0].shape == (3,)
    with pytest.raises(ValueError, match="unknown needs a threshold"):
        bare.predict(X, unknown=-1)


def test_held_out_images_are_seldom_unknown_and_noise_is() -> None:
    order = np.random.default_rng(0).permutation(len(PIXELS))  # the last digits have other writers
    train, rest = order[:1000], order[1000:]
    classifier = fitted(PIXELS[train], DIGITS.target[train], epochs=10, auto_calibrate=True)
    assert classifier.classifier_.calibration.outlier_score == "class_mean"
    assert np.mean(classifier.predict(PIXELS[rest], unknown=-1) == -1) < 0.03  # over five orders 0.7 % on average
    noise = np.random.default_rng(0).integers(0, 256, (200, 8, 8), dtype=np.uint8)
    assert np.mean(classifier.predict(noise, unknown=-1) == -1) > 0.9


def test_the_threshold_is_that_of_99_percent_of_the_samples_given_to_calibrate(table_of_digits: Any) -> None:
    X, y = load_digits(return_X_y=True)
    classifier = copy.deepcopy(table_of_digits).calibrate(X[1000:1200], y[1000:1200])
    assert classifier.classifier_.calibration.outlier_score == "mahalanobis"
    assert np.sum(classifier.predict(X[1000:1200], unknown=-1) == -1) == 1  # at most 1 % of 200
    scores = np.sort(classifier.ood_score(X[1000:1200]))
    assert scores[197] <= classifier.classifier_.calibration.outlier_threshold <= scores[198]


@pytest.mark.parametrize(
    ("classes", "unknown", "kind"),
    [
        *((["ab", "cd", "ef"], "unknown", "U"), ([1, 2, 3], -1, "i"), ([1, 2, 3], np.int64(-1), "i")),
        *(([1, 2, 3], "no", "O"), ([True, False], -1, "O"), (["a", 1, "b"], "none", "O"), ([0.5, 1.5], 2.5, "f")),
    ],
)
def test_predictions_can_hold_the_value_for_unknown(classes: list[Any], unknown: Any, kind: str) -> None:
    classifier = make_classifier("identity", (3,), classes=classes)
    with pytest.raises(ValueError, match=r"needs a threshold.*calibrate\(X, y\)"):
        classifier.predict(some_rows((3,)), unknown=unknown)
    classifier.set_outlier_threshold(classifier.preprocessing.rows(some_rows((3,), 40)))
    X = np.concatenate([some_rows((3,)), -5 * classifier.prototypes_.sum(axis=0, keepdims=True)])  # type: ignore[union-attr]
    found = classifier.predict(X, unknown=unknown)
    assert found.dtype.kind == kind
    assert set(found.tolist()) <= {*classes, unknown} and classifier.predict(X).dtype == classifier.classes_.dtype


# --- The model of a run ----------------------------------------------------------------------------------------------


@pytest.fixture
def run(corners_run: Path, tmp_path: Path) -> Path:
    return copy_of(corners_run, tmp_path / "run")


def forge(run: Path, change: Any) -> None:
    values = read_sealed_json(run / "model" / "config.json")
    change(values)
    write_sealed_json(run / "model" / "config.json", values)


FORGED = {
    "data_dir": lambda v: v["about"]["data"].update(data_dir="elsewhere"),
    "a path as name": lambda v: v["about"]["data"].update(name="/etc/passwd"),
    "no about": lambda v: v.pop("about"),
    "calibration of five classes": lambda v: v["calibration"].update(target_priors=[0.2] * 5),
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("command", ["evaluate", "calibrate", "predict", "export"])
def test_forged_models_give_one_line_and_exit_code_2(
    run: Path,
    corners: Path,
    tmp_path: Path,
    name: str,
    command: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    forge(run, FORGED[name])
    more = {"predict": ["x.png"], "export": ["--out", "x.onnx"]}.get(command, [str(corners)])
    capfd.readouterr()
    assert main([command, str(run), *more]) == 2
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "config.json" in said.err
    assert not (tmp_path / "elsewhere").exists()


def test_a_model_that_claims_other_draws_changes_them_and_nothing_else(run: Path, corners: Path) -> None:
    before = evaluate(run, corners)
    forge(run, lambda v: v["about"]["data"].update(n_per_class=1, noise_rate=1.0, seed=9))
    assert evaluate(run, corners).uncalibrated == before.uncalibrated


def test_the_model_of_a_run_takes_paths_and_explains(run: Path, corners: Path, tmp_path: Path) -> None:
    classifier = esupcon.load(run)
    images = np.asarray(load(corners, log=lambda line: None).x_test[:3])
    Image.fromarray(images[0, 0]).save(tmp_path / "0.png")
    expected = classifier.predict_proba(images)
    np.testing.assert_allclose(classifier.predict_proba([tmp_path / "0.png"]), expected[:1], atol=1e-6)
    (found,) = predict_files(classifier, [str(tmp_path / "0.png")], top_k=3, unreadable=lambda path, reason: None)  # type: ignore[arg-type]
    assert dict(found.ranked) == pytest.approx(
        dict(zip(classifier.classes_.tolist(), expected[0], strict=True)), abs=1e-6
    )
    assert classifier.explain(images).neighbours.shape == (3, 5)
    assert classifier.ood_score(images).shape == (3,)
    assert len(classifier.label_issues()) > 50  # type: ignore[arg-type]


def test_calibrating_a_run_stores_the_threshold_for_unknown_images(run: Path, corners: Path) -> None:
    images = np.asarray(load(corners, log=lambda line: None).x_test)
    assert calibrate(run, corners, on="all").stored
    classifier = load_classifier(run)
    assert classifier.calibration.outlier_score == "class_mean"
    assert np.mean(classifier.predict(images, unknown="none") == "none") < 0.05
    noise = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    assert np.mean(classifier.predict(noise, unknown="none") == "none") > 0.5


def test_commands_for_images_refuse_models_of_tables(tmp_path: Path, corners: Path, run: Path) -> None:
    folder = make_classifier().save(tmp_path / "table")
    for use in (
        lambda: evaluate(folder, corners),
        lambda: calibrate(folder, corners),
        lambda: predict_files(load_classifier(folder), [], unreadable=lambda path, reason: None),
    ):
        with pytest.raises(ValueError, match="classifies tables; this command takes classifiers of images"):
            use()
    with pytest.raises(ValueError, match="top_k must be from 1 to the 3 classes"):
        predict_files(load_classifier(run), [], top_k=9, unreadable=lambda path, reason: None)
