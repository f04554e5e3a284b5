"""From plans and stored runs to the cells of tables. Pure: no file is read but by the measures, of the runs given.

A cell holds the runs of one method in one column, one a seed. With x_s the figure of seed s:

    mean = 1/n Σ_s x_s,   deviation = sqrt(1/(n-1) Σ_s (x_s - mean)²)   (none for n = 1)
    gain_s = x_s - b_s, b_s the baseline's figure of the same seed; its mean and deviation likewise
    p = P(|T| > |mean gain| / (deviation of gain / sqrt n)), T of Student's distribution with n - 1 degrees
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from esupcon.experiments.store import StoredRun
from esupcon.report.measures import PANELS, Measure
from esupcon.report.union import Place, united
from esupcon.report.words import command_line, method_order

SIGNIFICANT = 0.05
_ORDER = ("full", "low_sample", "imbalanced", "noisy", "calibration", "complexity", "sensitivity")
_ROUNDING = 1e-9  # differences of figures in per cent agree to this where they are equal


@dataclass(frozen=True)
class Summary:
    """n figures: their mean, and their deviation where there are two or more."""

    n: int
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Cell:
    method: str
    values: Mapping[int, float]  # by seed
    n_planned: int
    summary: Summary | None = None
    gain: Summary | None = None  # over the baseline, on common seeds
    p: float | None = None
    paper: float | None = None
    paper_gain: float | None = None
    is_best: bool = False

    @property
    def is_open(self) -> bool:
        return self.summary is None

    @property
    def is_significant(self) -> bool:
        return self.p is not None and self.p < SIGNIFICANT


@dataclass(frozen=True)
class Column:
    dataset: str
    setting: str
    reduced: str | None
    grid: Mapping[str, Any]


@dataclass(frozen=True)
class Average:
    """Mean over columns of a method's gains, and of the paper's in the same columns; in all while we have none."""

    gain: float | None
    n_columns: int
    paper_gain: float | None
    n_paper: int


@dataclass(frozen=True)
class Panel:
    """One measure of a table: cells[method][i] belongs to columns[i]."""

    measure: Measure
    cells: Mapping[str, Sequence[Cell]]
    averages: Mapping[str, Average]

    @property
    def is_empty(self) -> bool:
        return all(cell.is_open for row in self.cells.values() for cell in row)


@dataclass(frozen=True)
class TableResult:
    name: str
    profile: str
    title: str
    paper: str
    notes: Sequence[str]
    commands: Sequence[str]
    baseline: str
    methods: Sequence[str]
    columns: Sequence[Column]
    panels: Sequence[Panel]
    places: Mapping[tuple[int, str], Sequence[Place]] = field(repr=False)  # by column and method
    n_done: int = 0
    n_planned: int = 0

    @property
    def identity(self) -> str:
        return f"{self.name}-{self.profile}"

    @property
    def measure(self) -> Measure:
        return self.panels[0].measure

    def runs(self, column: int, method: str, runs: Mapping[str, StoredRun]) -> list[StoredRun]:
        """The finished ones, by seed."""
        return [runs[place.key] for place in self.places.get((column, method), ()) if place.key in runs]


def aggregate(plans: Iterable[Mapping[str, Any]], runs: Mapping[str, StoredRun]) -> list[TableResult]:
    """A table for every (table, profile) among the plans: the paper's in its order, then others as first asked for."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for plan in plans:
        groups.setdefault((plan["table"], plan["profile"]), []).append(plan)
    order = sorted(groups, key=lambda group: _ORDER.index(group[0]) if group[0] in _ORDER else len(_ORDER))
    return [_table(groups[group], runs) for group in order]


def summary_of(values: Sequence[float]) -> Summary | None:
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(1, mean, None)
    return Summary(n, mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)))


def paired_p(gain: Summary | None) -> float | None:
    """Two-sided p of the paired t-test; None for one seed, and where all the differences are equal: t is undefined."""
    if gain is None or gain.deviation is None or gain.deviation <= _ROUNDING * max(1.0, abs(gain.mean)):
        return None
    from scipy.special import stdtr  # type: ignore[import-untyped]  # noqa: PLC0415 - SciPy ships no annotations; slow to import

    t = gain.mean / (gain.deviation / math.sqrt(gain.n))
    return float(2 * stdtr(gain.n - 1, -abs(t)))


