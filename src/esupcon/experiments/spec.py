"""One run of a grid: everything its result depends on, and the key that follows from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from esupcon.methods import first_stage, takes_first_stage
from esupcon.spec import TrainSpec, canonical_json

SCHEMA = 1
# Options of `esupcon.data.load` that decide which images a run sees; where they lie and who decodes them does not.
DATA_OPTIONS = (
    "image_size",
    "channels",
    "split_seed",
    "test_fraction",
    "n_per_class",
    "layout",
    "image_column",
    "label_column",
)
SCENARIO_FIELDS = ("n_train", "imbalance_rate", "noise_rate", "noise_kind")


class RunSpec(BaseModel):
    """What one run is. Its key names its folder in the store, and a stored key is never computed again."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    dataset: str = Field(description="name of a set, or a path")
    data: dict[str, int | float | str] = Field(default_factory=dict, description=", ".join(DATA_OPTIONS))
    n_train: int | None = Field(None, ge=1, description="training samples used")
    imbalance_rate: float | None = Field(None, gt=0, le=1, description="share kept of half of the classes")
    noise_rate: float | None = Field(None, ge=0, le=1, description="share of the training labels made wrong")
    noise_kind: str = "shuffle"
    validation_fraction: float = Field(0.0, ge=0, lt=1, description="share of the training data held out")
    train: TrainSpec
    modules: dict[str, str] = Field(default_factory=dict, description="own modules by name, with their SHA-256")

    @field_validator("data")
    @classmethod
    def _known_options(cls, value: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(value) - set(DATA_OPTIONS))
        if unknown:
            raise ValueError(f"data options must be among {', '.join(DATA_OPTIONS)}; got {', '.join(unknown)}")
        return value

    @field_validator("noise_kind")
    @classmethod
    def _known_kind(cls, value: str) -> str:
        kinds = ("shuffle", "symmetric", "pair")
        if value not in kinds:
            raise ValueError(f"noise_kind must be one of {', '.join(kinds)}; got {value!r}")
        return value

    @property
    def key(self) -> str:
        return hashlib.sha256(canonical_json({"schema": SCHEMA, **self.model_dump()}).encode()).hexdigest()[:12]

    @property
    def first_stage(self) -> str | None:
        """The key of what runs of other methods can take from this one; None where there is nothing."""
        stage = first_stage(self.train.method)
        if stage is None:
            return None
        alike = self.model_copy(update={"train": self.train.model_copy(update={"method": stage})})
        return alike.key

    @property
    def takes_first_stage(self) -> bool:
        """Whether this run need not train its first stage where another has left it."""
        return takes_first_stage(self.train.method)

    @classmethod
    def read(cls, content: Any) -> RunSpec:
        """A stored specification, to be looked at; it may name an own method that this process does not know."""
        return cls.model_validate(content, context={"stored": True})

    @property
    def scenario(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SCENARIO_FIELDS}


@dataclass(frozen=True)
class Row:
    """A run in its place: which cell of which table it fills, and what the paper has there."""

    table: str
    profile: str
    dataset: str
    setting: str
    method: str
    seed: int
    spec: RunSpec
    reduced: str | None = None  # how the profile makes the paper's setting smaller
    grid: Mapping[str, Any] = field(default_factory=dict)  # position on the table's axes, where it has some
    paper_accuracy: float | None = None  # per cent, as printed
    paper_ece: float | None = None  # a share, as printed

    @property
    def key(self) -> str:
        return self.spec.key

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "table": self.table,
            "profile": self.profile,
            "dataset": self.dataset,
            "setting": self.setting,
            "reduced": self.reduced,
            "grid": dict(self.grid),
            "method": self.method,
            "seed": self.seed,
            "paper_accuracy": self.paper_accuracy,
            "paper_ece": self.paper_ece,
            "spec": self.spec.model_dump(),
        }
