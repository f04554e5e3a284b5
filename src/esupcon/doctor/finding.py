"""Findings: what can be wrong with data or a run, in which words, and what to do about it."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

Severity = Literal["note", "warning", "error"]
#: From the least to the most severe.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class Finding(BaseModel):
    """`note`: good to know. `warning`: the result is likely worse than it could be. `error`: no usable result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: Severity
    message: str
    remedy: str
    #: Rows of the test part, and of the rows trained on, that look alike: for a report to show them side by side.
    pairs: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        # Class names come from folders and tables and may contain line breaks.
        return " ".join(f"{self.severity} [{self.code}]: {self.message} {self.remedy}".split())


def finding(code: str, severity: Severity | None = None, **values: Any) -> Finding:
    """Return the finding of a code, its texts filled in; `severity` replaces the usual one."""
    usual, message, remedy = _MESSAGES[code]
    return Finding(
        code=code, severity=severity or usual, message=message.format(**values), remedy=remedy.format(**values)
    )


def class_name(classes: Sequence[Any] | None, k: int) -> str:
    """Return the quoted name of class k, or its number if the classes have no names."""
    return f"class {k}" if classes is None else repr(str(classes[k]))


_MESSAGES: dict[str, tuple[Severity, str, str]] = {
    # before training, from the data
    "leak": (
        "warning",
        "{copies} are copies of training {things} ({examples}): on them, accuracy measures memorisation.",
        "Remove the copies from one of the parts.{chance}",
    ),
    "near-copies": (
        "note",
        "{n:,} of {n_test:,} test images ({share}) look almost like a training image ({examples}): on them, accuracy "
        "measures memorisation.",
        "Look at the pairs. Keep copies, crops and shots of one scene in one of the parts.",
    ),
    "contradicting-labels": (
        "warning",
        "{n:,} training {things}, in {n_groups:,} group(s) of identical ones, have different labels ({examples}): "
        "every prediction is wrong for some of them.",
        "Choose one label for each group of copies, and keep one copy.{chance}",
    ),
    "imbalance": (
        "note",
        "the largest class, {largest}, has {n_largest:,} training samples, the smallest, {smallest}, {n_smallest:,}: "
        "{ratio:.0f} to 1.",
        "Judge by the accuracy of each class. If classes will be balanced in use, train with logit_adjustment=1, or "
        "predict for priors='balanced'.",
    ),
    # during training
    "loss-not-finite": (
        "error",
        "{what}, at learning rate {state.lr:.3g}.",
        "Go back to the last good checkpoint, lower the learning rate to {lower:.2g} or lengthen the warm-up, look for "
        "NaN in the data, and train in full precision (precision 32).",
    ),
    "lr-too-high": (
        "warning",
        "{what} within {state.steps:,} steps, at learning rate {state.lr:.3g}: the steps are too large.",
        "Lower the learning rate to {lower:.2g}, or lengthen the warm-up.",
    ),
    "collapse": (
        "warning",
        "the embedding has collapsed: after {state.steps:,} steps the mean cosine between samples is {cosine:.4f} "
        "(1: all alike), and the loss is {state.now:.4g}, where a collapsed embedding has {watch.collapsed:.4g}.",
        "{advice}; check that labels belong to their images and that augmented images can still be recognised.",
    ),
    "stuck": (
        "warning",
        "no progress in the last {state.idle:,} of {state.steps:,} steps ({watch.n_steps:,} planned): the loss stays "
        "at {state.now:.4g}, where a collapsed embedding has {watch.collapsed:.4g} and a perfect one {watch.best:.4g}"
        "{accuracy}.",
        "Try a learning rate of {higher:.2g} instead of {state.lr:.3g}, then of {lower:.2g}; check a few labels.",
    ),
    "temperature-too-low": (
        "warning",
        "temperature {watch.temperature:g} saturates the softmax: a difference of {difference:.2g} between cosines "
        "already weighs 999 to 1.",
        "Raise the temperature to about {suggested:.2g}.",
    ),
    "temperature-too-high": (
        "warning",
        "temperature {watch.temperature:g} flattens the softmax: the loss can only fall from {watch.collapsed:.4g} to "
        "{watch.best:.4g}, {reach} of what it could at temperature 0.",
        "Lower the temperature to about {suggested:.2g}.",
    ),
    "one-prediction": (
        "warning",
        "all {n:,} {samples} are predicted as {name}, also the {n_other:,} of other classes.",
        "Train longer, try another learning rate or class_weight=balanced, and check the labels of a few images.",
    ),
    "wrong-labels": (
        "warning",
        "about {share} of the labels seem wrong (epoch {epoch}): from now on training relies less on them, and more on "
        "what the network and the neighbours of a sample say.",
        "Look at the suspicious labels when training ends. If the labels are right, pass label_noise=0.",
    ),
    # after training, from the probabilities
    "suspect-labels": (
        "warning",
        "about {share} of the labels look wrong: of the {n_surest:,} most confident predictions among {n:,}, "
        "{n_wrong:,} contradict the label, and {n_suspects:,} samples in all have a label that is very unlikely while "
        "another is very likely{examples}.",
        "Correct or drop the wrong ones. Until then train for fewer epochs: networks learn wrong labels last.",
    ),
}

#: What can be found. The troubleshooting page has a section for each.
CODES: tuple[str, ...] = tuple(_MESSAGES)
