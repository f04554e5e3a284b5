"""The temperature: which samples it comes from, and that a few right answers do not become certainty."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_data import blobs, quick
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_classification

from esupcon.estimator.calibration import draw_held_out, folds
from esupcon.probability import negative_log_likelihood


def test_the_way_depends_on_how_much_there_is() -> None:
    X, y = blobs(400)
    assert quick(calibrate=True, epochs=2, validation_fraction=0.3).fit(X, y).calibration_ == "held-out"
    assert quick(calibrate=True, epochs=2).fit(X, y).calibration_ == "cross-fitted"
    assert quick(calibrate=True, epochs=2).fit(X[:100], y[:100]).calibration_ == "cross-fitted"
    for tiny in (quick(calibrate=True, epochs=2).fit(X[:12], y[:12]), quick(epochs=2).fit(X, y)):
        assert tiny.calibration_ == "none" and tiny.calibration_temperature_ == 1.0


@pytest.mark.parametrize("n", [150, 600])
def test_calibration_brings_probabilities_nearer_the_truth(n: int) -> None:
    X, y = make_classification(n + 2000, 8, n_informative=4, flip_y=0.3, class_sep=0.7, random_state=0)
    sure, calibrated = (quick(calibrate=calibrate, epochs=40).fit(X[:n], y[:n]) for calibrate in (False, True))
    losses = [negative_log_likelihood(c.predict_proba(X[n:]), y[n:]) for c in (sure, calibrated)]
    assert losses[1] < losses[0]


def test_calibrating_on_given_samples() -> None:
    X, y = make_classification(900, 8, n_informative=4, flip_y=0.3, random_state=0)
    classifier = quick(epochs=30).fit(X[:300], y[:300])
    before = negative_log_likelihood(classifier.predict_proba(X[300:]), y[300:])
    assert classifier.calibrate(X[300:], y[300:]) is classifier
    assert classifier.calibration_ == "given"
    assert negative_log_likelihood(classifier.predict_proba(X[300:]), y[300:]) < before
    with pytest.raises(ValueError, match="not one of the 2 classes"):
        classifier.calibrate(X[:2], [0, 5])


def test_calibrate_is_a_parameter_too() -> None:
    classifier = quick(calibrate=True)
    assert classifier.calibrate and classifier.calibrate == True and repr(classifier.calibrate) == "True"  # noqa: E712
    assert not quick().calibrate


@given(st.lists(st.integers(0, 4), min_size=2, max_size=80), st.floats(0.01, 0.99), st.integers(0, 2**32 - 1))
def test_held_out_parts_leave_every_class_in_training(labels: list[int], fraction: float, seed: int) -> None:
    codes = np.array(labels)
    held = draw_held_out(codes, fraction, np.random.default_rng(seed))
    assert set(codes[~held]) == set(codes)
    for k in set(labels):
        n = int((codes == k).sum())
        assert abs(held[codes == k].sum() - fraction * n) <= 1 + 1e-9
    fold = folds(codes, 3, np.random.default_rng(seed))
    for k in set(labels):
        sizes = np.bincount(fold[(codes == k) & (fold >= 0)], minlength=3)
        assert (fold[codes == k] == -1).all() if (codes == k).sum() == 1 else sizes.max() - sizes.min() <= 1
