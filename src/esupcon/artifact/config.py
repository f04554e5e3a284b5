"""`config.json`: everything about a trained classifier but its weights."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    PositiveInt,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

import esupcon

__all__ = [
    "CUSTOM",
    "SCHEMA_VERSION",
    "ArtifactConfig",
    "ImagePreprocessing",
    "Label",
    "TablePreprocessing",
    "config_text",
    "in_one_line",
    "parse_config",
    "text_digest",
]

SCHEMA_VERSION: Literal[1] = 1
#: The encoder of a user's own module, which must be passed again to load the model.
CUSTOM = "custom"
#: Sides of images; beyond any in use, and within what a hostile file may make a library allocate.
MAX_SIDE = 4096

Label = StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)] | StrictStr
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImagePreprocessing(_Part):
    """uint8 pixels (C, H, W), taken to (x / 255 - mean) / std."""

    kind: Literal["image"] = "image"
    channels: Literal[1, 3]
    image_size: tuple[Side, Side]
    mean: tuple[FiniteFloat, ...]
    std: tuple[PositiveNumber, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.channels, *self.image_size)

    @model_validator(mode="after")
    def _one_for_each_channel(self) -> Self:
        _same_length(self.channels, mean=self.mean, std=self.std)
        return self


class TablePreprocessing(_Part):
    """Rows of numbers, taken to (x - mean) / scale."""

    kind: Literal["table"] = "table"
    mean: Annotated[tuple[FiniteFloat, ...], Field(min_length=1)]
    scale: tuple[PositiveNumber, ...]
    feature_names: tuple[str, ...] | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (len(self.mean),)

    @model_validator(mode="after")
    def _one_for_each_feature(self) -> Self:
        _same_length(len(self.mean), scale=self.scale, feature_names=self.feature_names)
        return self


def _versions() -> dict[str, str]:
    return {"esupcon": esupcon.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class ArtifactConfig(_Part):
    """Architecture, classes, preprocessing, and where the model comes from.

    ``classes`` are texts, whole numbers, numbers or truth values, in the order of the logits, and keep their
    type. ``encoder`` is a spec of `build_encoder`, or ``"custom"`` for a module of one's own.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    encoder: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    input_shape: tuple[PositiveInt, ...]
    classes: Annotated[tuple[Label, ...], Field(min_length=2)]
    head: Literal["linear", "prototype"]
    temperature: PositiveNumber | None = None
    projection_dim: Annotated[int, Field(ge=1, le=65_536)] | None = None
    preprocessing: Annotated[ImagePreprocessing | TablePreprocessing, Field(discriminator="kind")]
    method: str
    training: dict[str, JsonValue] = Field(default_factory=dict)
    calibration_temperature: PositiveNumber | None = None
    metrics: dict[str, JsonValue] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=_versions)
    data_fingerprint: str | None = None
    created: str = Field(default_factory=_now)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @field_validator("classes")
    @classmethod
    def _distinct(cls, classes: tuple[Label, ...]) -> tuple[Label, ...]:
        seen: set[Label] = set()
        for label in classes:
            # Python's equality: 1, 1.0 and True would be one class to everybody who compares predictions.
            if label in seen:
                raise ValueError(f"the class {label!r} is there twice")
            seen.add(label)
        return classes

    @field_validator("training", "metrics")
    @classmethod
    def _numbers_that_json_has(cls, values: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for path, value in _leaves(values):
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{path} is {value}, which JSON cannot hold; leave it out or use None")
        return values

    @field_validator("created")
    @classmethod
    def _in_utc(cls, created: str) -> str:
        time = datetime.fromisoformat(created)
        if time.utcoffset() != timedelta(0):
            raise ValueError("not a time in UTC, such as 2026-01-31T12:00:00+00:00")
        return time.isoformat()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.input_shape != self.preprocessing.input_shape:
            raise ValueError(
                f"input_shape is {self.input_shape} and preprocessing gives {self.preprocessing.input_shape}"
            )
        if self.head == "prototype" and self.temperature is None:
            raise ValueError("a prototype head needs its temperature")
        return self


def config_text(config: ArtifactConfig) -> str:
    return json.dumps(config.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def text_digest(text: str) -> str:
    """SHA-256 of the values in a JSON text, whatever its white space and line ends.

    Of the text and not of an `ArtifactConfig`, to which a later esupcon may add fields.
    """
    return hashlib.sha256(json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_config(text: str) -> ArtifactConfig:
    """What `config_text` wrote; all else is a ValueError of one line."""
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({str(error).partition(chr(10))[0]})") from error
    version = values.get("schema_version") if isinstance(values, dict) else None
    if type(version) is not int:
        raise ValueError("it has no schema_version, so it does not describe a model of esupcon")
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"its schema is {version} and this esupcon reads {SCHEMA_VERSION}; upgrade with: pip install -U esupcon"
        )
    try:
        return ArtifactConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError(in_one_line(error)) from error
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def in_one_line(error: ValidationError) -> str:
    """The first thing that is wrong, and how many more are."""
    first, *more = error.errors(include_url=False, include_input=False)
    place = ".".join(map(str, first["loc"])) or "config"
    reason = first["msg"].removeprefix("Value error, ").replace("\n", " ")
    return f"{place}: {reason}{f' (and {len(more)} more)' if more else ''}"


def _same_length(length: int, **parts: tuple[object, ...] | None) -> None:
    for name, values in parts.items():
        if values is not None and len(values) != length:
            raise ValueError(f"{name} has {len(values)} entries, expected {length}")


def _leaves(value: JsonValue, path: str = "") -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, value
