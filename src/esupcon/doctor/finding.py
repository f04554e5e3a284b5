"""What the doctor hands back: a trouble's name, how bad it is, what was seen, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, cast, get_args

Severity = Literal["note", "warning", "error"]
Code = Literal[
    # before training, from the data
    "leak",
    "contradicting-labels",
    "one-class",
    "empty-class",
    "imbalance",
    "constant-images",
    "data-not-finite",
    "absent-classes",
    "no-positives",
    "own-views-only",
    "prototype-share",
    # during training
    "loss-not-finite",
    "lr-too-high",
    "collapse",
    "dimensional-collapse",
    "stuck",
    "temperature-too-low",
    "temperature-too-high",
    "overfitting",
    # after training, from the probabilities
    "suspect-labels",
]

#: From good to know to fatal.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
#: What can be found, a section of the troubleshooting page each.
CODES: tuple[Code, ...] = get_args(Code)


@dataclass(frozen=True)
class Finding:
    """`note`: good to know. `warning`: the result is likely worse than it could be. `error`: no usable result."""

    code: Code
    severity: Severity
    message: str
    remedy: str

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {', '.join(SEVERITIES)}; got {self.severity!r}.")

    def __str__(self) -> str:
        # Class names come from folders and tables and may hold line breaks.
        return " ".join(f"{self.severity} [{self.code}]: {self.message} {self.remedy}".split())

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `as_dict` gave. A code of another version of the package is kept as it is."""
        fields = ("code", "severity", "message", "remedy")
        if set(values) != set(fields) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError(f"a finding holds the texts {', '.join(fields)}; got {dict(values)!r}.")
        return cls(cast(Code, values["code"]), cast(Severity, values["severity"]), values["message"], values["remedy"])


def percent(share: float) -> str:
    """Two significant digits: 12 %, 3.4 %, 0.056 %."""
    value = 100 * share
    if 0 < value < 0.01:
        return "under 0.01 %"
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.2g} %"


def class_name(classes: Sequence[Any] | None, k: int) -> str:
    return f"class {k}" if classes is None else repr(str(classes[k]))


def class_names(classes: Sequence[Any] | None, ks: Sequence[int], limit: int = 3) -> str:
    """The first few by name, the rest as a number."""
    named = ", ".join(class_name(classes, k) for k in ks[:limit])
    return named if len(ks) <= limit else f"{named} and {len(ks) - limit} more"
