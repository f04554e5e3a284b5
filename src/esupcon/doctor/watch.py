"""Watch a training run: divergence, collapse, standstill and unsuitable temperatures, each reported once.

Losses are judged between two values. The best embedding puts every class on one point and the K points as far apart as
possible, at the corners of a simplex: cosine 1 within a class, -1/(K-1) between classes. At temperature t a pair of
different classes then weighs r = exp(-K/((K-1) t)) against one of the same class. A collapsed embedding has all samples
on one point, the prototypes too. For n rows, K classes of which K_b are in a batch, and m_i positives of row i:

    loss        best                                        collapsed
    supcon      mean_i log(m_i + (n-1-m_i) r)               log(n-1)
    spce        log(1 + (K_b-1) r)                          log K_b
    ce          log(1 + (K-1) r), or 0 for a linear head    entropy of the class shares
    tightness   -1                                          -1
    esupcon     (w K_b l + n best_supcon) / (n+K)           (w K_b log(n-1+K) + n log(n-1)) / (n+K)
                with l = log(1 + m + (n-1-m+K-1) r)

m_i and K_b are replaced by their expectation, which is exact for balanced batches: values to judge by, not bounds.
"""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np

from esupcon._console import percent
from esupcon.doctor.data import FEWEST_MISSED
from esupcon.doctor.finding import SEVERITIES, Finding, finding
from esupcon.probability.predictions import FloatArray, IntArray

#: Losses whose best and collapsed values are known.
LOSSES = ("supcon", "spce", "esupcon", "ce", "tightness")

# All shares below are of the span, from the collapsed to the best value of the loss.
# Losses are judged by the median of this many steps, from FEWEST on: one odd batch changes nothing.
WINDOW, FEWEST = 20, 10
# Healthy runs may rise to the collapsed value first; they do not rise a quarter above it or above their start.
RISE = 0.25
# A single loss this far up is no odd batch: with too large steps cross entropy grows tenfold at each of them.
EXPLOSION = 20.0
# A fall of the loss, or a rise of the accuracy, by this much is progress; less may be chance.
PROGRESS, ACCURACY_PROGRESS = 0.05, 0.02
# The start of a healthy run looks like collapse: a fresh ResNet has cosines near 1 and a loss of log(n-1). It leaves
# within the warm-up or soon after. Wait for this share of the run, at least 30 and at most 1,000 steps.
PATIENCE, FEWEST_STEPS, MOST_STEPS = 0.1, 30, 1000
# Collapsed embeddings have mean cosines above this.
CROWDED = 0.99
# A run that has won a tenth of the span learns; if accuracy is known and at chance, only half of the span counts.
LEARNS, LEARNS_AT_CHANCE = 0.1, 0.5
# Without progress for this share of the run, and at least this many steps, it will hardly make any.
STUCK_SHARE, STUCK_STEPS = 0.3, 50
# Up to this share of the way from always predicting the largest class to perfection, accuracy counts as chance.
NEAR_CHANCE = 0.2
# A temperature that puts half of the loss out of reach is too high.
REACH = 0.5
# Relative to the temperature at which a perfect embedding can be 99 % sure. Digits are learnt down to a tenth of it;
# below a quarter a collapse is blamed on it.
TOO_COLD, COLD = 0.05, 0.25
# Epochs in a row after which a crowded embedding counts as collapsed.
IN_A_ROW = 3
# Rows looked at: enough for stable averages, and the cost does not grow with the data.
MAX_ROWS = 512
# Findings that explain why a run stands still or predicts one class only.
EXPLANATIONS = {"collapse", "stuck", "lr-too-high", "temperature-too-low", "temperature-too-high"}


@dataclass
class _State:
    """What a watch has seen and reported: plain values, so that a checkpoint can hold it."""

    steps: int = 0
    first: float | None = None
    recent: list[float] = field(default_factory=list)
    lowest: float | None = None  # median over a whole window, when it last made progress
    idle: int = 0  # steps since then
    lr: float = 0.0  # the highest so far
    accuracy: float | None = None
    best_accuracy: float = 0.0  # when it last made progress
    crowded: int = 0  # epochs in a row
    reported: dict[str, int] = field(default_factory=dict)  # severity by code

    @property
    def now(self) -> float:
        return median(self.recent)


