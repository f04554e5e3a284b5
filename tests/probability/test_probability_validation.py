"""Every public function refuses what it cannot answer, in one line that says what to do."""

import numpy as np
import pytest

from esupcon.probability import (
    accuracy,
    adapt_to_priors,
    adaptive_calibration_error,
    bootstrap_interval,
    bootstrap_intervals,
    brier_score,
    classwise_calibration_error,
    combine_posteriors,
    confusion_matrix,
    energy_score,
    estimate_priors,
    expected_calibration_error,
    fit_combination,
    fit_conformal,
    fit_temperature,
    fit_vector_scaling,
    fit_weights,
    log_softmax,
    max_logit_score,
    max_softmax_score,
    maximum_calibration_error,
    negative_log_likelihood,
    paper_calibration,
    per_class_accuracy,
    prior_shift_test,
    reliability_bins,
    softmax,
)
from esupcon.probability.validation import as_probabilities

UNIFORM = np.array([0.5, 0.5])

FROM_LOGITS = {
    "fit_temperature": fit_temperature,
    "fit_vector_scaling": fit_vector_scaling,
    "paper_calibration": paper_calibration,
    "softmax": lambda z, y: softmax(z),
    "log_softmax": lambda z, y: log_softmax(z),
    "energy_score": lambda z, y: energy_score(z),
    "max_logit_score": lambda z, y: max_logit_score(z),
    "max_softmax_score": lambda z, y: max_softmax_score(z),
}
FROM_PROBABILITIES = {
    "accuracy": accuracy,
    "adaptive_calibration_error": adaptive_calibration_error,
    "bootstrap_intervals": bootstrap_intervals,
    "brier_score": brier_score,
    "classwise_calibration_error": classwise_calibration_error,
    "confusion_matrix": confusion_matrix,
    "expected_calibration_error": expected_calibration_error,
    "fit_combination": lambda p, y: fit_combination([p, p], y),
    "fit_conformal": fit_conformal,
    "fit_weights": lambda p, y: fit_weights([p, p], y),
    "maximum_calibration_error": maximum_calibration_error,
    "negative_log_likelihood": negative_log_likelihood,
    "per_class_accuracy": per_class_accuracy,
    "reliability_bins": reliability_bins,
    "adapt_to_priors": lambda p, y: adapt_to_priors(p, UNIFORM, UNIFORM),
    "estimate_priors": lambda p, y: estimate_priors(p, UNIFORM),
    "prior_shift_test": lambda p, y: prior_shift_test(p, UNIFORM),
    "combine_posteriors": lambda p, y: combine_posteriors([p, p]),
}
TAKE_NO_LABELS = {
    "softmax",
    "log_softmax",
    "energy_score",
    "max_logit_score",
    "max_softmax_score",
    "adapt_to_priors",
    "estimate_priors",
    "prior_shift_test",
    "combine_posteriors",
}
LABELLED = {name: f for name, f in (FROM_LOGITS | FROM_PROBABILITIES).items() if name not in TAKE_NO_LABELS}

ROW = [0.75, 0.25]
GOOD = np.array([ROW] * 8)
LABELS = np.array([0, 0, 0, 1, 0, 0, 1, 0])


def refusal(function, values, labels) -> str:
    with pytest.raises(ValueError) as caught:  # the caller looks at the message
        function(values, labels)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", FROM_LOGITS | FROM_PROBABILITIES)
def test_the_good_input_is_good(name: str) -> None:
    (FROM_LOGITS | FROM_PROBABILITIES)[name](GOOD, LABELS)


@pytest.mark.parametrize("name", FROM_LOGITS | FROM_PROBABILITIES)
@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.full((8, 2), np.nan), "must not contain NaN; found 16, the first at (0, 0)"),
        (np.zeros((0, 2)), "got shape (0, 2)"),
        (np.zeros((8, 0)), "got shape (8, 0)"),
        (np.full(8, 0.5), "got shape (8,)"),
        (np.ones((8, 1)), "at least two classes; got shape (8, 1)"),
        (np.full((8, 2), "0.5"), "got dtype <U3"),
        (np.full((8, 2), 0.5 + 0j), "got dtype complex128"),
        ([[0.5, 0.5]] * 7 + [[1.0]], "rows of unequal length"),
        (np.full((8, 2), True), "got dtype bool"),
    ],
    ids=["nan", "no samples", "no classes", "flat", "one column", "text", "complex", "ragged", "bool"],
)
def test_tables_that_are_none(name: str, values, says: str) -> None:
    assert says in refusal((FROM_LOGITS | FROM_PROBABILITIES)[name], values, LABELS)


@pytest.mark.parametrize("name", FROM_LOGITS)
@pytest.mark.parametrize(
    ("value", "says"),
    [(np.inf, "got inf at (2, 1)"), (1e200, "got 1e+200 at (2, 1)"), (-1.7e308, "to mask a class, use -inf")],
)
def test_logits_out_of_range(name: str, value: float, says: str) -> None:
    values = GOOD.copy()
    values[2, 1] = value
    assert says in refusal(FROM_LOGITS[name], values, LABELS)


