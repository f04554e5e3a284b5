"""What a watch has seen and said: plain values, so that a checkpoint can hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from esupcon.doctor.finding import SEVERITIES, Finding
from esupcon.doctor.loss_curve import LossCurve

# By so much accuracy must rise to count as progress.
ACCURACY_PROGRESS = 0.02
# Above every level: what earlier stages said is not repeated, unless it becomes more severe.
_SAID_BEFORE = 1_000_000


@dataclass
class Memory:
    curve: LossCurve = field(default_factory=LossCurve)
    lr: float = 0.0  # the highest so far
    accuracy: float | None = None
    best_accuracy: float = 0.0  # when it last made progress
    cosine: float | None = None
    next_look: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)  # states, and how often in a row
    said: dict[str, list[int]] = field(default_factory=dict)  # codes, their severity and level

    @classmethod
    def after(cls, findings: Iterable[Finding]) -> Self:
        return cls(said={one.code: [SEVERITIES.index(one.severity), _SAID_BEFORE] for one in findings})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        known = [one.name for one in fields(cls)]
        if sorted(state) != sorted(known):
            raise ValueError(f"the state of a watch holds {', '.join(known)}; got {', '.join(sorted(state))}.")
        copy = asdict(cls(**state))  # shares nothing with `state`
        return cls(**{**copy, "curve": LossCurve(**copy["curve"])})

    def note_accuracy(self, accuracy: float | None) -> None:
        """A run whose accuracy rises is not idle, even where its loss hardly moves."""
        self.accuracy = accuracy
        if accuracy is not None and accuracy > self.best_accuracy + ACCURACY_PROGRESS:
            self.best_accuracy, self.curve.idle = accuracy, 0

    def in_a_row(self, state: str, is_so: bool, often: int) -> bool:
        self.seen[state] = self.seen.get(state, 0) + 1 if is_so else 0
        return self.seen[state] >= often

    def new(self, finding: Finding, *, level: int = 1) -> list[Finding]:
        """The finding, unless it was said before and neither its severity nor its level has risen since."""
        severity = SEVERITIES.index(finding.severity)
        said_severity, said_level = self.said.get(finding.code, (-1, 0))
        if severity <= said_severity and level <= said_level:
            return []
        self.said[finding.code] = [severity, level]
        return [finding]