@dataclass(kw_only=True, eq=False)
class Watch:
    """Watch one stage of a run. Call `step` and `epoch`; every call returns the new findings.

    losses: names and weights of the terms that are summed.
    n_batch: images in a step, of all processes together; each has two views.
    class_counts: training samples by class; None: many, and balanced.
    already_reported: findings of earlier stages, which are not repeated unless they become more severe.
    """

    losses: Mapping[str, float]
    n_batch: int
    n_classes: int
    n_steps: int
    temperature: float
    warmup_steps: int = 0
    head: Literal["linear", "prototype"] = "prototype"
    prototype_weight: float = 1.0
    spce_average: Literal["class", "batch"] = "class"
    class_counts: Sequence[int] | IntArray | None = None
    already_reported: InitVar[Iterable[Finding]] = ()

    def __post_init__(self, already_reported: Iterable[Finding]) -> None:
        counts = np.array([10**5] * self.n_classes if self.class_counts is None else list(self.class_counts))
        self.filled = counts[counts > 0]
        self.best, self.collapsed = self._best_and_collapsed(self.temperature)
        self.span = self.collapsed - self.best
        self._state = _State(reported={one.code: SEVERITIES.index(one.severity) for one in already_reported})

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and dictionaries: a watch that loads them continues as this one would."""
        return asdict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._state = _State(**copy.deepcopy(dict(state)))

    def step(self, loss: float, lr: float) -> list[Finding]:
        """Check the loss of a batch and the learning rate of its step; call it after every step."""
        state = self._state
        state.lr = max(state.lr, float(lr))
        state.steps += 1
        if not math.isfinite(loss):
            what = f"the loss became {loss} at step {state.steps:,}"
            if state.first is not None:
                what += f" (the first was {state.first:.4g}, the last {state.recent[-1]:.4g})"
            return self._report("loss-not-finite", what=what)
        found = []
        if state.first is None:
            state.first = float(loss)
            found = self._check_temperature()
        state.recent = [*state.recent[1 - WINDOW :], float(loss)]
        if len(state.recent) == WINDOW:
            progress = state.lowest is None or state.now < state.lowest - PROGRESS * self.span
            state.lowest = state.now if progress else state.lowest
            state.idle = 0 if progress or state.steps <= self.warmup_steps else state.idle + 1
        return found + self._check_divergence(state.first) + self._check_standstill()

    def epoch(
        self, epoch: int, loss: float, accuracy: float | None, embedding: Any, labels: Any, *, logits: Any = None
    ) -> list[Finding]:
        """Check an epoch: its mean loss, held-out accuracy if known, and embeddings of some training samples.

        `logits` are those of the same samples if the classifier is being trained.
        """
        state, n = self._state, len(embedding)
        rows = np.linspace(0, n - 1, min(n, MAX_ROWS)).round().astype(int)
        z, y = np.asarray(embedding, np.float64)[rows], np.asarray(labels)[rows]
        n_bad = int((~np.isfinite(z)).any(axis=1).sum())
        if n_bad or not math.isfinite(loss):
            what = f"after epoch {epoch + 1} the loss is {loss:.4g}, and {n_bad} of {len(z)} embeddings are not finite"
            return self._report("loss-not-finite", what=what)
        predicted = None if logits is None else np.asarray(logits)[rows].argmax(axis=1)
        state.accuracy = float((predicted == y).mean()) if accuracy is None and predicted is not None else accuracy
        if state.accuracy is not None and state.accuracy > state.best_accuracy + ACCURACY_PROGRESS:
            # A run whose accuracy rises is not idle, even if its loss hardly moves.
            state.best_accuracy, state.idle = state.accuracy, 0
        found = self._check_collapse(mean_cosine(z))
        if predicted is None:
            return found
        # Only at the end: at its start a healthy run may predict one class too.
        n_other = int((y != predicted[0]).sum())
        is_constant = bool((predicted == predicted[0]).all()) and n_other >= FEWEST_MISSED
        if is_constant and state.steps >= self.n_steps and not EXPLANATIONS & set(state.reported):
            name = f"class {predicted[0]}"
            found += self._report("one-prediction", n=len(y), samples="training samples", name=name, n_other=n_other)
        return found

    def _report(self, code: str, **values: Any) -> list[Finding]:
        """Return the finding, unless it was reported and its severity has not risen since."""
        state = self._state
        one = finding(code, watch=self, state=state, lower=state.lr / 10, higher=state.lr * 10, **values)
        if state.reported.get(code, -1) >= SEVERITIES.index(one.severity):
            return []
        state.reported[code] = SEVERITIES.index(one.severity)
        return [one]

    def _is_at_chance(self) -> bool:
        """Return whether accuracy, if known, is hardly above that of always predicting the largest class."""
        accuracy, chance = self._state.accuracy, float(self.filled.max() / self.filled.sum())
        return accuracy is None or accuracy <= chance + NEAR_CHANCE * (1 - chance)

    def _check_temperature(self) -> list[Finding]:
        is_used = {"supcon", "spce", "esupcon", "ce" if self.head == "prototype" else ""} & set(self.losses)
        if not is_used or self.span < 1e-9:  # one class: there is nothing to win
            return []
        suggested = temperature_for(self.n_classes)
        reach = self.span / (self.collapsed - self._best_and_collapsed(0.0)[0])
        if reach < REACH:
            return self._report("temperature-too-high", reach=percent(reach, 0), suggested=suggested)
        if self.temperature < TOO_COLD * suggested:
            difference = self.temperature * math.log(999)  # exp(difference / temperature) = 999
            return self._report("temperature-too-low", difference=difference, suggested=suggested)
        return []

    def _check_divergence(self, first: float) -> list[Finding]:
        state, start = self._state, max(first, self.collapsed)
        risen = len(state.recent) >= FEWEST and state.now > start + RISE * self.span
        exploded = state.recent[-1] > start + EXPLOSION * self.span
        # At a very low temperature losses jump at any learning rate.
        if self.span < 1e-9 or not (risen or exploded) or "temperature-too-low" in state.reported:
            return []
        now = max(state.now, state.recent[-1])
        return self._report("lr-too-high", what=f"the loss rose from {first:.4g} to {now:.4g}")

    def _check_standstill(self) -> list[Finding]:
        state = self._state
        if state.idle < max(STUCK_STEPS, STUCK_SHARE * self.n_steps) or not self._is_at_chance() or self.span < 1e-9:
            return []
        learns = state.now < self.collapsed - (LEARNS if state.accuracy is None else LEARNS_AT_CHANCE) * self.span
        if learns or state.crowded or EXPLANATIONS & set(state.reported):
            return []
        accuracy = "" if state.accuracy is None else f"; accuracy is {percent(state.accuracy, 0)}"
        return self._report("stuck", accuracy=accuracy)

    def _check_collapse(self, cosine: float) -> list[Finding]:
        state = self._state
        patience = min(max(FEWEST_STEPS, PATIENCE * self.n_steps), MOST_STEPS)
        is_early = state.steps - self.warmup_steps < patience or not state.recent
        state.crowded = state.crowded + 1 if cosine > CROWDED else 0
        if state.crowded < IN_A_ROW or is_early or not self._is_at_chance():
            return []
        if self.span < 1e-9 or state.now < self.collapsed - LEARNS * self.span:
            return []
        suggested = temperature_for(self.n_classes)
        advice = f"Lower the learning rate (now {state.lr:.3g}) to {state.lr / 10:.2g} and lengthen the warm-up"
        if self.head == "prototype" and self.temperature < COLD * suggested:
            advice = f"Raise the temperature (now {self.temperature:g}) to {suggested:.2g}"
        return self._report("collapse", cosine=cosine, advice=advice)

    def _best_and_collapsed(self, temperature: float) -> tuple[float, float]:
        """Return the best and the collapsed value of the weighted sum of losses (see the top of this module)."""
        n, K, total = 2 * self.n_batch, self.n_classes, int(self.filled.sum())
        shares, r = self.filled / total, _apart(K, temperature)
        present = float((1 - (1 - min(1.0, self.n_batch / total)) ** self.filled).sum())  # classes in a batch
        m = 1 + 2 * (self.n_batch - 1) * (self.filled - 1) / max(1, total - 1)
        # A class whose rows expect less than one positive has one, if it takes part at all.
        positives = np.clip(m, 1, n - 1)
        supcon = float(shares @ np.log(positives + (n - 1 - positives) * r))
        prototype, w = float(np.mean(np.log(1 + m + (n - 1 - m + K - 1) * r))), self.prototype_weight * present
        spce = math.log1p((present - 1) * r), math.log(present)
        if self.spce_average == "batch":
            # The sum over a class is divided by the batch size: logits are smaller by the share of the class.
            logits = shares / self.temperature
            collapsed = float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - shares @ logits)
            best = math.log1p((K - 1) * _apart(K, temperature * K))
            spce = best, max(collapsed, best)
        values = {
            "supcon": (supcon, math.log(n - 1)),
            "spce": spce,
            "esupcon": (
                (w * prototype + n * supcon) / (n + K),
                (w * math.log(n - 1 + K) + n * math.log(n - 1)) / (n + K),
            ),
            "ce": (0.0 if self.head == "linear" else math.log1p((K - 1) * r), float(-(shares @ np.log(shares)))),
            "tightness": (-1.0, -1.0),
        }
        parts = [(weight * values[name][0], weight * values[name][1]) for name, weight in self.losses.items()]
        return sum(best for best, _ in parts), sum(collapsed for _, collapsed in parts)


def temperature_for(n_classes: int, posterior: float = 0.99) -> float:
    """Return the t at which a perfect embedding gives the right class this probability, p = 1 / (1 + (K-1) r)."""
    odds = (n_classes - 1) * posterior / (1 - posterior)
    return n_classes / ((n_classes - 1) * math.log(odds))


def mean_cosine(z: FloatArray) -> float:
    """Return 1/(n(n-1)) sum_{i != j} cos(z_i, z_j) in O(n d). Zero vectors have cosine 1 among themselves."""
    length = np.linalg.norm(z, axis=1)
    inverse = np.divide(1, length, out=np.zeros_like(length), where=length > 0)
    n, n_zero = len(z), int((length == 0).sum())
    total = float(np.square(inverse @ z).sum()) + n_zero**2
    return (total - n) / (n * (n - 1))


def _apart(n_classes: int, temperature: float) -> float:
    """Return r: what a pair of different classes weighs against one of the same class in the best embedding."""
    if n_classes < 2 or temperature == 0:
        return 0.0
    return math.exp(-n_classes / ((n_classes - 1) * temperature))
