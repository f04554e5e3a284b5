"""After training: labels that look wrong.

A classifier errs where samples are hard, and is unsure there. Wrong labels lie anywhere, also among the samples it
is surest about; so what those disagree with their labels measures label noise, whatever the calibration, as long as
the classifier is good enough to have samples it is rightly sure about. Single suspects are found as confident
learning does: their given label is far less likely than is usual for samples of that label, and another class is as
likely as is usual for samples of that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esupcon.doctor.finding import Finding, class_name, percent
from esupcon.probability.validation import BoolArray, FloatArray, IntArray, as_probabilities_and_labels

# The surest fifth of every predicted class: many enough to count, and sure in each class.
SUREST = 0.2
# In clean sets up to 3 % of the surest disagree; the estimate must lie above this by two standard errors.
CLEAN, STANDARD_ERRORS = 0.04, 2.0
# Errors are measured by those of guesses, 1 - 1/K. A classifier that makes half as many may simply be poor.
GOOD_ERROR = 0.5
# Among hard but clean samples the surest err far less than all (measured: 0.37 times at most); noise spares none.
SHARE_OF_ERRORS = 0.4
# With many wrong labels even a good classifier disagrees often. Up to here noise is told from a poor classifier by
# its evenness: the surest fifth disagree as often as the surest half. (Poor classifiers: 0.88 times at most.)
POOR_ERROR, EVEN = 0.7, 0.9
# A suspect's label has less than half of the probability that is usual for its class.
UNLIKELY = 0.5


@dataclass(frozen=True, eq=False)
class _Answers:
    p: FloatArray
    y: IntArray

    @property
    def predicted(self) -> IntArray:
        predicted: IntArray = self.p.argmax(1)
        return predicted

    def of(self, labels: IntArray) -> FloatArray:
        return self.p[np.arange(len(self.p)), labels]


def check_after(
    probabilities: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None, n_show: int = 5
) -> list[Finding]:
    """Whether a good part of the labels looks wrong, and which most.

    Give probabilities for samples that the classifier was not trained on (held out, or out of fold): a network that
    has learnt wrong labels by heart no longer finds them unlikely. `classes` are the names of the columns.
    """
    answers = _Answers(*as_probabilities_and_labels(probabilities, labels))
    n, n_classes = answers.p.shape
    if classes is not None and len(classes) != n_classes:
        raise ValueError(f"classes must name each of the {n_classes} columns; got {len(classes)} names.")
    if n_show < 0:
        raise ValueError(f"n_show must be 0 or more; got {n_show}.")
    wrong = answers.predicted != answers.y
    surest = _surest(answers, SUREST)
    n_wrong, n_surest = int(wrong[surest].sum()), int(surest.sum())
    if not _is_noise(wrong, surest, _surest(answers, 0.5), n_classes):
        return []
    suspects = _suspects(answers)
    shown = "; ".join(_described(answers, int(i), classes) for i in suspects[:n_show])
    return [
        Finding(
            "suspect-labels",
            "warning",
            f"about {percent(n_wrong / n_surest)} of the labels look wrong: of the {n_surest:,} of {n:,} samples that "
            f"the classifier is surest about, {n_wrong:,} carry another label, and {len(suspects):,} samples in all "
            f"have a label that is very unlikely while another is very likely"
            + (f" (most of all {shown})." if shown else "."),
            "Look at these samples and correct or drop the wrong ones; until then train for fewer epochs, for networks "
            "learn wrong labels last.",
        )
    ]


def _is_noise(wrong: BoolArray, surest: BoolArray, surer_half: BoolArray, n_classes: int) -> bool:
    share, error = float(wrong[surest].mean()), float(wrong.mean())
    if share - STANDARD_ERRORS * np.sqrt(share * (1 - share) / surest.sum()) < CLEAN:
        return False
    guesses = 1 - 1 / n_classes
    if error <= GOOD_ERROR * guesses:
        return share >= SHARE_OF_ERRORS * error
    return error <= POOR_ERROR * guesses and share >= EVEN * float(wrong[surer_half].mean())


def _surest(answers: _Answers, part: float) -> BoolArray:
    """This part of the samples of every predicted class, those with the highest probability; one at least."""
    predicted = answers.predicted
    order = np.lexsort((-answers.of(predicted), predicted))
    sizes = np.bincount(predicted, minlength=answers.p.shape[1])
    rank = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[predicted[order]]
    chosen = np.zeros(len(order), bool)
    chosen[order] = rank < np.maximum(1, part * sizes)[predicted[order]]
    return chosen


def _suspects(answers: _Answers) -> IntArray:
    """Rows that look mislabelled, the clearest first."""
    predicted, sizes = answers.predicted, np.bincount(answers.y, minlength=answers.p.shape[1])
    own, top = answers.of(answers.y), answers.of(predicted)
    totals = np.bincount(answers.y, weights=own, minlength=len(sizes))
    usual = np.divide(totals, sizes, out=np.full(len(sizes), np.inf), where=sizes > 0)
    suspect = (predicted != answers.y) & (top >= usual[predicted]) & (own < UNLIKELY * usual[answers.y])
    rows = np.flatnonzero(suspect)
    return rows[np.argsort(own[rows] - top[rows], kind="stable")]


def _described(answers: _Answers, i: int, classes: Sequence[Any] | None) -> str:
    given, other = int(answers.y[i]), int(answers.predicted[i])
    return (
        f"sample {i}: given {class_name(classes, given)} (probability {answers.p[i, given]:.2g}), looks like "
        f"{class_name(classes, other)} ({answers.p[i, other]:.2g})"
    )