@pytest.mark.parametrize("name", FROM_LOGITS)
def test_a_row_with_every_class_masked(name: str) -> None:
    values = GOOD.copy()
    values[3] = -np.inf
    assert "row 3 is -inf throughout" in refusal(FROM_LOGITS[name], values, LABELS)


@pytest.mark.parametrize("name", FROM_PROBABILITIES)
@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([0.7, 0.2], "must sum to 1 within 0.001 in every row; row 5 sums to 0.9"),
        ([0.0, 0.0], "row 5 sums to 0"),
        ([2.0, 1.0], "softmax(logits)"),
        ([-0.1, 1.1], "must not be negative; got -0.1 at (5, 0)"),
        ([np.inf, 0.0], "row 5 sums to inf"),
    ],
)
def test_rows_that_are_no_probabilities(name: str, row: list[float], says: str) -> None:
    values = GOOD.copy()
    values[5] = row
    assert says in refusal(FROM_PROBABILITIES[name], values, LABELS)


def test_rounding_of_single_precision_is_accepted_and_left_alone() -> None:
    near = np.array([[0.5004, 0.5004], [0.25, 0.75]], dtype=np.float32)
    assert np.array_equal(as_probabilities(near), near.astype(np.float64))
    with pytest.raises(ValueError, match=r"within 0\.001"):
        as_probabilities(near + np.float32(0.0004))


def test_nothing_guesses_what_it_was_given() -> None:
    """Rows that sum to one are logits to a function of logits; the same numbers are probabilities to the others."""
    assert softmax(GOOD)[0, 0] == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert negative_log_likelihood(GOOD, np.zeros(8, dtype=int)) == pytest.approx(-np.log(0.75))


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.array([0, 1, 2, 0, 0, 0, 0, 0]), "must lie in 0..1 for 2 classes; got 2 at row 2"),
        (np.array([0, -1, 0, 0, 0, 0, 0, 0]), "got -1 at row 1"),
        (np.zeros(7, dtype=int), "shape (8,); got shape (7,)"),
        (np.zeros((8, 1), dtype=int), "got shape (8, 1)"),
        (np.zeros((8, 2), dtype=int), "not one-hot vectors"),
        (np.zeros(8), "must be integers, the column index of each row's class; got dtype float64"),
        (np.array(["cat"] * 8), "got dtype <U3"),
        ([], "got shape (0,)"),
    ],
    ids=["too large", "negative", "too few", "column", "one-hot", "float", "names", "none"],
)
def test_labels_that_are_none(name: str, labels, says: str) -> None:
    assert says in refusal(LABELLED[name], GOOD, labels)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64, np.int64])
def test_labels_of_any_integer_type(dtype: type) -> None:
    assert accuracy(GOOD, LABELS.astype(dtype)) == 0.75


@pytest.mark.parametrize("n_bins", [0, -3, 2.5, True, "15", None])
@pytest.mark.parametrize(
    "function",
    [
        reliability_bins,
        expected_calibration_error,
        adaptive_calibration_error,
        classwise_calibration_error,
        maximum_calibration_error,
        lambda p, y, n_bins: bootstrap_interval("accuracy", p, y, n_bins=n_bins),
    ],
)
def test_bins_are_counted_in_whole_numbers(function, n_bins) -> None:
    with pytest.raises(ValueError, match="n_bins must be a whole number of at least 1"):
        function(GOOD, LABELS, n_bins)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("function", [softmax, log_softmax, energy_score, max_softmax_score])
def test_temperatures_are_positive(function, temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        function(GOOD, temperature)


@pytest.mark.parametrize("name", FROM_PROBABILITIES)
def test_one_sample_has_a_defined_answer(name: str) -> None:
    FROM_PROBABILITIES[name](np.array([ROW]), np.array([0]))


@pytest.mark.parametrize("name", FROM_LOGITS)
def test_one_row_of_logits_has_a_defined_answer(name: str) -> None:
    if name == "paper_calibration":
        assert "of 1 is 0" in refusal(paper_calibration, [ROW], [0])
    else:
        FROM_LOGITS[name](np.array([ROW]), np.array([0]))


@pytest.mark.parametrize("name", LABELLED)
def test_one_class_among_the_labels_has_a_defined_answer(name: str) -> None:
    LABELLED[name](GOOD, np.zeros(8, dtype=int))


def test_one_sample_by_hand() -> None:
    p, right, wrong = [ROW], [0], [1]
    assert (accuracy(p, right), accuracy(p, wrong)) == (1.0, 0.0)
    assert expected_calibration_error(p, right) == 0.25
    assert expected_calibration_error(p, wrong) == 0.75
    assert maximum_calibration_error(p, wrong) == 0.75
    assert adaptive_calibration_error(p, wrong) == 0.75
    assert classwise_calibration_error(p, wrong) == 0.75
    assert brier_score(p, wrong) == pytest.approx(2 * 0.75**2)
    assert bootstrap_interval("accuracy", p, right).low == 1.0


@pytest.mark.parametrize("call", [lambda: softmax(np.float64(1.0)), lambda: accuracy(GOOD[0], [0])])
def test_scalars_and_vectors_are_not_tables(call) -> None:
    with pytest.raises(ValueError, match="must be a table"):
        call()
