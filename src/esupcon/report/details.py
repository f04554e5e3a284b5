"""The few columns whose single runs are drawn: one seed of every method, chosen so that methods compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from esupcon.experiments.store import StoredRun
from esupcon.report.aggregate import TableResult
from esupcon.report.words import dataset_title, listed, method_title, printable

MOST_COLUMNS = 12


@dataclass(frozen=True)
class Detail:
    """A column of a table: `runs` of one `seed` by method, `all_runs` of every seed, and a `note` on who is missing."""

    table: TableResult
    column: int
    seed: int
    runs: Mapping[str, StoredRun]
    all_runs: Mapping[str, Sequence[StoredRun]]
    note: str

    @property
    def label(self) -> str:
        column = self.table.columns[self.column]
        return printable(f"{self.table.title}: {dataset_title(column.dataset)}, {column.setting}")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(sorted(run.key for run in self.runs.values()))

    @property
    def classes(self) -> list[str]:
        """Names in the order of the logits; empty where the result does not tell."""
        data = next(iter(self.runs.values())).result.get("data")
        names = data.get("classes") if isinstance(data, dict) else None
        return [printable(name) for name in names] if isinstance(names, list) else []


def chosen_details(tables: Sequence[TableResult], runs: Mapping[str, StoredRun]) -> tuple[list[Detail], int]:
    """At most MOST_COLUMNS columns, from every table in turn, and how many others there are.

    Points of a grid are drawn as a map of their own, so that they come last here. Columns of two tables that hold the
    same runs are drawn once, under the name of the first.
    """
    by_table = {id(table): [_detail(table, index, runs) for index in range(len(table.columns))] for table in tables}
    first: dict[tuple[str, ...], Detail] = {}
    for detail in (one for table in tables for one in by_table[id(table)] if one is not None):
        first.setdefault(detail.keys, detail)
    found: dict[tuple[str, ...], Detail] = {}
    plain = [table for table in tables if not any(column.grid for column in table.columns)]
    for group in (plain, [table for table in tables if table not in plain]):
        for turn in zip_longest(*(by_table[id(table)] for table in group)):
            found |= {detail.keys: first[detail.keys] for detail in turn if detail is not None}
    order = {id(table): index for index, table in enumerate(tables)}
    details = sorted(list(found.values())[:MOST_COLUMNS], key=lambda one: (order[id(one.table)], one.column))
    return details, max(len(found) - MOST_COLUMNS, 0)


def _detail(table: TableResult, column: int, runs: Mapping[str, StoredRun]) -> Detail | None:
    by_seed: dict[int, dict[str, StoredRun]] = {}
    for method in table.methods:
        for place in table.places.get((column, method), ()):
            if place.key in runs:
                by_seed.setdefault(place.seed, {})[method] = runs[place.key]
    if not by_seed:
        return None
    seed = min(by_seed, key=lambda one: (-len(by_seed[one]), one))
    missing = [method_title(method) for method in table.methods if method not in by_seed[seed]]
    note = f"Runs of seed {seed}." + (f" {listed(missing)} not finished." if missing else "")
    everything = {method: table.runs(column, method, runs) for method in table.methods}
    return Detail(table, column, seed, by_seed[seed], everything, note)
