"""A profile: on what scale the tables are run. Backbone, schedule and seeds for all, and what differs for some."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from esupcon.experiments.table import Words, parsed, read_shipped_or_own


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OfTable(_Data):
    """What a profile changes in one table.

    Each entry of `columns` that names a column of the table (data set and setting) takes that column, its figures from
    the paper included, with the fields it gives instead; any other is a column of its own. Without `columns` all the
    table's are taken.
    """

    columns: tuple[dict[str, Any], ...] = ()
    methods: Words = ()
    seeds: int | None = Field(None, ge=1)
    train: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)


class Profile(_Data):
    """`train` holds settings of every run, `method` and `dataset` those of some; the more particular wins."""

    name: str
    title: str
    notes: Words = ()
    seeds: int = Field(1, ge=1)
    validation_fraction: float = Field(0.0, ge=0, lt=1)
    train: dict[str, Any] = Field(default_factory=dict)
    method: dict[str, dict[str, Any]] = Field(default_factory=dict)
    dataset: dict[str, dict[str, Any]] = Field(default_factory=dict)
    table: dict[str, OfTable] = Field(default_factory=dict)


def read_profile(name: str) -> Profile:
    """One of ours by its name, or a TOML file by its path."""
    content, path = read_shipped_or_own("profiles", name)
    content.setdefault("name", name if path is None else path.stem)
    return parsed(Profile, content, f"profile {name}")
