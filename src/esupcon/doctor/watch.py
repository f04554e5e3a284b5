"""Watch a training run: collapse, divergence, standstill and saturation, each reported once.

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

m_i and K_b are replaced by their expectation, and classes of unequal size are treated as corners of the simplex too:
values to judge by, not bounds to prove. They are exact for balanced batches; only esupcon, whose prototype term pushes
the samples of a class a little apart, can be better than its best, by less than a thousandth of the span.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, fields
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esupcon.doctor.data import FEWEST_MISSED, absent_share
from esupcon.doctor.finding import SEVERITIES, Finding, Severity, finding, percent
from esupcon.probability.predictions import FloatArray, IntArray, as_count

CONTRASTIVE = ("supcon", "spce", "esupcon")
#: Losses whose best and collapsed values are known.
LOSSES = (*CONTRASTIVE, "ce", "tightness")

# All shares below are of the span, from the collapsed to the best value of the loss.
# Losses are judged by the median of this many steps, from FEWEST on: one odd batch changes nothing.
WINDOW, FEWEST = 20, 10
# Healthy runs may rise to the collapsed value first; they do not rise a quarter above their start.
RISE, ABOVE_COLLAPSED = 0.25, 0.1
# A single loss this far up is no odd batch: with too large steps cross entropy grows tenfold at each of them.
EXPLOSION = 20.0
# Batches differ by a fraction of the span; twice the span from step to step is not sampling.
SWING, NO_PROGRESS = 2.0, 0.25
# A collapsed batch has its value almost exactly; this allows for rounding and for class counts that vary.
AT_PLATEAU = 0.02
# A fall of the loss, or a rise of the accuracy, by this much is progress; less may be chance.
PROGRESS, ACCURACY_PROGRESS = 0.05, 0.02
# The start of a healthy run looks like collapse: a fresh ResNet has cosines near 1 and a loss of log(n-1). It leaves
# within the warm-up or soon after. Wait for this share of the run, at least 30 and at most 1,000 steps; twice as long
# if the loss is the only sign.
PATIENCE, FEWEST_STEPS, MOST_STEPS = 0.1, 30, 1000
# Collapsed embeddings have mean cosines above 0.99; below 0.9 samples are apart, even if the loss suggests otherwise.
CROWDED, SPREAD = 0.99, 0.9
# A run that has won a tenth of the span has left the plateau.
LEFT_PLATEAU = 0.1
# Without progress for this share of the run, and at least this many steps, it will hardly make any.
STUCK_SHARE, STUCK_STEPS = 0.3, 50
# In the lower half of the span a standstill may be the end of what can be won; if no accuracy is known, sooner.
LOW = 0.5
# Up to this share of the way from always predicting the largest class to perfection, accuracy counts as chance.
NEAR_CHANCE = 0.2
# If half of the loss is out of reach a temperature is a poor choice; with three quarters there is little to learn from.
REACH_NOTE, REACH_WARNING = 0.5, 0.25
# Relative to the temperature at which a perfect embedding can be 99 % sure: at a tenth of it, a loss that starts two
# spans above the collapsed value comes from a softmax that sees only wrong neighbours.
COLD_START, SHARP_START = 0.1, 2.0
# At a quarter of it, predictions that are wrong and yet, half of them, surer than this are sure because of it.
COLD, SATURATED = 0.25, 0.999
# Evenly separated classes need K - 1 directions. Below half of that, some share one; for few classes it means little.
NARROW, FEWEST_CLASSES = 0.5, 4
# The spectrum is the only costly check: it is computed in the second half of a run, at most this often in a whole one,
# and of this many rows, which takes a millisecond; 512 would take twenty.
CHECKS, SPECTRUM_ROWS = 10, 128
# Training accuracy above held-out accuracy by one sample in five.
GAP = 0.2
# A state of the embedding or of the predictions counts when it is seen this often in a row.
IN_A_ROW = 3
# Rows looked at: enough for stable averages, and the cost does not grow with the data.
MAX_ROWS = 512
# Findings that explain why a classifier predicts one class only.
EXPLANATIONS = {"collapse", "stuck", "lr-too-high", "temperature-too-low", "temperature-too-high"}
# Above every level: findings of earlier stages are not repeated, unless they become more severe.
_FROM_EARLIER_STAGE = 1_000_000

Floats = NDArray[np.float32] | NDArray[np.float64]


class Bounds(NamedTuple):
    """Values of a loss: of the best and of a collapsed embedding, and what unmoved prototypes may add to the latter.

    reach: (collapsed - best) relative to the same at temperature 0; None if no temperature takes part.
    """

    best: float
    collapsed: float
    unsettled: float
    reach: float | None

    @property
    def span(self) -> float:
        return self.collapsed - self.best


@dataclass
class _State:
    """What a watch has seen and reported: plain values, so that a checkpoint can hold it."""

    steps: int = 0
    first: float | None = None
    recent: list[float] = field(default_factory=list)
    now: float = 0.0  # median of the recent losses
    lowest: float | None = None  # median over a whole window, when it last made progress
    idle: int = 0  # steps since then
    at_plateau: int = 0  # steps in a row
    lr: float = 0.0  # the highest so far
    accuracy: float | None = None
    best_accuracy: float = 0.0  # when it last made progress
    cosine: float | None = None
    next_check: float = 0.0
    in_a_row: dict[str, int] = field(default_factory=dict)
    reported: dict[str, list[int]] = field(default_factory=dict)  # severity and level by code


@dataclass(kw_only=True, eq=False)
class Watch:
    """Watch one stage of a run. Call `step` and `epoch`; every call returns the new findings.

    losses: names and weights of the terms that are summed: supcon, spce, esupcon, ce, tightness.
    n_batch, n_views: images in a step (of all processes together), and views of each.
    n_steps, warmup_steps: of the stage. What looks like the start of a run is no finding before its warm-up is over.
    class_counts: training samples by class; None: classes are balanced.
    already_reported: findings of earlier stages, which are not repeated.
    """

    losses: Mapping[str, float]
    n_batch: int
    n_classes: int
    n_steps: int
    temperature: float
    n_views: int = 2
    warmup_steps: int = 0
    head: Literal["linear", "prototype"] = "prototype"
    prototype_weight: float = 1.0
    spce_average: Literal["class", "batch"] = "class"
    class_counts: Sequence[int] | IntArray | None = None
    already_reported: InitVar[Iterable[Finding]] = ()
    said: InitVar[Iterable[Finding]] = ()  # shim: use already_reported; to be deleted

    def __post_init__(self, already_reported: Iterable[Finding], said: Iterable[Finding]) -> None:
        weights = [*self.losses.values(), self.prototype_weight]
        counts = None if self.class_counts is None else np.array(list(self.class_counts), np.int64)
        for what in ("n_batch", "n_views", "n_classes", "n_steps"):
            as_count(getattr(self, what), name=what)
        for is_fine, expected, value in (
            (self.losses and set(self.losses) <= set(LOSSES), f"losses must be among {LOSSES}", list(self.losses)),
            (all(math.isfinite(w) and w >= 0 for w in weights), "weights must be finite and at least 0", weights),
            (0 < self.temperature < math.inf, "temperature must be finite and above 0", self.temperature),
            (self.head in ("linear", "prototype"), "head must be 'linear' or 'prototype'", self.head),
            (self.spce_average in ("class", "batch"), "spce_average must be 'class' or 'batch'", self.spce_average),
            (self.n_rows >= 2, "a batch must have two rows or more", self.n_rows),
            (
                counts is None or (counts.shape == (self.n_classes,) and counts.min() >= 0 and counts.sum() > 0),
                f"class_counts must hold the training samples of each of {self.n_classes} classes",
                self.class_counts,
            ),
        ):
            if not is_fine:
                raise ValueError(f"{expected}; got {value}.")
        self.class_counts = counts
        #: Shares of the classes that have samples.
        self.class_shares: FloatArray = (
            np.full(self.n_classes, 1 / self.n_classes) if counts is None else counts[counts > 0] / counts.sum()
        )
        self.bounds = loss_bounds(self)
        reported = {
            one.code: [SEVERITIES.index(one.severity), _FROM_EARLIER_STAGE] for one in [*already_reported, *said]
        }
        self._state = _State(reported=reported)

    @property
    def n_rows(self) -> int:
        """Rows of a batch."""
        return self.n_batch * self.n_views

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and dictionaries: a watch that loads them continues as this one would."""
        return asdict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        known = {one.name for one in fields(_State)}
        if set(state) != known:
            raise ValueError(f"the state of a watch holds {', '.join(sorted(known))}; got {', '.join(sorted(state))}.")
        self._state = _State(**asdict(_State(**state)))  # shares nothing with `state`

    def step(self, loss: float, lr: float) -> list[Finding]:
        """Check the loss of a batch and the learning rate of its step; call it after every step."""
        state = self._state
        state.lr = max(state.lr, float(lr))
        state.steps += 1
        if not math.isfinite(loss):
            return self._loss_not_finite(loss, lr)
        is_first = state.first is None
        self._add(float(loss))
        if self.bounds.span <= 0:  # one class: there is nothing to win
            return []
        return [*(self._check_temperature() if is_first else []), *self._check_divergence(), *self._check_standstill()]

    def epoch(
        self, epoch: int, loss: float, accuracy: float | None, embedding: Any, labels: Any, *, logits: Any = None
    ) -> list[Finding]:
        """Check an epoch: its mean loss, held-out accuracy if known, and embeddings of some training samples.

        `logits` are those of the same samples if the classifier is being trained: saturation, overfitting and constant
        predictions need them. NumPy arrays or what NumPy can convert; at most 512 rows are used.
        """
        z, y, scores = _sample(embedding, labels, logits)
        state = self._state
        # The largest value is NaN or infinite if any is: one pass where, as nearly always, none is.
        n_bad = 0 if np.isfinite(np.abs(z).max()) else int((~np.isfinite(z)).any(1).sum())
        if n_bad or not math.isfinite(loss):
            return self._report(
                "loss-not-finite",
                what=f"at the end of epoch {epoch + 1} the mean loss is {loss:.4g} and {n_bad} of {len(z)} embeddings "
                "contain NaN or infinite values",
                advice="Go back to the last good checkpoint, lower the learning rate, and look for NaN in the data.",
            )
        state.cosine = mean_cosine(z)
        train_accuracy = None if scores is None else float((scores.argmax(1) == y).mean())
        state.accuracy = train_accuracy if accuracy is None else accuracy
        if state.accuracy is not None and state.accuracy > state.best_accuracy + ACCURACY_PROGRESS:
            # A run whose accuracy rises is not idle, even if its loss hardly moves.
            state.best_accuracy, state.idle = state.accuracy, 0
        found = self._check_collapse()
        if scores is not None and train_accuracy is not None:
            found += self._check_predictions(scores, y, train_accuracy, epoch)
        return found + self._check_rank(z, y)

    def _report(self, code: str, severity: Severity | None = None, *, level: int = 1, **values: Any) -> list[Finding]:
        """Return the finding, unless it was reported and neither its severity nor its level has risen since."""
        state = self._state
        own = {"watch": self, "state": state, "bounds": self.bounds, "lower": state.lr / 10, "higher": state.lr * 10}
        one = finding(code, severity, **{**own, **values})
        now = SEVERITIES.index(one.severity)
        before, before_level = state.reported.get(code, (-1, 0))
        if now <= before and level <= before_level:
            return []
        state.reported[code] = [now, level]
        return [one]

    def _in_a_row(self, name: str, is_so: bool, often: int) -> bool:
        counts = self._state.in_a_row
        counts[name] = counts.get(name, 0) + 1 if is_so else 0
        return counts[name] >= often

    def _add(self, loss: float) -> None:
        state, bounds = self._state, self.bounds
        state.first = loss if state.first is None else state.first
        state.recent = [*state.recent[1 - WINDOW :], loss]
        state.now = median(state.recent)
        if len(state.recent) < WINDOW:
            return
        warming_up = state.steps <= self.warmup_steps
        progress = state.lowest is None or state.now < state.lowest - PROGRESS * bounds.span
        state.lowest = state.now if progress else state.lowest
        state.idle = 0 if progress or warming_up else state.idle + 1
        here = abs(state.now - bounds.collapsed) <= AT_PLATEAU * bounds.span
        state.at_plateau = state.at_plateau + 1 if here and not warming_up else 0

    def _start(self) -> float:
        assert self._state.first is not None
        return max(self._state.first, self.bounds.collapsed)

    def _has_exploded(self) -> bool:
        recent = self._state.recent
        return bool(recent) and recent[-1] > self._start() + EXPLOSION * self.bounds.span

    def _has_risen(self) -> bool:
        """Return whether the loss is well above its start: for a while, or at once by very much."""
        state, bounds = self._state, self.bounds
        if state.first is None or self._has_exploded():
            return state.first is not None
        high = max(state.first + RISE * bounds.span, bounds.collapsed + ABOVE_COLLAPSED * bounds.span)
        return len(state.recent) >= FEWEST and state.now > high

    def _is_at_chance(self) -> bool:
        """Return whether accuracy, if known, is hardly above that of always predicting the largest class."""
        accuracy, chance = self._state.accuracy, float(self.class_shares.max())
        return accuracy is None or accuracy <= chance + NEAR_CHANCE * (1 - chance)

    def _patience(self) -> float:
        return min(max(FEWEST_STEPS, PATIENCE * self.n_steps), MOST_STEPS)

    def _loss_not_finite(self, loss: float, lr: float) -> list[Finding]:
        state = self._state
        before = "it was the first"
        if state.first is not None:
            before = f"the first was {state.first:.4g}, the last finite one {state.recent[-1]:.4g}"
        advice = "Look for NaN in the data, train in full precision (precision 32)"
        if self.bounds.span > 0 and self._has_risen():
            advice = "The loss had been growing: lengthen the warm-up"
        return self._report(
            "loss-not-finite",
            what=f"the loss became {loss} at step {state.steps:,}, at learning rate {lr:.3g} ({before})",
            advice=f"{advice}, and lower the learning rate to {lr / 10:.2g}.",
        )

    def _check_temperature(self) -> list[Finding]:
        bounds, first = self.bounds, self._state.first
        assert first is not None
        if bounds.reach is None:
            return []
        suggested = temperature_for(self.n_classes)
        if bounds.reach < REACH_NOTE:
            return self._report(
                "temperature-too-high",
                "warning" if bounds.reach < REACH_WARNING else "note",
                reach=percent(bounds.reach),
                posterior=best_posterior(self.n_classes, self.temperature),
                suggested=suggested,
            )
        is_cold = self.temperature < COLD_START * suggested
        if is_cold and first > bounds.collapsed + bounds.unsettled + SHARP_START * bounds.span:
            return self._temperature_too_low(
                f"the loss begins at {first:.4g}, where a collapsed embedding has {bounds.collapsed:.4g}"
            )
        return []

    def _temperature_too_low(self, sign: str) -> list[Finding]:
        # exp(difference / temperature) = 999
        difference, suggested = self.temperature * math.log(999), temperature_for(self.n_classes)
        return self._report("temperature-too-low", difference=difference, sign=sign, suggested=suggested)

    def _check_divergence(self) -> list[Finding]:
        state, span = self._state, self.bounds.span
        if "temperature-too-low" in state.reported:
            return []  # such losses jump at any learning rate
        if self._has_risen():
            now = max(state.now, state.recent[-1])
            what = f"the loss rose from {state.first:.4g} to {now:.4g} within {state.steps:,} steps"
            return self._report("lr-too-high", level=2 if self._has_exploded() else 1, what=what)
        if len(state.recent) < WINDOW or state.now < self._start() - NO_PROGRESS * span:
            return []
        in_order = sorted(state.recent)
        swing = in_order[-1 - WINDOW // 10] - in_order[WINDOW // 10]  # without the lowest and the highest tenth
        if swing <= SWING * span:
            return []
        around = f"around {state.now:.4g} (the first was {state.first:.4g})"
        what = f"after {state.steps:,} steps the loss swings by {swing:.3g} from step to step, {around}"
        return self._report("lr-too-high", what=what)

    def _check_standstill(self) -> list[Finding]:
        """Check whether the loss stays at the collapsed value, or has not moved for a good part of the run."""
        state, bounds = self._state, self.bounds
        if bounds.reach is not None and bounds.reach < REACH_WARNING:
            return []  # at such a temperature the loss hardly depends on the embedding
        contrastive = any(name in CONTRASTIVE for name in self.losses)  # else other embeddings have this loss too
        maybe_crowded = state.cosine is None or state.cosine > SPREAD
        if contrastive and state.at_plateau >= 2 * self._patience() and maybe_crowded and self._is_at_chance():
            return self._collapse(by_cosine=False)
        if state.idle < max(STUCK_STEPS, STUCK_SHARE * self.n_steps) or not self._is_at_chance():
            return []
        explained = {"collapse", "lr-too-high", "temperature-too-low"} & set(state.reported)
        crowded = state.cosine is not None and state.cosine > CROWDED  # a collapse that is not yet certain
        low = LEFT_PLATEAU if state.accuracy is None else LOW
        if explained or crowded or state.now < bounds.collapsed - low * bounds.span:
            return []
        return self._report(
            "stuck", accuracy="" if state.accuracy is None else f"; accuracy is {percent(state.accuracy)}"
        )

    def _check_collapse(self) -> list[Finding]:
        state, bounds = self._state, self.bounds
        assert state.cosine is not None
        crowded = self._in_a_row("crowded", state.cosine > CROWDED, IN_A_ROW)
        settled = state.steps - self.warmup_steps >= self._patience() and bool(state.recent)
        learns = state.now < bounds.collapsed - LEFT_PLATEAU * bounds.span
        if not (crowded and settled and self._is_at_chance()) or learns or self.n_classes == 1:
            return []
        return self._collapse(by_cosine=True)

    def _collapse(self, *, by_cosine: bool) -> list[Finding]:
        state = self._state
        signs = [f"the mean cosine between samples is {state.cosine:.4f} (1: all alike)"] if by_cosine else []
        if state.at_plateau > 0:
            formula = f", log(n - 1) for {self.n_rows} rows" if set(self.losses) == {"supcon"} else ""
            collapsed = f"{self.bounds.collapsed:.4g}{formula}"
            signs.append(f"the loss stays at {state.now:.4g}, where a collapsed embedding has {collapsed}")
        advice = f"Lower the learning rate (now {state.lr:.3g}) to {state.lr / 10:.2g} and lengthen the warm-up"
        if "temperature-too-low" in state.reported:
            suggested = temperature_for(self.n_classes)
            advice = f"Raise the temperature (now {self.temperature:g}) to {suggested:.2g}"
        return self._report("collapse", signs=", and ".join(signs), advice=advice)

    def _check_predictions(self, logits: Floats, y: IntArray, train: float, epoch: int) -> list[Finding]:
        """Check what the classifier predicts for the sample, and how confident it is."""
        state, found = self._state, []
        accuracy, predicted = state.accuracy, logits.argmax(1)
        assert accuracy is not None
        if (
            self.head == "prototype"
            and self.n_classes > 1
            and self.temperature < COLD * temperature_for(self.n_classes)
        ):
            confidence = float(np.median(1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)))
            if self._in_a_row("saturated", confidence > SATURATED and self._is_at_chance(), 2):
                sure, right = f"more than {100 * SATURATED:g} % sure", f"{percent(accuracy)} are correct"
                found += self._temperature_too_low(f"half of the predictions are {sure} while {right}")
        gap = train - accuracy
        if self._in_a_row("overfit", gap >= GAP, IN_A_ROW):
            shares: dict[str, Any] = {"train": percent(train), "held_out": percent(accuracy)}
            found += self._report("overfitting", level=int(gap / GAP), epoch=epoch + 1, **shares)
        # Only at the end: at its start a healthy run may predict one class too.
        n_other = int((y != predicted[0]).sum())
        is_constant = bool((predicted == predicted[0]).all()) and n_other >= FEWEST_MISSED
        if is_constant and state.steps >= self.n_steps and not EXPLANATIONS & set(state.reported):
            name = f"class {predicted[0]}"
            found += self._report("one-prediction", n=len(y), samples="training samples", name=name, n_other=n_other)
        return found

    def _check_rank(self, z: Floats, y: IntArray) -> list[Finding]:
        state = self._state
        if state.steps < max(self.n_steps / 2, state.next_check) or "collapse" in state.reported:
            return []
        state.next_check = state.steps + self.n_steps / CHECKS
        rows = slice(None, None, max(1, len(y) // SPECTRUM_ROWS))
        n_classes, dim, rank = len(np.unique(y[rows])), z.shape[1], effective_rank(z[rows])
        narrow = n_classes >= FEWEST_CLASSES and rank < NARROW * min(n_classes - 1, dim)
        if not self._in_a_row("narrow", narrow, 2):
            return []
        return self._report("dimensional-collapse", rank=rank, dim=dim, n_classes=n_classes, needed=n_classes - 1)


def loss_bounds(watch: Watch) -> Bounds:
    """Return the best and the collapsed value of the weighted sum of losses (see the top of this module)."""
    best, collapsed, unsettled = _sum_of_bounds(watch, watch.temperature)
    sharp_best, *_ = _sum_of_bounds(watch, 0.0)
    possible = collapsed - sharp_best
    has_temperature = any(name in CONTRASTIVE or (name == "ce" and watch.head == "prototype") for name in watch.losses)
    reach = (collapsed - best) / possible if has_temperature and possible > 1e-9 else None
    return Bounds(best, collapsed, unsettled, reach)


def best_posterior(n_classes: int, temperature: float) -> float:
    """Return the probability that a perfect embedding gives to the right class: 1 / (1 + (K-1) r)."""
    return 1 / (1 + (n_classes - 1) * _apart(n_classes, temperature))


def temperature_for(n_classes: int, posterior: float = 0.99) -> float:
    """Return the temperature at which `best_posterior` is this: t = K / ((K-1) log((K-1) p / (1-p)))."""
    assert n_classes > 1, "one class has no probability to reach"
    odds = (n_classes - 1) * posterior / (1 - posterior)
    return n_classes / ((n_classes - 1) * math.log(odds))


def mean_cosine(z: Floats) -> float:
    """Return 1/(n(n-1)) sum_{i != j} cos(z_i, z_j) in O(n d). Zero vectors have cosine 1 among themselves."""
    z = _scaled(z)
    length = np.sqrt(np.einsum("ij,ij->i", z, z))
    inverse = np.divide(1, length, out=np.zeros_like(length), where=length > 0)
    n, n_zero = len(z), int((length == 0).sum())
    total = float(np.square(inverse @ z, dtype=np.float64).sum()) + n_zero**2
    return (total - n) / (n * (n - 1))


def effective_rank(z: Floats) -> float:
    """Return exp(-sum_j p_j log p_j), p the singular values of the centred unit rows over their sum: 1 for a line."""
    z = np.asarray(_scaled(z), dtype=np.float64)
    length = np.linalg.norm(z, axis=1, keepdims=True)
    unit = np.divide(z, length, out=np.zeros_like(z), where=length > 0)
    centred = unit - unit.mean(0)
    gram = centred @ centred.T if len(centred) <= centred.shape[1] else centred.T @ centred
    spread = np.sqrt(np.clip(np.linalg.eigvalsh(gram), 0, None))
    if spread.max() < 1e-6:  # what rounding leaves if all rows are equal
        return 0.0
    p = spread[spread > 1e-6 * spread.max()]
    p /= p.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def _scaled(z: Floats) -> Floats:
    """Scale rows so that their squares can be summed: embeddings of a diverging network may be huge."""
    top = np.abs(z).max()
    return z if 1e-12 < top < 1e12 or top == 0 else z / top


def _sample(embedding: Any, labels: Any, logits: Any) -> tuple[Floats, IntArray, Floats | None]:
    """Return at most MAX_ROWS rows, spread evenly."""
    z, y = np.asarray(embedding), np.asarray(labels)
    if z.ndim != 2 or len(z) < 2 or z.shape[1] == 0 or y.shape != (len(z),):
        raise ValueError(
            "embedding must hold two or more rows (n, d) and labels one number per row; "
            f"got shapes {z.shape} and {y.shape}."
        )
    scores = None if logits is None else np.asarray(logits)
    if scores is not None and (scores.ndim != 2 or len(scores) != len(z)):
        raise ValueError(
            f"logits must hold a row for each of the {len(z)} rows of embedding; got shape {scores.shape}."
        )
    rows = np.linspace(0, len(z) - 1, min(len(z), MAX_ROWS)).round().astype(int)
    return _floats(z[rows]), y[rows].astype(np.int64), None if scores is None else _floats(scores[rows])


def _floats(values: NDArray[Any]) -> Floats:
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)


def _apart(n_classes: int, temperature: float) -> float:
    """Return r: what a pair of different classes weighs against one of the same class in the best embedding."""
    if n_classes < 2 or temperature == 0:
        return 0.0
    return math.exp(-n_classes / ((n_classes - 1) * temperature))


def _sum_of_bounds(watch: Watch, temperature: float) -> tuple[float, float, float]:
    parts = [np.multiply(weight, _BOUNDS[name](watch, temperature)) for name, weight in watch.losses.items() if weight]
    best, collapsed, unsettled = np.sum(parts, axis=0) if parts else (0.0, 0.0, 0.0)
    return float(best), float(collapsed), float(unsettled)


def _positives(watch: Watch) -> FloatArray:
    """Return m_i expected for a row of each class: other views of its image, and all views of the other images."""
    shares = watch.class_shares
    if watch.class_counts is not None:
        counts = np.asarray(watch.class_counts)
        shares = (counts[counts > 0] - 1) / max(1, int(counts.sum()) - 1)
    positives: FloatArray = watch.n_views - 1 + watch.n_views * (watch.n_batch - 1) * shares
    return positives


def _present(watch: Watch) -> float:
    """Return the expected number of classes in a batch."""
    if watch.n_classes == 1:
        return 1.0
    if watch.class_counts is None:
        return watch.n_classes * -math.expm1(watch.n_batch * math.log1p(-1 / watch.n_classes))
    counts = np.asarray(watch.class_counts)
    return float(np.count_nonzero(counts)) * (1 - absent_share(counts, min(watch.n_batch, int(counts.sum()))))


def _supcon(watch: Watch, temperature: float) -> tuple[float, float, float]:
    n, r = watch.n_rows, _apart(watch.n_classes, temperature)
    # A class whose rows expect less than one positive has one, if it takes part at all.
    m = np.clip(_positives(watch), 1, n - 1)
    return float(watch.class_shares @ np.log(m + (n - 1 - m) * r)), math.log(n - 1), 0.0


def _esupcon(watch: Watch, temperature: float) -> tuple[float, float, float]:
    n, K, present = watch.n_rows, watch.n_classes, watch.prototype_weight * _present(watch)
    m, r = _positives(watch), _apart(K, temperature)
    prototype = float(np.mean(np.log(1 + m + (n - 1 - m + K - 1) * r)))
    best, collapsed, _ = _supcon(watch, temperature)
    return (
        (present * prototype + n * best) / (n + K),
        (present * math.log(n - 1 + K) + n * collapsed) / (n + K),
        present / (n + K) / watch.temperature,
    )


def _spce(watch: Watch, temperature: float) -> tuple[float, float, float]:
    K, shares = watch.n_classes, watch.class_shares
    if watch.spce_average == "class":
        present = max(1.0, _present(watch))
        return math.log1p((present - 1) * _apart(K, temperature)), math.log(present), 0.0
    # The sum over a class is divided by the batch size: logits are smaller by the share of the class.
    logits = shares / watch.temperature
    collapsed = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - shares @ logits
    best = math.log1p((K - 1) * _apart(K, temperature * K)) if K > 1 else 0.0
    return best, max(float(collapsed), best), 0.0


def _cross_entropy(watch: Watch, temperature: float) -> tuple[float, float, float]:
    K, shares = watch.n_classes, watch.class_shares
    best = 0.0 if watch.head == "linear" else math.log1p((K - 1) * _apart(K, temperature))
    return best, float(-(shares @ np.log(shares))), 0.0


def _tightness(_: Watch, __: float) -> tuple[float, float, float]:
    return -1.0, -1.0, 1.0


_BOUNDS = {"supcon": _supcon, "spce": _spce, "esupcon": _esupcon, "ce": _cross_entropy, "tightness": _tightness}
