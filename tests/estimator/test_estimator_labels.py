"""Labels of every type, and what is no label."""

from __future__ import annotations

import enum
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from estimator_data import blobs, quick
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from esupcon.estimator.labels import class_array, codes_of, distinct


class Tree(enum.Enum):
    ASH = "ash"
    BIRCH = "birch"
    CEDAR = "cedar"


KINDS = {
    "text": ["ash", "birch", "cedar"],
    "numbers": [7, -3, 100],
    "whole floats": [1.0, 2.0, 5.0],
    "tuples": [("a", 1), ("a", 2), ("b", 0)],
    "enumeration": list(Tree),
    "fractions": [Fraction(1, 2), Fraction(1, 3), Fraction(3)],
    "mixed": ["ash", 3, ("x",)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_labels_as_given(kind: str) -> None:
    X, codes = blobs(45)
    y = np.empty(45, dtype=object)
    y[:] = [KINDS[kind][code] for code in codes]
    given_labels = np.array(y.tolist()) if kind in ("text", "numbers", "whole floats") else y
    classifier = quick(epochs=40).fit(X, given_labels)
    assert set(classifier.classes_.tolist()) == set(KINDS[kind])
    predicted = classifier.predict(X)
    assert [a == b for a, b in zip(predicted.tolist(), y.tolist(), strict=True)].count(True) > 40
    assert classifier.score(X, given_labels) > 0.9
    columns = [classifier.classes_.tolist().index(label) for label in predicted.tolist()]
    np.testing.assert_array_equal(classifier.predict_proba(X).argmax(axis=1), columns)


def test_truth_values_and_lists_of_tuples() -> None:
    X, codes = blobs(45, centers=2)
    classifier = quick().fit(X, codes.astype(bool))
    assert classifier.classes_.dtype == bool and classifier.predict(X).dtype == bool
    pairs = [("a", int(code)) for code in codes]
    assert quick().fit(X, pairs).classes_.tolist() == [("a", 0), ("a", 1)]


def test_frames_and_series_of_pandas() -> None:
    X, codes = blobs(45)
    y = pd.Series(["low", "mid", "high"]).take(codes)
    classifier = quick().fit(pd.DataFrame(X), y.astype("category"))
    assert classifier.classes_.tolist() == ["high", "low", "mid"]


@given(st.lists(st.one_of(st.integers(), st.text(), st.booleans(), st.tuples(st.integers())), min_size=1))
def test_codes_lead_back_to_the_labels(values: list[object]) -> None:
    labels = np.empty(len(values), dtype=object)
    labels[:] = values
    classes = distinct(labels)
    assert [classes.tolist()[code] for code in codes_of(labels, classes)] == values
    assert len(set(classes.tolist())) == len(classes)


def test_classes_are_sorted_where_they_can_be() -> None:
    assert class_array([3, 1, 2, 1]).tolist() == [1, 2, 3]
    assert class_array(["b", 1, "a"]).tolist() == ["b", 1, "a"]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(30), "only one class"),
        (np.r_[np.zeros(29), np.nan], "Input y contains NaN"),
        (np.array(["a"] * 29 + [None], dtype=object), "None"),
        (np.linspace(0, 1, 30), "Unknown label type"),
        (np.zeros(29), "inconsistent numbers of samples"),
        (np.zeros((30, 2)), "1d array"),
        (None, "requires y to be passed"),
    ],
)
def test_what_is_no_label_is_refused_in_the_words_of_scikit_learn(y, message: str) -> None:
    X, _ = blobs(30)
    with pytest.raises(ValueError, match=message):
        quick().fit(X, y)


def test_a_column_of_labels_warns() -> None:
    X, y = blobs(30)
    with pytest.warns(DataConversionWarning):
        quick(epochs=1).fit(X, y[:, None])
