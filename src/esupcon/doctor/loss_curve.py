"""The losses of a run, held against the yardstick. All shares are of its span, from collapsed to best."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from esupcon.doctor.yardstick import Yardstick

# Losses are judged by the median of so many steps, from so many on: one odd batch changes nothing.
WINDOW, FEWEST = 20, 10
# Well-behaved runs may drift up to the collapsed value first; they do not go a quarter above where they began.
RISE, ABOVE_COLLAPSED = 0.25, 0.1
# A single loss so far up is no odd batch: with too long steps cross entropy grows tenfold at each of them.
EXPLOSION = 20.0
# Batches differ by a fraction of the span; twice the span from step to step is not sampling.
SWING, NO_PROGRESS = 2.0, 0.25
# A collapsed batch has its value almost exactly; this allows for rounding and for class counts that vary.
AT_PLATEAU = 0.02
# A fall by so much is progress; less may be chance.
PROGRESS = 0.05


@dataclass
class LossCurve:
    steps: int = 0
    first: float | None = None
    recent: list[float] = field(default_factory=list)
    now: float = 0.0  # the median of recent ones
    lowest: float | None = None  # of the medians over a whole window, when it last made progress
    idle: int = 0  # steps since then
    at_plateau: int = 0  # steps in a row

    def add(self, loss: float, marks: Yardstick, *, warming_up: bool) -> None:
        self.first = loss if self.first is None else self.first
        self.recent = [*self.recent[1 - WINDOW :], loss]
        self.now = median(self.recent)
        if len(self.recent) < WINDOW:
            return
        progress = self.lowest is None or self.now < self.lowest - PROGRESS * marks.span
        self.lowest = self.now if progress else self.lowest
        self.idle = 0 if progress or warming_up else self.idle + 1
        here = abs(self.now - marks.collapsed) <= AT_PLATEAU * marks.span
        self.at_plateau = self.at_plateau + 1 if here and not warming_up else 0

    def start(self, marks: Yardstick) -> float:
        assert self.first is not None
        return max(self.first, marks.collapsed)

    def exploded(self, marks: Yardstick) -> bool:
        return bool(self.recent) and self.recent[-1] > self.start(marks) + EXPLOSION * marks.span

    def risen(self, marks: Yardstick) -> bool:
        """Well above where it began: for a while, or at once by very much."""
        if self.first is None or self.exploded(marks):
            return self.first is not None
        high = max(self.first + RISE * marks.span, marks.collapsed + ABOVE_COLLAPSED * marks.span)
        return len(self.recent) >= FEWEST and self.now > high

    def wild_swing(self, marks: Yardstick) -> float | None:
        """The distance from the lowest to the highest tenth of recent losses, if that is wild and leads nowhere."""
        if len(self.recent) < WINDOW or self.now < self.start(marks) - NO_PROGRESS * marks.span:
            return None
        in_order = sorted(self.recent)
        swing = in_order[-1 - WINDOW // 10] - in_order[WINDOW // 10]
        return swing if swing > SWING * marks.span else None
