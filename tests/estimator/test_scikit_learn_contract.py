"""scikit-learn's own checks, and the parts of its ecosystem that take an estimator."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from estimator_data import blobs, quick
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from esupcon import ContrastiveClassifier


@parametrize_with_checks([ContrastiveClassifier(epochs=12, batch_size=512, lr=0.05, encoder="mlp-64x1")])
def test_scikit_learn_check(estimator, check) -> None:
    check(estimator)


def test_pipeline_grid_search_and_cross_validation() -> None:
    X, y = blobs()
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), quick()),
        {"contrastiveclassifier__temperature": [0.1, 0.3], "contrastiveclassifier__calibrate": [False]},
        cv=2,
    )
    assert search.fit(X, y).best_score_ > 0.9
    assert cross_val_score(quick(), X, y, cv=2).mean() > 0.9


def test_calibrated_classifier_and_text_labels() -> None:
    X, y = blobs()
    names = np.array(["ash", "birch", "cedar"])[y]
    calibrated = CalibratedClassifierCV(quick(), cv=2).fit(X, names)
    assert (calibrated.predict(X) == names).mean() > 0.9


def test_copies_predict_the_same_and_clones_are_unfitted() -> None:
    X, y = blobs()
    fitted = quick(calibrate=True).fit(X, y)
    expected = fitted.predict_proba(X)
    for twin in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(twin.predict_proba(X), expected)
        assert twin.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X)


def test_parameters_go_round() -> None:
    given = quick(method="spce", class_weight="balanced", image_size=(8, 9), calibrate=True)
    assert ContrastiveClassifier(**given.get_params()).get_params() == given.get_params()
    assert given.get_params()["calibrate"] is True
    assert given.set_params(calibrate=False).get_params()["calibrate"] is False


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


def test_importing_the_package_imports_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys, esupcon; assert not {'torch', 'sklearn'} & set(sys.modules), 'heavy'; "
        "assert 'ContrastiveClassifier' in dir(esupcon) and esupcon.__version__; esupcon.ContrastiveClassifier; "
        "assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_of_the_package_are_attribute_errors() -> None:
    import esupcon

    with pytest.raises(AttributeError, match="no attribute 'Classifer'"):
        esupcon.Classifer  # noqa: B018
