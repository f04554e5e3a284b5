"""Every public function refuses what it cannot handle, in one line with a remedy."""

import numpy as np
import pytest

from esupcon.probability import (
    Predictions,
    accuracy,
    adapt_to_priors,
    bootstrap_intervals,
    brier_score,
    energy_score,
    estimate_priors,
    expected_calibration_error,
    fit_conformal,
    fit_temperature,
    log_softmax,
    max_softmax_score,
    negative_log_likelihood,
    reliability_bins,
    smoothed_temperature,
    softmax,
)
from esupcon.probability.predictions import as_probabilities

UNIFORM = np.array([0.5, 0.5])
FROM_LOGITS = {
    "fit_temperature": fit_temperature,
    "smoothed_temperature": smoothed_temperature,
    "Predictions": Predictions,
    "softmax": lambda z, y: softmax(z),
    "log_softmax": lambda z, y: log_softmax(z),
    "energy_score": lambda z, y: energy_score(z),
    "max_softmax_score": lambda z, y: max_softmax_score(z),
}
FROM_PROBABILITIES = {
    "accuracy": accuracy,
    "bootstrap_intervals": bootstrap_intervals,
    "brier_score": brier_score,
    "expected_calibration_error": expected_calibration_error,
    "fit_conformal": fit_conformal,
    "negative_log_likelihood": negative_log_likelihood,
    "reliability_bins": reliability_bins,
    "adapt_to_priors": lambda p, y: adapt_to_priors(p, UNIFORM, UNIFORM),
    "estimate_priors": lambda p, y: estimate_priors(p, UNIFORM),
}
ALL = FROM_LOGITS | FROM_PROBABILITIES
LABELLED = {name: f for name, f in ALL.items() if getattr(f, "__name__", "") != "<lambda>"}

ROW = [0.75, 0.25]
GOOD = np.array([ROW] * 8)
LABELS = np.array([0, 0, 0, 1, 0, 0, 1, 0])


def refusal(function, values, labels) -> str:
    with pytest.raises(ValueError) as caught:  # the caller checks the message
        function(values, labels)
    message = str(caught.value)
    assert "\n" not in message
    return message


def bad_tables() -> list:
    return [
        (np.full((8, 2), np.nan), "must not contain NaN; got nan at row 0, column 0"),
        (np.zeros((0, 2)), "got shape (0, 2)"),
        (np.full(8, 0.5), "got shape (8,)"),
        (np.float64(1.0), "got shape ()"),
        (np.ones((8, 1)), "and 2 column(s); got shape (8, 1)"),
        (np.full((8, 2), "0.5"), "got dtype <U3"),
        (np.full((8, 2), 0.5 + 0j), "got dtype complex128"),
        (np.full((8, 2), True), "got dtype bool"),
        ([[0.5, 0.5]] * 7 + [[1.0]], "inhomogeneous"),
    ]


def changed(row: int, values) -> np.ndarray:
    table = GOOD.copy()
    table[row] = values
    return table


@pytest.mark.parametrize("name", FROM_LOGITS)
def test_bad_logits_are_refused(name: str) -> None:
    for values, says in (
        *bad_tables(),
        (changed(2, [0.5, np.inf]), "got inf at row 2, column 1"),
        (changed(2, [0.5, 1e200]), "got 1e+200 at row 2, column 1"),
        (changed(2, [0.5, -1.7e308]), "or -inf for a masked class"),
        (changed(3, -np.inf), "must leave a class unmasked; got -inf at row 3"),
    ):
        assert says in refusal(FROM_LOGITS[name], values, LABELS)


@pytest.mark.parametrize("name", FROM_PROBABILITIES)
def test_bad_probabilities_are_refused(name: str) -> None:
    for values, says in (
        *bad_tables(),
        (changed(5, [0.7, 0.2]), "must sum to 1 within 0.001 in every row; got 0.9 at row 5"),
        (changed(5, [2.0, 1.0]), "softmax(logits)"),
        (changed(5, [-0.1, 1.1]), "must not be negative; got -0.1 at row 5, column 0"),
        (changed(5, [np.inf, 0.0]), "got inf at row 5"),
    ):
        assert says in refusal(FROM_PROBABILITIES[name], values, LABELS)


@pytest.mark.parametrize("name", LABELLED)
def test_labels_that_are_not_column_indices_are_refused(name: str) -> None:
    for labels, says in (
        (np.array([0, 1, 2, 0, 0, 0, 0, 0]), "must lie in 0..1; got 2 at row 2"),
        (np.array([0, -1, 0, 0, 0, 0, 0, 0]), "got -1 at row 1"),
        (np.zeros(7, dtype=int), "shape (8,); got int64 of shape (7,)"),
        (np.zeros((8, 2), dtype=int), "one-hot vectors"),
        (np.zeros(8), "must be one integer per row, shape (8,); got float64"),
        (np.array(["cat"] * 8), "got <U3"),
        ([], "of shape (0,)"),
    ):
        assert says in refusal(LABELLED[name], GOOD, labels)


@pytest.mark.parametrize("name", ALL)
def test_good_input_one_sample_and_one_class_have_a_defined_answer(name: str) -> None:
    ALL[name](GOOD, LABELS)
    for values, labels in (([ROW], [0]), (GOOD, np.zeros(8, int))):
        if name == "smoothed_temperature":
            assert "of 1 class(es). Pass more" in refusal(ALL[name], values, labels)
        else:
            ALL[name](values, labels)


def test_rounding_of_single_precision_is_accepted_and_values_stay() -> None:
    near = np.array([[0.5004, 0.5004], [0.25, 0.75]], dtype=np.float32)
    assert np.array_equal(as_probabilities(near), near.astype(np.float64))
    with pytest.raises(ValueError, match=r"within 0\.001"):
        as_probabilities(near + np.float32(0.0004))


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("function", [softmax, log_softmax, energy_score, max_softmax_score])
def test_temperatures_that_are_not_positive_are_refused(function, temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        function(GOOD, temperature)
