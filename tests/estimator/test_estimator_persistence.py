"""Saved to a folder and loaded elsewhere: the same classifier, from files that execute nothing."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_data import blobs, digit_images, quick
from safetensors.numpy import load_file

import esupcon
from esupcon import ContrastiveClassifier
from esupcon.artifact import Classifier, save_artifact
from esupcon.artifact.folder import read_artifact


def test_tables_come_back_as_they_were(tmp_path) -> None:
    X, y = blobs()
    frame = pd.DataFrame(X, columns=list("abcde"))
    names = np.array(["ash", "birch", "cedar"])[y]
    classifier = quick(calibrate=True, class_weight={"ash": 2.0}, temperature=0.2).fit(frame, names)
    classifier.adapt_priors(priors=[0.2, 0.3, 0.5])
    classifier.save(tmp_path / "model")
    again = esupcon.load(tmp_path / "model")
    assert isinstance(again, ContrastiveClassifier)
    assert again.get_params() == classifier.get_params()
    np.testing.assert_array_equal(again.predict_proba(frame), classifier.predict_proba(frame))
    np.testing.assert_array_equal(again.transform(frame), classifier.transform(frame))
    np.testing.assert_array_equal(again.prototypes_, classifier.prototypes_)
    np.testing.assert_array_equal(again.classes_, classifier.classes_)
    assert again.classes_.dtype == classifier.classes_.dtype
    np.testing.assert_array_equal(again.label_issues(), classifier.label_issues())
    np.testing.assert_array_equal(again.explain(frame).neighbours, classifier.explain(frame).neighbours)
    assert (again.calibration_, again.n_iter_, again.n_features_in_) == ("cross-fitted", 25, 5)
    assert again.feature_names_in_.tolist() == list("abcde")
    again.partial_fit(frame, names)


@pytest.mark.parametrize("scale", [1, 1 / 255, 16 / 255])
def test_images_come_back_with_their_range(tmp_path, scale: float) -> None:
    images, y = digit_images(60)
    X = images if scale == 1 else images * scale
    classifier = quick(epochs=1, encoder="resnet10-w8").fit(X, y)
    classifier.save(tmp_path / "model")
    again = esupcon.load(tmp_path / "model")
    np.testing.assert_allclose(again.predict_proba(X), classifier.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("labels", [[True, False], [3, 5], [1.0, 2.0], ["a", "b"]])
def test_labels_keep_their_type(tmp_path, labels) -> None:
    X, y = blobs(30, centers=2)
    classifier = quick(epochs=1).fit(X, np.array(labels)[y])
    classifier.save(tmp_path / "model")
    again = esupcon.load(tmp_path / "model")
    assert again.predict(X).tolist() == classifier.predict(X).tolist()
    assert type(again.classes_.tolist()[0]) is type(labels[0])


@pytest.mark.parametrize("method", ["ce", "supcon_tt"])
def test_other_heads_and_projectors_too(tmp_path, method: str) -> None:
    X, y = blobs()
    classifier = quick(method=method, epochs=2).fit(X, y)
    classifier.save(tmp_path / "model")
    np.testing.assert_array_equal(esupcon.load(tmp_path / "model").predict_proba(X), classifier.predict_proba(X))


def test_identity_and_added_classes_come_back(tmp_path) -> None:
    X, y = blobs()
    classifier = quick(encoder="identity", epochs=2).fit(X[y < 2], y[y < 2]).add_class(X[y == 2], 2)
    classifier.save(tmp_path / "model")
    again = esupcon.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    np.testing.assert_allclose(again.priors_, classifier.priors_)


def test_a_module_of_ones_own_is_passed_again(tmp_path) -> None:
    def module() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU())

    X, y = blobs()
    classifier = quick(encoder=module(), epochs=2).fit(X, y)
    classifier.save(tmp_path / "model")
    with pytest.raises(ValueError, match="encoder of your own"):
        esupcon.load(tmp_path / "model")
    again = esupcon.load(tmp_path / "model", encoder=module())
    np.testing.assert_allclose(again.predict_proba(X), classifier.predict_proba(X), atol=1e-6)


def test_the_folder_also_serves_those_who_need_no_estimator(tmp_path) -> None:
    """The same predictions from the artifact alone: preprocessing and calibration are in its config."""
    X, y = blobs()
    classifier = quick(calibrate=True).fit(X, y)
    network, config = read_artifact(classifier.save(tmp_path / "model"))
    np.testing.assert_allclose(Classifier(network, config).predict_proba(X), classifier.predict_proba(X), atol=1e-5)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "README.md",
        "config.json",
        "examples.safetensors",
        "model.safetensors",
    ]


def test_a_model_without_an_estimator_and_the_folder_of_a_run(tmp_path) -> None:
    X, y = blobs()
    classifier = quick(epochs=2).fit(X, y)
    network, config = read_artifact(classifier.save(tmp_path / "saved"))
    bare = config.model_copy(update={"training": {}})
    save_artifact(tmp_path / "run" / "model", network, bare)
    again = esupcon.load(tmp_path / "run")
    assert isinstance(again, Classifier)
    np.testing.assert_array_equal(again.predict(X), classifier.predict(X))
    assert again.prototypes_.shape == classifier.prototypes_.shape


def test_overwriting_takes_the_examples_along(tmp_path) -> None:
    X, y = blobs()
    first, second = quick(epochs=1).fit(X, y), quick(epochs=1, random_state=1).fit(X[:60], y[:60])
    first.save(tmp_path / "model")
    with pytest.raises(FileExistsError):
        second.save(tmp_path / "model")
    assert len(esupcon.load(tmp_path / "model").examples_.codes) == 90
    second.save(tmp_path / "model", overwrite=True)
    assert len(load_file(tmp_path / "model" / "examples.safetensors")["codes"]) == 60
    second.save(tmp_path / "model", overwrite=True, examples=False)
    again = esupcon.load(tmp_path / "model")
    assert again.examples_ is None
    with pytest.raises(ValueError, match="save\\(path, examples=True\\)"):
        again.label_issues()
    assert again.ood_score(X).shape == (90,)


def test_a_folder_with_other_things_is_not_touched(tmp_path) -> None:
    X, y = blobs(30)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError):
        quick(epochs=1).fit(X, y).save(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_examples_of_another_model_are_not_believed(tmp_path) -> None:
    X, y = blobs()
    quick(epochs=1).fit(X, y).save(tmp_path / "one")
    quick(epochs=1, random_state=1).fit(X, y).save(tmp_path / "two")
    shutil.copy(tmp_path / "one" / "examples.safetensors", tmp_path / "two" / "examples.safetensors")
    assert esupcon.load(tmp_path / "two").examples_ is None
    (tmp_path / "one" / "examples.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"examples\.safetensors is damaged"):
        esupcon.load(tmp_path / "one")


def test_labels_that_cannot_be_written_are_named(tmp_path) -> None:
    X, y = blobs(30, centers=2)
    with pytest.raises(ValueError, match="Labels that can be saved are texts, numbers and truth values"):
        quick(epochs=1).fit(X, [("a", int(code)) for code in y]).save(tmp_path / "model")


def test_what_is_no_model_is_refused(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no model at"):
        esupcon.load(tmp_path / "absent")
    X, y = blobs(30)
    folder = quick(epochs=1).fit(X, y).save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["training"]["estimator"]["parameters"]["epochs"] = -1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="cannot be"):
        esupcon.load(folder)
