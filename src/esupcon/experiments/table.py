"""A table of results as data: its columns, its methods, its axes, and what the paper printed in it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from esupcon.experiments.spec import SCENARIO_FIELDS
from esupcon.files import quoted
from esupcon.methods import METHODS

Model = TypeVar("Model", bound=BaseModel)
Measure = Literal["accuracy", "held_out", "ece", "cost"]
Words = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Data):
    """One setting of one data set. `setting` is how the table calls it; left out, it follows from the fields."""

    dataset: str
    setting: str = ""
    n_train: int | None = Field(None, ge=1)
    imbalance_rate: float | None = Field(None, gt=0, le=1)
    noise_rate: float | None = Field(None, ge=0, le=1)
    noise_kind: str | None = None
    data: dict[str, int | float | str] = Field(default_factory=dict)
    train: dict[str, Any] = Field(default_factory=dict)
    paper_accuracy: dict[str, float] = Field(default_factory=dict, description="per cent, by method")
    paper_ece: dict[str, float] = Field(default_factory=dict, description="a share, by method")

    @model_validator(mode="after")
    def _named(self) -> Column:
        if not self.setting:
            given = {name: getattr(self, name) for name in SCENARIO_FIELDS}
            words = [f"{name}={value}" for name, value in given.items() if value is not None]
            object.__setattr__(self, "setting", ", ".join(words) or "full")
        return self


class Table(_Data):
    """`grid` gives axes of training settings: every column is run at every point of their product."""

    name: str
    title: str
    paper: str = ""
    measure: Measure = "accuracy"
    baseline: str = "ce"
    methods: Words = tuple(METHODS)
    modules: Words = ()
    notes: Words = ()
    train: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    columns: tuple[Column, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _without_doubles(self) -> Table:
        places = [(column.dataset, column.setting) for column in self.columns]
        double = next((place for place in places if places.count(place) > 1), None)
        if double is not None:
            raise ValueError(f"two columns are called {' '.join(double)}; give each a setting of its own")
        for axis, values in self.grid.items():
            if not values:
                raise ValueError(f"the axis {axis} has no values")
        return self


def shipped(kind: Literal["tables", "profiles"]) -> tuple[str, ...]:
    """The names of what comes with the package."""
    folder = resources.files("esupcon.experiments").joinpath(kind)
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def read_shipped_or_own(kind: Literal["tables", "profiles"], name: str) -> tuple[dict[str, Any], Path | None]:
    """The content of a shipped file by its name, or of an own file by its path; with the path of an own one."""
    if name in shipped(kind):
        text = resources.files("esupcon.experiments").joinpath(kind, f"{name}.toml").read_text(encoding="utf-8")
        return tomllib.loads(text), None
    path = Path(name)
    word = kind.removesuffix("s")
    if not path.is_file():
        raise FileNotFoundError(
            f"{name!r} is neither a {word} of ours ({', '.join(shipped(kind))}) nor a file. Check the name or the path."
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), path
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must be TOML; it is not: {quoted(error)}. Mend it there.") from None


def read_table(name: str) -> tuple[Table, Path | None]:
    """A table by its name or its path, and the path where it is an own one: its modules are named from there."""
    content, path = read_shipped_or_own("tables", name)
    content.setdefault("name", Path(name).stem)
    return parsed(Table, content, f"table {name}"), path


def parsed(kind: type[Model], content: Mapping[str, Any], what: str) -> Model:
    """The record in a file, or one line that names the first thing wrong with it."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ValueError(f"{what}: {place}: {message}. Mend it in the file.") from None