def _table(plans: Sequence[Mapping[str, Any]], runs: Mapping[str, StoredRun]) -> TableResult:
    last = plans[-1]
    union = united(plans)
    methods = method_order([place.method for place in union.places])
    columns = [
        Column(rows[0].dataset, rows[0].setting, rows[0].row.get("reduced"), dict(rows[0].row.get("grid") or {}))
        for rows in union.columns
    ]
    places = {
        (index, method): [place for place in rows if place.method == method]
        for index, rows in enumerate(union.columns)
        for method in methods
    }
    baseline = str(last.get("baseline") or "ce")
    measures = PANELS.get(str(last.get("measure")), PANELS["accuracy"])
    keys = {place.key for place in union.places}
    return TableResult(
        name=last["table"],
        profile=last["profile"],
        title=str(last.get("title") or last["table"]),
        paper=str(last.get("paper") or ""),
        notes=[*(str(note) for note in last.get("notes") or ()), *union.notes],
        commands=list(dict.fromkeys(command_line(plan["command"]) for plan in plans if plan.get("command"))),
        baseline=baseline,
        methods=methods,
        columns=columns,
        panels=[_panel(measure, methods, len(columns), places, baseline, runs) for measure in measures],
        places=places,
        n_done=len(keys & runs.keys()),
        n_planned=len(keys),
    )


def _panel(
    measure: Measure,
    methods: Sequence[str],
    n_columns: int,
    places: Mapping[tuple[int, str], Sequence[Place]],
    baseline: str,
    runs: Mapping[str, StoredRun],
) -> Panel:
    by_column = [
        _column_cells(measure, {method: places[index, method] for method in methods}, baseline, runs)
        for index in range(n_columns)
    ]
    cells = {method: [column[method] for column in by_column] for method in methods}
    return Panel(measure, cells, {method: _average(row) for method, row in cells.items()})


def _column_cells(
    measure: Measure, places: Mapping[str, Sequence[Place]], baseline: str, runs: Mapping[str, StoredRun]
) -> dict[str, Cell]:
    values: dict[str, dict[int, float]] = {}
    paper: dict[str, float | None] = {}
    for method, rows in places.items():
        found = {place.seed: measure.of(runs[place.key]) for place in rows if place.key in runs}
        values[method] = {seed: value for seed, value in sorted(found.items()) if value is not None}
        paper[method] = next((measure.paper_figure(place.row) for place in rows), None)
    means = {method: summary_of(list(of_seed.values())) for method, of_seed in values.items()}
    best = best_methods({method: one.mean for method, one in means.items() if one is not None}, measure.lower_is_better)
    cells = {}
    for method, rows in places.items():
        gain = None
        if method != baseline:
            common = values[method].keys() & values.get(baseline, {}).keys()
            pairs = [(values[method][seed], values[baseline][seed]) for seed in sorted(common)]
            gain = summary_of([measure.gain(*pair) for pair in pairs if not measure.relative or pair[1] > 0])
        own, base = paper[method], paper.get(baseline)
        cells[method] = Cell(
            method=method,
            values=values[method],
            n_planned=len(rows),
            summary=means[method],
            gain=gain,
            p=paired_p(gain),
            paper=own,
            paper_gain=None if method == baseline or own is None or base is None else measure.gain(own, base),
            is_best=method in best,
        )
    return cells


def best_methods(means: Mapping[str, float], lower_is_better: bool) -> set[str]:
    """All that tie for best; none where there is nothing to compare with."""
    if len(means) < 2:
        return set()
    best = min(means.values()) if lower_is_better else max(means.values())
    return {method for method, mean in means.items() if abs(mean - best) <= _ROUNDING * max(1.0, abs(best))}


def _average(row: Sequence[Cell]) -> Average:
    ours = [cell.gain.mean for cell in row if cell.gain is not None]
    both = [cell for cell in row if cell.gain is not None] or row
    paper = [cell.paper_gain for cell in both if cell.paper_gain is not None]
    return Average(
        math.fsum(ours) / len(ours) if ours else None,
        len(ours),
        math.fsum(paper) / len(paper) if paper else None,
        len(paper),
    )
