"""What of a store's tables is done, running, failed and open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from esupcon.experiments.cost import seconds_left
from esupcon.experiments.spec import RunSpec
from esupcon.experiments.store import State, Store, StoredRun


@dataclass
class TableStatus:
    """How far the runs of a table under a profile have come."""

    table: str
    profile: str
    states: dict[str, State] = field(default_factory=dict)  # by key
    errors: dict[str, str] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    seconds_left: float | None = None  # with one worker

    @property
    def n_runs(self) -> int:
        return len(self.states)

    @property
    def counts(self) -> dict[str, int]:
        found = list(self.states.values())
        return {state: found.count(state) for state in get_args(State)}

    @property
    def n_left(self) -> int:
        return self.n_runs - self.counts["done"]

    def as_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "profile": self.profile,
            "n_runs": self.n_runs,
            **self.counts,
            "seconds_left": self.seconds_left,
            "errors": self.errors,
            "damaged": self.damaged,
            "runs": self.states,
        }


def status_of(store: Store) -> list[TableStatus]:
    """Every table that was asked for in this store; plans of one table and profile are taken together."""
    store.require()
    tables: dict[tuple[str, str], TableStatus] = {}
    specs: dict[tuple[str, str], dict[str, RunSpec]] = {}
    for plan in store.plans():
        place = (plan["table"], plan["profile"])
        one = tables.setdefault(place, TableStatus(*place))
        for row in plan["rows"]:
            key = row["key"]
            if key not in one.states:
                one.states[key] = store.state(key)
                specs.setdefault(place, {})[key] = RunSpec.read(row["spec"])
    finished: dict[str, StoredRun] = {}
    for one in tables.values():
        for key, state in one.states.items():
            if state == "done" and key not in finished:
                try:
                    finished[key] = store.read(key)
                except ValueError as error:
                    one.damaged.append(f"{error} The command that computed it computes it again.")
            elif state == "failed":
                one.errors[key] = store.failure(key) or ""
    for place, one in tables.items():
        remaining = [specs[place][key] for key, state in one.states.items() if state != "done"]
        one.seconds_left = seconds_left(remaining, finished.values(), 1) if remaining else 0.0
    return list(tables.values())
