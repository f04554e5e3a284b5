"""During training: collapse, divergence, standstill and saturation, each named once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import Any, Literal

import numpy as np

from esupcon.doctor import run_findings as say
from esupcon.doctor.embedding import SPECTRUM_ROWS, as_sample, confidence, effective_rank, mean_cosine, unit_rows
from esupcon.doctor.finding import SEVERITIES, Finding
from esupcon.doctor.loss_curve import LossCurve
from esupcon.doctor.yardstick import LOSSES, Setting, temperature_for, yardstick
from esupcon.probability.validation import FloatArray, IntArray, as_count
from esupcon.validation import check_choice, check_temperature, check_weight

# The start of a healthy run looks like collapse: a fresh ResNet has cosines near 1 and a loss of log(n-1). It leaves
# within the warm-up or soon after. This share of the run is waited for, but 30 steps at least, and 1,000 at most.
PATIENCE, FEWEST_STEPS, MOST_STEPS = 0.1, 30, 1000
# Collapsed embeddings have mean cosines above 0.99; one below 0.9 keeps samples apart, whatever the loss says.
CROWDED, SPREAD = 0.99, 0.9
# A run that has won a tenth of the span has left the plateau.
LEFT_PLATEAU = 0.1
# Nothing learnt: this share of the run has gone by since the warm-up, and less than STUCK_GAIN of the span is won.
STUCK_SHARE, STUCK_GAIN = 0.3, 0.05
# A run that began in the lower half of the span (a trained encoder) may have nothing left to win.
BEGAN_LOW = 0.5
# Up to here, of the way from naming the largest class always to perfection, accuracy counts as guessing.
NEAR_CHANCE = 0.2
# With half of the loss out of reach a temperature is a poor choice; with three quarters there is little to learn from.
REACH_NOTE, REACH_WARNING = 0.5, 0.25
# Temperatures a tenth of the one that lets a perfect embedding be 99 % sure are suspect; where the loss also begins
# two spans above that of a collapsed embedding, the softmax is on wrong neighbours.
COLD, SHARP_START = 0.1, 2.0
# Half of all answers surer than this, though wrong, are sure because of the temperature.
SATURATED = 0.999
# Classes evenly apart need K - 1 directions. Under half of that, some share one; for few classes it says little.
NARROW, FEWEST_CLASSES = 0.5, 4
# The spectrum is the only costly look: it is taken in the second half of a run, and at most this often in a whole one.
LOOKS = 20
# Train accuracy above held-out accuracy by one sample in five.
GAP = 0.2
# A state of the embedding or of the answers counts when it is seen this often in a row.
IN_A_ROW = 3
# A finding is repeated when what it measures has doubled.
WORSE = 2.0


@dataclass
class _Memory:
    """What a watch has seen: plain values, so that a checkpoint can hold it."""

    curve: LossCurve = field(default_factory=LossCurve)
    lr: float = 0.0
    accuracy: float | None = None
    cosine: float | None = None
    seen: dict[str, int] = field(default_factory=dict)  # how often in a row
    next_look: float = 0.0
    said: dict[str, list[float | None]] = field(default_factory=dict)  # code: severity, badness (None: do not repeat)


class Watch:
    """Fed by the training loop, one for each stage; every call returns what is new.

    losses: the names and weights of the terms that are summed: supcon, spce, esupcon, ce, tightness.
    n_batch, n_views: images in a step (of all processes together), and views of each.
    n_steps, warmup_steps: of the stage. What looks like the start of a run is no finding before its warm-up is over.
    class_counts: training samples by class; None takes classes as balanced.
    said: findings of earlier stages, which are not repeated.
    """

    def __init__(
        self,
        *,
        losses: Mapping[str, float],
        n_batch: int,
        n_classes: int,
        n_steps: int,
        temperature: float,
        n_views: int = 2,
        warmup_steps: int = 0,
        head: Literal["linear", "prototype"] = "prototype",
        prototype_weight: float = 1.0,
        spce_average: Literal["class", "batch"] = "class",
        class_counts: Iterable[int] | None = None,
        said: Iterable[Finding] = (),
    ) -> None:
        self.setting = _setting(
            losses, n_batch, n_views, n_classes, temperature, head, prototype_weight, spce_average, class_counts
        )
        self.marks = yardstick(self.setting)
        self.n_steps, self.warmup_steps = as_count(n_steps, name="n_steps"), int(warmup_steps)
        self._patience = min(max(FEWEST_STEPS, PATIENCE * self.n_steps), MOST_STEPS)
        self._chance = float(self.setting.class_shares.max())
        self._memory = _Memory(said={one.code: [SEVERITIES.index(one.severity), None] for one in said})

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dictionaries: a watch that loads them goes on as this one would."""
        return asdict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        known = [one.name for one in fields(_Memory)]
        if sorted(state) != sorted(known):
            raise ValueError(f"the state of a watch holds {', '.join(known)}; got {', '.join(sorted(state))}.")
        copy = asdict(_Memory(**state))
        self._memory = _Memory(**{**copy, "curve": LossCurve(**copy["curve"])})

    def step(self, loss: float, lr: float) -> list[Finding]:
        """After every step: the loss of its batch, and the learning rate it was taken at."""
        curve, self._memory.lr = self._memory.curve, float(lr)
        curve.steps += 1
        if not isfinite(loss):
            risen = self.marks.span > 0 and curve.risen(self.marks)
            return self._new(say.loss_not_finite(loss, curve.steps, lr, curve.first, curve.recent, risen=risen))
        at_start = curve.first is None
        curve.add(float(loss), self.marks, warming_up=curve.steps <= self.warmup_steps)
        if self.marks.span <= 0:  # one class: there is nothing to win
            return []
        return [*(self._temperature() if at_start else []), *self._divergence(), *self._standstill()]

    def epoch(
        self, epoch: int, loss: float, accuracy: float | None, embedding: Any, labels: Any, *, logits: Any = None
    ) -> list[Finding]:
        """After every epoch: its mean loss, held-out accuracy if known, and embeddings of some training samples.

        `logits` are the classifier's for the same samples, where it is being trained: with them saturation and
        overfitting are seen too. Arrays or tensors; at most 512 rows are looked at.
        """
        z, y, scores = as_sample(embedding, labels, logits)
        n_bad = int((~np.isfinite(z)).any(1).sum())
        if n_bad or not isfinite(loss):
            return self._new(say.epoch_not_finite(loss, n_bad, len(z), epoch))
        unit = unit_rows(z)
        self._memory.cosine, self._memory.accuracy = mean_cosine(unit), accuracy
        answers = [] if scores is None else self._answers(scores, y, epoch)
        return [*self._crowd(), *answers, *self._width(unit, y)]

    @property
    def _steps_after_warmup(self) -> int:
        return self._memory.curve.steps - self.warmup_steps

    def _temperature(self) -> list[Finding]:
        setting, marks, first = self.setting, self.marks, self._memory.curve.first
        assert first is not None
        if not setting.has_temperature:
            return []
        if marks.reach is not None and marks.reach < REACH_NOTE:
            severity: Literal["warning", "note"] = "warning" if marks.reach < REACH_WARNING else "note"
            return self._new(say.temperature_too_high(setting, marks, severity))
        cold = setting.temperature < COLD * temperature_for(setting.n_classes)
        if cold and first > marks.collapsed + marks.unsettled + SHARP_START * marks.span:
            return self._new(say.temperature_too_low_at_start(setting, marks, first))
        return []

    def _divergence(self) -> list[Finding]:
        curve, marks = self._memory.curve, self.marks
        assert curve.first is not None
        if curve.risen(marks):
            badness = (max(curve.now, curve.recent[-1]) - curve.first) / marks.span
            return self._new(say.lr_too_high(curve, self._memory.lr, None), badness)
        swing = curve.wild_swing(marks)
        return [] if swing is None else self._new(say.lr_too_high(curve, self._memory.lr, swing), swing / marks.span)

    def _standstill(self) -> list[Finding]:
        """The loss sits where it tells nothing apart, or has not moved for a good part of the run."""
        memory, curve, marks = self._memory, self._memory.curve, self.marks
        if marks.reach is not None and marks.reach < REACH_WARNING:
            return []  # at such a temperature the loss says nothing about the embedding
        maybe_crowded = memory.cosine is None or memory.cosine > SPREAD
        if marks.contrastive and curve.at_plateau >= self._patience and maybe_crowded and self._guesses():
            return self._collapse(by_cosine=False)
        long_enough = self._steps_after_warmup >= max(FEWEST_STEPS, STUCK_SHARE * self.n_steps)
        if not long_enough or curve.lowest is None or curve.gain(marks) >= STUCK_GAIN or not self._guesses():
            return []
        explained = {"collapse", "lr-too-high"} & set(memory.said)
        if explained or curve.lowest < marks.collapsed - BEGAN_LOW * marks.span:
            return []
        return self._new(say.stuck(curve, self.n_steps, memory.lr, marks, memory.accuracy))

    def _crowd(self) -> list[Finding]:
        memory = self._memory
        assert memory.cosine is not None
        crowded = self._in_a_row("crowded", memory.cosine > CROWDED)
        settled = self._steps_after_warmup >= self._patience and bool(memory.curve.recent)
        if not (crowded and settled and self._guesses()):
            return []
        learns = memory.curve.now < self.marks.collapsed - LEFT_PLATEAU * self.marks.span
        return [] if learns or self.setting.n_classes == 1 else self._collapse(by_cosine=True)

    def _collapse(self, *, by_cosine: bool) -> list[Finding]:
        memory = self._memory
        by_loss = memory.curve.at_plateau >= self._patience
        cosine = memory.cosine if by_cosine else None
        cold = self.setting.has_temperature and "temperature-too-low" in memory.said
        finding = say.collapse(memory.curve, memory.lr, self.marks, self.setting, cosine, by_loss=by_loss, cold=cold)
        return self._new(finding, badness=float(by_loss + by_cosine))

    def _answers(self, scores: FloatArray, y: IntArray, epoch: int) -> list[Finding]:
        """What the classifier says about the sample, and how sure it is."""
        held_out, train = self._memory.accuracy, float((scores.argmax(1) == y).mean())
        found = []
        if self.setting.has_temperature and not self.setting.linear_head:
            sure = confidence(scores)
            guesses = self._guesses() if held_out is not None else self._is_chance(train)
            if self._in_a_row("saturated", sure > SATURATED and guesses, often=2):
                right = train if held_out is None else held_out
                found += self._new(say.temperature_too_low(self.setting, SATURATED, right))
        gap = 0.0 if held_out is None else train - held_out
        if self._in_a_row("overfit", gap >= GAP):
            assert held_out is not None
            found += self._new(say.overfitting(train, held_out, epoch), gap)
        return found

    def _width(self, unit: FloatArray, y: IntArray) -> list[Finding]:
        memory, steps = self._memory, self._memory.curve.steps
        if steps < max(self.n_steps / 2, memory.next_look) or "collapse" in memory.said:
            return []
        memory.next_look = steps + self.n_steps / LOOKS
        rows = slice(None, None, max(1, len(unit) // SPECTRUM_ROWS))
        n_classes, dim = len(np.unique(y[rows])), unit.shape[1]
        rank, needed = effective_rank(unit[rows]), min(n_classes - 1, dim)
        narrow = n_classes >= FEWEST_CLASSES and rank < NARROW * needed
        if not self._in_a_row("narrow", narrow, often=2):
            return []
        return self._new(say.dimensional_collapse(rank, n_classes, dim), needed / max(rank, 1e-9))

    def _guesses(self) -> bool:
        return self._memory.accuracy is None or self._is_chance(self._memory.accuracy)

    def _is_chance(self, accuracy: float) -> bool:
        return accuracy <= self._chance + NEAR_CHANCE * (1 - self._chance)

    def _in_a_row(self, state: str, is_so: bool, often: int = IN_A_ROW) -> bool:
        seen = self._memory.seen
        seen[state] = seen.get(state, 0) + 1 if is_so else 0
        return seen[state] >= often

    def _new(self, finding: Finding, badness: float = 1.0) -> list[Finding]:
        """The finding if its code was not said yet, or is more severe or twice as bad as it was."""
        severity, before = SEVERITIES.index(finding.severity), self._memory.said.get(finding.code)
        if before is not None:
            said_severity, said_badness = before
            assert said_severity is not None
            if severity <= said_severity and (said_badness is None or badness < WORSE * said_badness):
                return []
        self._memory.said[finding.code] = [severity, badness]
        return [finding]


def _setting(
    losses: Mapping[str, float],
    n_batch: int,
    n_views: int,
    n_classes: int,
    temperature: float,
    head: str,
    prototype_weight: float,
    spce_average: Literal["class", "batch"],
    class_counts: Iterable[int] | None,
) -> Setting:
    if not losses:
        raise ValueError(f"losses must name at least one of {', '.join(LOSSES)}; got none.")
    for name, weight in losses.items():
        check_choice("the name of a loss", name, LOSSES)
        check_weight(f"the weight of {name}", weight)
    check_choice("head", head, ("linear", "prototype"))
    check_choice("spce_average", spce_average, ("class", "batch"))
    n_batch, n_views = as_count(n_batch, name="n_batch"), as_count(n_views, name="n_views")
    if n_batch * n_views < 2:
        raise ValueError("a batch needs two rows or more; got n_batch=1 and n_views=1. Pass larger batches.")
    counts = None if class_counts is None else np.asarray(list(class_counts), dtype=np.int64)
    if counts is not None and (counts.shape != (n_classes,) or counts.min() < 0 or counts.sum() == 0):
        raise ValueError(
            f"class_counts must hold the training samples of each of {n_classes} classes; got {counts.tolist()}."
        )
    return Setting(
        losses=dict(losses),
        n_batch=n_batch,
        n_views=n_views,
        n_classes=as_count(n_classes, name="n_classes"),
        temperature=check_temperature(temperature),
        linear_head=head == "linear",
        prototype_weight=check_weight("prototype_weight", prototype_weight),
        spce_average=spce_average,
        class_counts=counts,
    )
