"""Every public function refuses what it cannot handle, in one line with a remedy."""

import numpy as np
import pytest

from esupcon.probability import (
    Predictions,
    accuracy,
    adapt_to_priors,
    bootstrap_intervals,
    brier_score,
    combine_posteriors,
    confusion_matrix,
    energy_score,
    estimate_priors,
    expected_calibration_error,
    fit_conformal,
    fit_temperature,
    log_softmax,
    max_logit_score,
    max_softmax_score,
    negative_log_likelihood,
    prior_shift_test,
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
    "max_logit_score": lambda z, y: max_logit_score(z),
    "max_softmax_score": lambda z, y: max_softmax_score(z),
}
FROM_PROBABILITIES = {
    "accuracy": accuracy,
    "bootstrap_intervals": bootstrap_intervals,
    "brier_score": brier_score,
    "confusion_matrix": confusion_matrix,
    "expected_calibration_error": expected_calibration_error,
    "fit_conformal": fit_conformal,
    "negative_log_likelihood": negative_log_likelihood,
    "reliability_bins": reliability_bins,
    "adapt_to_priors": lambda p, y: adapt_to_priors(p, UNIFORM, UNIFORM),
    "estimate_priors": lambda p, y: estimate_priors(p, UNIFORM),
    "prior_shift_test": lambda p, y: prior_shift_test(p, UNIFORM),
    "combine_posteriors": lambda p, y: combine_posteriors([p, p]),
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


@pytest.mark.parametrize("name", ALL)
def test_good_input_is_accepted(name: str) -> None:
    ALL[name](GOOD, LABELS)


@pytest.mark.parametrize("name", ALL)
def test_tables_that_are_not_tables_of_numbers_are_refused(name: str) -> None:
    for values, says in (
        (np.full((8, 2), np.nan), "must not contain NaN; found 16, the first at (0, 0)"),
        (np.zeros((0, 2)), "got shape (0, 2)"),
        (np.zeros((8, 0)), "got shape (8, 0)"),
        (np.full(8, 0.5), "got shape (8,)"),
        (np.float64(1.0), "got shape ()"),
        (np.ones((8, 1)), "at least two classes; got shape (8, 1)"),
        (np.full((8, 2), "0.5"), "got dtype <U3"),
        (np.full((8, 2), 0.5 + 0j), "got dtype complex128"),
        ([[0.5, 0.5]] * 7 + [[1.0]], "rows of unequal length"),
        (np.full((8, 2), True), "got dtype bool"),
    ):
        assert says in refusal(ALL[name], values, LABELS)


@pytest.mark.parametrize("name", FROM_LOGITS)
def test_logits_out_of_range_are_refused(name: str) -> None:
    for value, says in ((np.inf, "got inf at (2, 1)"), (1e200, "got 1e+200 at (2, 1)"), (-1.7e308, "use -inf")):
        values = GOOD.copy()
        values[2, 1] = value
        assert says in refusal(FROM_LOGITS[name], values, LABELS)
    values = GOOD.copy()
    values[3] = -np.inf
    assert "row 3 is -inf throughout" in refusal(FROM_LOGITS[name], values, LABELS)


@pytest.mark.parametrize("name", FROM_PROBABILITIES)
def test_rows_that_are_not_probabilities_are_refused(name: str) -> None:
    for row, says in (
        ([0.7, 0.2], "must sum to 1 within 0.001 in every row; row 5 sums to 0.9"),
        ([2.0, 1.0], "softmax(logits)"),
        ([-0.1, 1.1], "must not be negative; got -0.1 at (5, 0)"),
        ([np.inf, 0.0], "row 5 sums to inf"),
    ):
        values = GOOD.copy()
        values[5] = row
        assert says in refusal(FROM_PROBABILITIES[name], values, LABELS)


@pytest.mark.parametrize("name", LABELLED)
def test_labels_that_are_not_column_indices_are_refused(name: str) -> None:
    for labels, says in (
        (np.array([0, 1, 2, 0, 0, 0, 0, 0]), "must lie in 0..1 for 2 classes; got 2 at row 2"),
        (np.array([0, -1, 0, 0, 0, 0, 0, 0]), "got -1 at row 1"),
        (np.zeros(7, dtype=int), "shape (8,); got shape (7,)"),
        (np.zeros((8, 2), dtype=int), "not one-hot vectors"),
        (np.zeros(8), "must be integers, the column index of each row's class; got dtype float64"),
        (np.array(["cat"] * 8), "got dtype <U3"),
        ([], "got shape (0,)"),
    ):
        assert says in refusal(LABELLED[name], GOOD, labels)


@pytest.mark.parametrize("name", ALL)
def test_one_sample_and_one_class_have_a_defined_answer(name: str) -> None:
    if name == "smoothed_temperature":
        assert "got 1 sample(s) of 1 class(es). Pass more" in refusal(ALL[name], [ROW], [0])
        assert "got 8 sample(s) of 1 class(es). Pass more" in refusal(ALL[name], GOOD, np.zeros(8, int))
    else:
        ALL[name](np.array([ROW]), np.array([0]))
        ALL[name](GOOD, np.zeros(8, dtype=int))


def test_rounding_of_single_precision_is_accepted_and_values_stay() -> None:
    near = np.array([[0.5004, 0.5004], [0.25, 0.75]], dtype=np.float32)
    assert np.array_equal(as_probabilities(near), near.astype(np.float64))
    with pytest.raises(ValueError, match=r"within 0\.001"):
        as_probabilities(near + np.float32(0.0004))


def test_functions_do_not_guess_whether_values_are_logits() -> None:
    """Rows that sum to one are logits to a function of logits, and probabilities to the others."""
    assert softmax(GOOD)[0, 0] == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert negative_log_likelihood(GOOD, np.zeros(8, dtype=int)) == pytest.approx(-np.log(0.75))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64, np.int64])
def test_labels_of_any_integer_type_are_accepted(dtype: type) -> None:
    assert accuracy(GOOD, LABELS.astype(dtype)) == 0.75


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("function", [softmax, log_softmax, energy_score, max_softmax_score])
def test_temperatures_that_are_not_positive_are_refused(function, temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        function(GOOD, temperature)
