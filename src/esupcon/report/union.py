"""The plans of one table under one profile, united: each run once, in the place it fills."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esupcon.report.words import dataset_title, listed, method_title


@dataclass(frozen=True)
class Place:
    """A run that was asked for, and where it stands. `row` is the plan's own record of it."""

    key: str
    dataset: str
    setting: str
    method: str
    seed: int
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Union:
    """`columns` in the order of the widest plan, those of one data set side by side, each with its places by method
    and seed.

    `notes` say where several plans asked for one cell with different settings: a mean over such runs would be of
    nothing in particular, so that only the newest settings are kept.
    """

    columns: Sequence[Sequence[Place]]
    notes: Sequence[str]

    @property
    def places(self) -> list[Place]:
        return [place for column in self.columns for place in column]


def united(plans: Sequence[Mapping[str, Any]]) -> Union:
    """`plans` are oldest first."""
    cells: dict[tuple[str, str, str], dict[str, dict[int, Place]]] = {}
    for plan in plans:
        for row in plan["rows"]:
            place = Place(row["key"], row["dataset"], row["setting"], row["method"], row["seed"], row)
            variants = cells.setdefault((place.dataset, place.setting, place.method), {})
            signature = _signature(row["spec"])
            seeds = variants.pop(signature, {})
            seeds[place.seed] = place
            variants[signature] = seeds  # the newest variant comes last
    notes = [_note(cell, variants) for cell, variants in cells.items() if len(variants) > 1]
    columns: dict[tuple[str, str], list[Place]] = {column: [] for column in _column_order(plans)}
    for (dataset, setting, _), variants in cells.items():
        newest = list(variants.values())[-1]
        columns[dataset, setting].extend(newest[seed] for seed in sorted(newest))
    datasets = list(dict.fromkeys(dataset for dataset, _ in columns))
    grouped = [rows for name in datasets for (dataset, _), rows in columns.items() if dataset == name]
    return Union(grouped, notes)


def _column_order(plans: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """As the plan with the most columns has it, the newest of several; then those that only others ask for."""
    asked = [list(dict.fromkeys((row["dataset"], row["setting"]) for row in plan["rows"])) for plan in reversed(plans)]
    widest = max(asked, key=len)
    return list(dict.fromkeys([*widest, *(column for columns in reversed(asked) for column in columns)]))


def _signature(spec: Mapping[str, Any]) -> str:
    """What two seeds of one cell have in common: everything but the seed."""
    return json.dumps({**spec, "train": {**spec.get("train", {}), "seed": None}}, sort_keys=True)


def _note(cell: tuple[str, str, str], variants: Mapping[str, Mapping[int, Place]]) -> str:
    dataset, setting, method = cell
    flat = [_flat(json.loads(signature)) for signature in variants]
    names = sorted({name for one in flat for name in one if any(other.get(name) != one[name] for other in flat)})
    different = listed([f"{name} {' / '.join(str(one.get(name)) for one in flat)}" for name in names], 4)
    n_left_out = sum(len(seeds) for seeds in list(variants.values())[:-1])
    return (
        f"{method_title(method)} on {dataset_title(dataset)}, {setting}, was asked for with different settings "
        f"({different}); the newest, last named, are shown, {n_left_out} other runs are not."
    )


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in spec.items():
        if isinstance(value, dict):
            flat.update(value)
        else:
            flat[name] = value
    return flat
