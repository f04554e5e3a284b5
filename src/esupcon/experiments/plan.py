"""From a table and a profile to the runs that fill it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from esupcon.engine.spec import TrainSpec
from esupcon.experiments.modules import Module, read_modules, run_modules
from esupcon.experiments.profile import OfTable, Profile
from esupcon.experiments.spec import DATA_OPTIONS, SCENARIO_FIELDS, Row, RunSpec
from esupcon.experiments.table import Column, Table, parsed, read_table
from esupcon.methods import METHODS

_RUN_FIELDS = (*SCENARIO_FIELDS, "validation_fraction")


@dataclass(frozen=True)
class Choice:
    """What of a table is wanted, and what of it is to be different. Empty means all, or as the profile has it."""

    datasets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    fields: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Plan:
    """Every run of a table under a profile, and the modules that they need."""

    table: Table
    profile: Profile
    rows: tuple[Row, ...]
    modules: tuple[Module, ...]


def make_plan(table_name: str, profile: Profile, choice: Choice | None = None) -> Plan:
    """Every run of a table under a profile. No data are read."""
    wanted = choice or Choice()
    table, path = read_table(table_name)
    modules = read_modules(table.modules, path)
    run_modules(modules)
    change = profile.table.get(table.name) or OfTable.model_validate({})
    columns = _narrowed(_columns(table, change), wanted)
    methods = _methods(table, change, wanted)
    seeds = wanted.seeds or tuple(range(change.seeds or profile.seeds))
    rows = tuple(
        _row(table, profile, change, column, method, seed, point, wanted.fields or {}, modules)
        for column in columns
        for point in _points(change.grid or table.grid)
        for method in methods
        for seed in seeds
    )
    return Plan(table, profile, rows, modules)


@dataclass(frozen=True)
class _Placed:
    """A column as the profile has it, with what makes it smaller than the paper's."""

    column: Column
    reduced: str | None = None


def _columns(table: Table, change: OfTable) -> list[_Placed]:
    if not change.columns:
        return [_Placed(column) for column in table.columns]
    known = {(column.dataset, column.setting): column for column in table.columns}
    made = []
    for entry in change.columns:
        original = known.get((entry.get("dataset", ""), entry.get("setting", "full")))
        content = {**(original.model_dump() if original else {}), **entry}
        column = parsed(Column, content, f"a column of {table.name} in the profile")
        smaller = original is not None and column.n_train != original.n_train and column.n_train is not None
        made.append(_Placed(column, f"{column.n_train:,} samples" if smaller else None))
    return made


def _narrowed(columns: list[_Placed], choice: Choice) -> list[_Placed]:
    for wanted, attribute, word in ((choice.datasets, "dataset", "data set"), (choice.settings, "setting", "setting")):
        present = list(dict.fromkeys(getattr(placed.column, attribute) for placed in columns))
        _refuse_unknown(wanted, present, word)
        if wanted:
            columns = [placed for placed in columns if getattr(placed.column, attribute) in wanted]
    if not columns:
        raise ValueError("no column has both that data set and that setting. See --dry-run for what there is.")
    return columns


def _methods(table: Table, change: OfTable, choice: Choice) -> tuple[str, ...]:
    """Those asked for, in the table's order; a known method that the table leaves out may be asked for too."""
    usual = change.methods or table.methods
    _refuse_unknown(usual, list(METHODS), f"table {table.name}: a method")
    _refuse_unknown(choice.methods, list(METHODS), "method")
    if not choice.methods:
        return usual
    return tuple(dict.fromkeys([*(m for m in usual if m in choice.methods), *choice.methods]))


def _refuse_unknown(wanted: Iterable[str], known: Sequence[str], word: str) -> None:
    unknown = [one for one in wanted if one not in known]
    if unknown:
        raise ValueError(f"{word} must be among {', '.join(known)}; got {', '.join(unknown)}.")


def _points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _row(
    table: Table,
    profile: Profile,
    change: OfTable,
    placed: _Placed,
    method: str,
    seed: int,
    point: Mapping[str, Any],
    fields: Mapping[str, Any],
    modules: Sequence[Module],
) -> Row:
    column = placed.column
    settings: dict[str, Any] = {"validation_fraction": profile.validation_fraction}
    settings |= {name: getattr(column, name) for name in SCENARIO_FIELDS if getattr(column, name) is not None}
    # From the general to the particular: the later wins.
    for layer in (
        table.train,
        profile.train,
        profile.dataset.get(column.dataset, {}),
        profile.method.get(method, {}),
        change.train,
        column.train,
        column.data,
        point,
        fields,
    ):
        settings |= layer
    settings |= {"method": method, "seed": seed}
    spec = _spec(column.dataset, settings, modules, f"table {table.name}, profile {profile.name}")
    at = ", ".join(f"{axis}={value}" for axis, value in point.items())
    return Row(
        table=table.name,
        profile=profile.name,
        dataset=column.dataset,
        setting=", ".join(
            word for word in (column.setting if at == "" or column.setting != "full" else "", at) if word
        ),
        method=method,
        seed=seed,
        spec=spec,
        reduced=placed.reduced,
        grid=dict(point),
        paper_accuracy=column.paper_accuracy.get(method),
        paper_ece=column.paper_ece.get(method),
    )


def _spec(dataset: str, settings: Mapping[str, Any], modules: Sequence[Module], what: str) -> RunSpec:
    content: dict[str, Any] = {"dataset": dataset, "data": {}, "train": {}}
    content["modules"] = {module.name: module.sha256 for module in modules}
    for name, value in settings.items():
        if name in _RUN_FIELDS:
            content[name] = value
        elif name in DATA_OPTIONS:
            content["data"][name] = value
        elif name in TrainSpec.model_fields:
            content["train"][name] = value
        else:
            known = (*TrainSpec.model_fields, *_RUN_FIELDS, *DATA_OPTIONS)
            raise ValueError(f"{what}: {name!r} is no setting of a run. There are {', '.join(known)}.")
    try:
        return RunSpec.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ValueError(f"{what}: {first['loc'][-1]}: {message}; got {first['input']!r}.") from None


def read_field(text: str) -> tuple[str, Any]:
    """`name=value` from the command line; a value is read as JSON where it is some, else as it stands."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ValueError(f"a setting is written name=value, as in epochs=10; got {text!r}.")
    try:
        return name.strip().replace("-", "_"), json.loads(value)
    except ValueError:
        return name.strip().replace("-", "_"), value


def read_seeds(text: str) -> tuple[int, ...]:
    """`3`: the seeds 0, 1 and 2; `4,7`: those."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or (len(numbers) == 1 and "," not in text and numbers[0] < 1):
        raise ValueError(f"seeds must be how many (3) or which (0,4,7); got {text!r}.")
    return tuple(numbers) if "," in text else tuple(range(numbers[0]))
