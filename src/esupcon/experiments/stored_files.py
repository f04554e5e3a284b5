"""What readers of stored results and plans rely on: a file that has it otherwise is refused when it is read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from esupcon.experiments.spec import RunSpec

Count = Annotated[int, Field(ge=0, lt=2**63)]  # JSON knows whole numbers that no float can hold


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)  # what is not named here may be anything


class _ClassFigures(_Part):
    class_name: str = Field(alias="class")
    n: Count = 0
    accuracy: float | None = None


class _Figures(_Part):
    accuracy: float = Field(ge=0, le=1)
    n: Count = 0
    per_class: list[_ClassFigures] = []


class _Metrics(_Part):
    test: _Figures | None
    held_out: _Figures | None = None


class _Finding(_Part):
    code: str
    severity: str
    message: str
    remedy: str


class _Data(_Part):
    name: str = ""
    classes: list[str] = []


class _Scenario(_Part):
    scarce_classes: list[Count] | None = None


class _Preparation(_Part):
    scenario: _Scenario = _Scenario()


class _Provenance(_Part):
    seconds: float = Field(ge=0)
    train_seconds: float = Field(0.0, ge=0)
    taken_seconds: float = Field(0.0, ge=0)
    peak_memory_bytes: Count | None = None
    command: str = ""
    commit: str | None = None
    finished: str = ""
    versions: dict[str, str] = {}


class _Result(_Part):
    metrics: _Metrics
    provenance: _Provenance
    spec: dict[str, Any]
    batch_size: Count = Field(1, ge=1)
    findings: list[_Finding] = []
    data: _Data = _Data()
    preparation: _Preparation = _Preparation()


class _Row(_Part):
    key: str
    table: str
    profile: str
    dataset: str
    setting: str
    method: str
    seed: Count
    spec: dict[str, Any]
    reduced: str | None = None
    grid: dict[str, bool | Annotated[int, Field(gt=-(2**63), lt=2**63)] | float | str | None] = {}
    paper_accuracy: float | None = None
    paper_ece: float | None = None

    @model_validator(mode="after")
    def _own_key(self) -> _Row:
        found = RunSpec.read(self.spec).key
        if found != self.key:
            raise ValueError(f"the run {self.key} has the specification of {found}")
        return self


class _Plan(_Part):
    table: str
    profile: str
    title: str
    notes: list[str] = []
    paper: str = ""
    measure: str = "accuracy"
    baseline: str = "ce"
    command: str | list[str] = ""
    asked: str = ""
    rows: list[_Row] = Field(min_length=1)


def what_is_wrong(result: Any) -> str | None:
    """The first thing about a result that is not as it should be, in words; None for a good one."""
    return _complaint(_Result, result)


def what_is_wrong_with_plan(plan: Any) -> str | None:
    return _complaint(_Plan, plan)


def _complaint(kind: type[_Part], content: Any) -> str | None:
    try:
        kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        return " ".join(f"{place}: {first['msg'].removeprefix('Value error, ')}".split())
    except UnicodeEncodeError:
        return "it holds half of a character"
    return None
