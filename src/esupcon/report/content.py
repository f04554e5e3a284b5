"""What a report says, before it is written in any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esupcon.report.aggregate import TableResult, aggregate
from esupcon.report.damage import unreadable_files
from esupcon.report.findings import FindingGroup, grouped_findings
from esupcon.report.provenance import Provenance, provenance_of
from esupcon.report.reading import Collected, collect
from esupcon.report.words import counted, dataset_title, listed, method_order, method_title, printable


@dataclass(frozen=True)
class Content:
    """`unfinished` names runs that were asked for and are not there, with the last error where they failed."""

    collected: Collected
    tables: Sequence[TableResult]
    findings: Sequence[FindingGroup]
    provenance: Provenance
    unfinished: Sequence[tuple[str, str]]
    n_done: int
    n_planned: int
    n_unplanned: int
    command: str

    @property
    def methods(self) -> list[str]:
        return method_order([method for table in self.tables for method in table.methods])

    @property
    def summary(self) -> str:
        """One sentence: what was run."""
        if not self.tables:
            return f"{counted(self.n_unplanned, 'run')} that belong to no table."
        datasets = dict.fromkeys(column.dataset for table in self.tables for column in table.columns)
        seeds = {place.seed for table in self.tables for places in table.places.values() for place in places}
        return (
            f"{counted(len(self.methods), 'method')} ({listed([method_title(one) for one in self.methods])}) on "
            f"{listed([dataset_title(one) for one in datasets])}, {counted(len(seeds), 'seed')} at most, "
            f"in {counted(len(self.tables), 'table')}."
        )

    @property
    def completeness(self) -> str:
        if self.n_planned == 0:
            return f"{counted(self.n_unplanned, 'run')}, none of them planned."
        if self.n_done == self.n_planned:
            return (
                "The one planned run is finished."
                if self.n_planned == 1
                else f"All {self.n_planned:,} planned runs are finished."
            )
        verb = "is" if self.n_planned == 1 else "are"
        return f"{self.n_done:,} of {counted(self.n_planned, 'planned run')} {verb} finished."


def read_content(store: Path, tables: Sequence[str] = (), command: str = "") -> Content:
    """Reads and aggregates a store, or the tables of it that are asked for by name or by name-profile."""
    collected = collect(store)
    results = aggregate(_wanted_plans(collected, tables), collected.runs)
    damage = unreadable_files(results, collected.runs)
    collected = replace(collected, unreadable=[*collected.unreadable, *damage])
    planned = {
        place.key: f"{method_title(place.method)} on {dataset_title(place.dataset)}, {place.setting}, seed {place.seed}"
        for table in results
        for places in table.places.values()
        for place in places
    }
    every_plan = {row["key"] for plan in collected.plans for row in plan["rows"]}
    shown = {key: run for key, run in collected.runs.items() if key in planned} if results else collected.runs
    return Content(
        collected=collected,
        tables=results,
        findings=grouped_findings(shown, results),
        provenance=provenance_of(shown.values()),
        unfinished=[
            (printable(name), printable(_why(collected, key)))
            for key, name in planned.items()
            if key not in collected.runs
        ],
        n_done=len(planned.keys() & collected.runs.keys()),
        n_planned=len(planned),
        n_unplanned=len(collected.runs.keys() - every_plan),
        command=printable(command),
    )


def _why(collected: Collected, key: str) -> str:
    if key in collected.damaged:
        return f"damaged: {collected.damaged[key]}"
    return f"failed: {collected.failures[key]}" if key in collected.failures else "not run yet"


def _wanted_plans(collected: Collected, tables: Sequence[str]) -> list[Mapping[str, Any]]:
    """Only those whose tables are shown: a table of calibration errors is not computed to be thrown away."""
    known = {name for plan in collected.plans for name in _names(plan)}
    unknown = [name for name in tables if name not in known]
    if unknown:
        there = listed(list(dict.fromkeys(plan["table"] for plan in collected.plans)), 20) or "no table"
        raise ValueError(f"the store has no table called {listed(unknown)}. It has {there}.")
    return [plan for plan in collected.plans if not tables or set(_names(plan)) & set(tables)]


def _names(plan: Mapping[str, Any]) -> tuple[str, str]:
    return plan["table"], f"{plan['table']}-{plan['profile']}"
