"""What readers of a stored result rely on: a file that has it otherwise is refused, where it is read and nowhere else."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)  # what is not named here may be anything


class _ClassFigures(_Part):
    class_name: str = Field(alias="class")
    n: int = 0
    accuracy: float | None = None


class _Figures(_Part):
    accuracy: float = Field(ge=0, le=1)
    n: int = 0
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
    scarce_classes: list[int] | None = None


class _Preparation(_Part):
    scenario: _Scenario = _Scenario()


class _Provenance(_Part):
    seconds: float = Field(ge=0)
    train_seconds: float = Field(0.0, ge=0)
    peak_memory_bytes: int | None = Field(None, ge=0)
    command: str = ""
    commit: str | None = None
    finished: str = ""
    versions: dict[str, str] = {}


class _Result(_Part):
    metrics: _Metrics
    provenance: _Provenance
    spec: dict[str, Any]
    batch_size: int = Field(1, ge=1)
    findings: list[_Finding] = []
    data: _Data = _Data()
    preparation: _Preparation = _Preparation()


def what_is_wrong(content: dict[str, Any]) -> str | None:
    """The first thing about a result that is not as it should be, in words; None for a good one."""
    try:
        _Result.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return " ".join(f"{place}: {first['msg']}".split())
    return None
