"""During training: collapse, divergence, standstill and saturation, each named once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Literal

import numpy as np

from esupcon.doctor import run_findings as say
from esupcon.doctor.embedding import (
    SPECTRUM_ROWS,
    Sample,
    as_sample,
    confidence,
    effective_rank,
    mean_cosine,
    unit_rows,
)
from esupcon.doctor.finding import Finding
from esupcon.doctor.memory import Memory
from esupcon.doctor.setting import Setting
from esupcon.doctor.yardstick import temperature_for, yardstick
from esupcon.probability.validation import as_count

# The start of a healthy run looks like collapse: a fresh ResNet has cosines near 1 and a loss of log(n-1). It leaves
# within the warm-up or soon after. This share of the run is waited for, but 30 steps at least, and 1,000 at most; twice
# that where the loss is the only sign.
PATIENCE, FEWEST_STEPS, MOST_STEPS = 0.1, 30, 1000
# Collapsed embeddings have mean cosines above 0.99; one below 0.9 keeps samples apart, whatever the loss says.
CROWDED, SPREAD = 0.99, 0.9
# A run that has won a tenth of the span has left the plateau.
LEFT_PLATEAU = 0.1
# Without progress for this share of the run, and for so many steps at least, it will hardly make any.
STUCK_SHARE, STUCK_STEPS = 0.3, 50
# In the lower half of the span a standstill may be the end of what can be won; where no accuracy tells, sooner.
LOW = 0.5
# Up to here, of the way from naming the largest class always to perfection, accuracy counts as guessing.
NEAR_CHANCE = 0.2
# With half of the loss out of reach a temperature is a poor choice; with three quarters there is little to learn from.
REACH_NOTE, REACH_WARNING = 0.5, 0.25
# By the temperature that lets a perfect embedding be 99 % sure: at a tenth of it, a loss that begins two spans above
# that of a collapsed embedding comes of a softmax that is on wrong neighbours.
COLD_START, SHARP_START = 0.1, 2.0
# At a quarter of it, answers that are wrong and yet, by half, surer than this are sure because of the temperature.
COLD, SATURATED = 0.25, 0.999
# Classes evenly apart need K - 1 directions. Under half of that, some share one; for few classes it says little.
NARROW, FEWEST_CLASSES = 0.5, 4
# The spectrum is the only costly look: it is taken in the second half of a run, and at most this often in a whole one.
LOOKS = 10
# Train accuracy above held-out accuracy by one sample in five.
GAP = 0.2
# A state of the embedding or of the answers counts when it is seen this often in a row.
IN_A_ROW = 3


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
        self.setting = Setting.checked(
            losses=losses,
            n_batch=n_batch,
            n_views=n_views,
            n_classes=n_classes,
            temperature=temperature,
            head=head,
            prototype_weight=prototype_weight,
            spce_average=spce_average,
            class_counts=class_counts,
        )
        self.marks = yardstick(self.setting)
        self.n_steps, self.warmup_steps = as_count(n_steps, name="n_steps"), int(warmup_steps)
        self._patience = min(max(FEWEST_STEPS, PATIENCE * self.n_steps), MOST_STEPS)
        self._chance = float(self.setting.class_shares.max())
        self._memory = Memory.after(said)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dictionaries: a watch that loads them goes on as this one would."""
        return self._memory.as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory = Memory.from_dict(state)

    def step(self, loss: float, lr: float) -> list[Finding]:
        """After every step: the loss of its batch, and the learning rate it was taken at."""
        curve, self._memory.lr = self._memory.curve, max(self._memory.lr, float(lr))
        curve.steps += 1
        if not isfinite(loss):
            risen = self.marks.span > 0 and curve.risen(self.marks)
            return self._memory.new(say.loss_not_finite(loss, curve.steps, lr, curve.first, curve.recent, risen=risen))
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
        sample = as_sample(embedding, labels, logits)
        n_bad = sample.n_not_finite
        if n_bad or not isfinite(loss):
            return self._memory.new(say.epoch_not_finite(loss, n_bad, len(sample.z), epoch))
        self._memory.cosine = mean_cosine(sample.z)
        self._memory.note_accuracy(sample.accuracy if accuracy is None else accuracy)
        return [*self._crowd(), *self._answers(sample, epoch), *self._width(sample)]

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
            return self._memory.new(say.temperature_too_high(setting, marks, severity))
        cold = setting.temperature < COLD_START * temperature_for(setting.n_classes)
        if cold and first > marks.collapsed + marks.unsettled + SHARP_START * marks.span:
            return self._memory.new(say.temperature_too_low_at_start(setting, marks, first))
        return []

    def _divergence(self) -> list[Finding]:
        curve, marks = self._memory.curve, self.marks
        if "temperature-too-low" in self._memory.said:
            return []  # such losses jump at any learning rate
        if curve.risen(marks):
            return self._memory.new(
                say.lr_too_high(curve, self._memory.lr, None), level=2 if curve.exploded(marks) else 1
            )
        swing = curve.wild_swing(marks)
        return [] if swing is None else self._memory.new(say.lr_too_high(curve, self._memory.lr, swing))

    def _standstill(self) -> list[Finding]:
        """The loss sits where it tells nothing apart, or has not moved for a good part of the run."""
        memory, curve, marks = self._memory, self._memory.curve, self.marks
        if marks.reach is not None and marks.reach < REACH_WARNING:
            return []  # at such a temperature the loss says nothing about the embedding
        maybe_crowded = memory.cosine is None or memory.cosine > SPREAD
        if marks.contrastive and curve.at_plateau >= 2 * self._patience and maybe_crowded and self._guesses():
            return self._collapse(by_cosine=False)
        if curve.idle < max(STUCK_STEPS, STUCK_SHARE * self.n_steps) or not self._guesses():
            return []
        explained = {"collapse", "lr-too-high", "temperature-too-low"} & set(memory.said)
        crowded = memory.cosine is not None and memory.cosine > CROWDED  # a collapse that is not yet certain
        low = LEFT_PLATEAU if memory.accuracy is None else LOW
        if explained or crowded or curve.now < marks.collapsed - low * marks.span:
            return []
        return memory.new(say.stuck(curve, self.n_steps, memory.lr, marks, memory.accuracy))

    def _crowd(self) -> list[Finding]:
        memory = self._memory
        assert memory.cosine is not None
        crowded = memory.in_a_row("crowded", memory.cosine > CROWDED, IN_A_ROW)
        settled = self._steps_after_warmup >= self._patience and bool(memory.curve.recent)
        if not (crowded and settled and self._guesses()):
            return []
        learns = memory.curve.now < self.marks.collapsed - LEFT_PLATEAU * self.marks.span
        return [] if learns or self.setting.n_classes == 1 else self._collapse(by_cosine=True)

    def _collapse(self, *, by_cosine: bool) -> list[Finding]:
        memory = self._memory
        return memory.new(
            say.collapse(
                memory.curve,
                memory.lr,
                self.marks,
                self.setting,
                memory.cosine if by_cosine else None,
                by_loss=memory.curve.at_plateau > 0,
                cold="temperature-too-low" in memory.said,
            )
        )

    def _answers(self, sample: Sample, epoch: int) -> list[Finding]:
        """What the classifier says about the sample, and how sure it is."""
        memory, train, right = self._memory, sample.accuracy, self._memory.accuracy
        if sample.logits is None or train is None or right is None:
            return []
        found = []
        if self._is_cold():
            saturated = confidence(sample.logits) > SATURATED and self._guesses()
            if memory.in_a_row("saturated", saturated, 2):
                found += memory.new(say.temperature_too_low(self.setting, SATURATED, right))
        gap = train - right
        if memory.in_a_row("overfit", gap >= GAP, IN_A_ROW):
            found += memory.new(say.overfitting(train, right, epoch), level=int(gap / GAP))
        return found

    def _width(self, sample: Sample) -> list[Finding]:
        memory, steps = self._memory, self._memory.curve.steps
        if steps < max(self.n_steps / 2, memory.next_look) or "collapse" in memory.said:
            return []
        memory.next_look = steps + self.n_steps / LOOKS
        rows = slice(None, None, max(1, len(sample.y) // SPECTRUM_ROWS))
        n_classes, dim = len(np.unique(sample.y[rows])), sample.z.shape[1]
        rank, needed = effective_rank(unit_rows(sample.z[rows])), min(n_classes - 1, dim)
        narrow = n_classes >= FEWEST_CLASSES and rank < NARROW * needed
        if not memory.in_a_row("narrow", narrow, 2):
            return []
        return memory.new(say.dimensional_collapse(rank, n_classes, dim))

    def _guesses(self) -> bool:
        """Whether accuracy, where it is known, is hardly above that of naming the largest class always."""
        accuracy = self._memory.accuracy
        return accuracy is None or accuracy <= self._chance + NEAR_CHANCE * (1 - self._chance)

    def _is_cold(self) -> bool:
        setting = self.setting
        cosine_head = setting.head == "prototype" and setting.n_classes > 1
        return cosine_head and setting.temperature < COLD * temperature_for(setting.n_classes)
