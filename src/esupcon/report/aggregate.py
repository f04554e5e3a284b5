"""Compute the cells of result tables from plans and runs. No file is read here.

A cell holds the runs of one method in one column, one per seed. With x_s the figure of seed s:

    mean = 1/n Σ_s x_s,   deviation = sqrt(1/(n-1) Σ_s (x_s - mean)²)   (none for n = 1)
    gain_s = x_s - b_s, b_s the baseline's figure of the same seed; its mean and deviation likewise
    interval = mean gain ± t · deviation of gain / sqrt n, P(|T| > t) = 0.05 with Student's T of n - 1 degrees
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from esupcon._console import count
from esupcon.experiments.plan import Plan, Row
from esupcon.experiments.store import StoredRun
from esupcon.report.format import dataset_title, method_order, method_title

# Tables of the paper in its order; others follow in the order in which they were planned.
_ORDER = ("full", "low_sample", "imbalanced", "noisy", "calibration", "complexity", "sensitivity")
_ROUNDING = 1e-9  # equal figures in per cent differ by less than this

# --- Measures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A figure of a run that a table can show.

    `of` names its place in the result, or computes it; shares are shown in per cent. `paper` names the published figure
    in the plan. A gain is the difference to the baseline or, if `relative`, the difference in per cent of the baseline.
    """

    key: str
    title: str
    of: str | Callable[[StoredRun], float | None]
    unit: str = "%"
    digits: int = 1
    lower_is_better: bool = False
    paper: str = ""
    relative: bool = False

    def value(self, run: StoredRun) -> float | None:
        """Return the figure of a run in `unit`; None if the run does not have it."""
        found: Any = run.result
        if isinstance(self.of, str):
            for name in self.of.split("."):
                found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
        else:
            found = self.of(run)
        return None if found is None else round(100 * found, 9) if self.unit == "%" else float(found)

    def published(self, row: Row) -> float | None:
        """Return the figure that the paper printed; accuracies are stored in per cent, errors as shares."""
        found: float | None = getattr(row, self.paper, None)
        return round(100 * found, 9) if found is not None and self.paper == "paper_ece" else found

    def gain(self, value: float, baseline: float) -> float:
        """Return the gain of a figure over the baseline's."""
        return 100 * (value / baseline - 1) if self.relative else value - baseline


def number_in(record: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a JSON line; None if it is missing, not a number or not finite."""
    value = record.get(name)
    if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def step_milliseconds(run: StoredRun) -> float | None:
    """Return the time of a training step: seconds of all epochs over their steps, which are images / batch size."""
    lines = [(number_in(line, "seconds"), number_in(line, "images_per_second")) for line in run.timing]
    known = [(seconds, rate) for seconds, rate in lines if seconds is not None and rate is not None]
    n_steps = sum(seconds * rate for seconds, rate in known) / run.result.batch_size
    return 1000 * sum(seconds for seconds, _ in known) / n_steps if 0 < n_steps < math.inf else None


def _peak_megabytes(run: StoredRun) -> float | None:
    n_bytes = run.result.provenance.peak_memory_bytes
    return None if n_bytes is None else n_bytes / 2**20


def _worst_recall(run: StoredRun) -> float | None:
    test = run.result.metrics.test
    return min((one.accuracy for one in test.per_class if one.accuracy is not None), default=None) if test else None


def _new_classes(run: StoredRun) -> float | None:
    """Return the mean of the accuracies on old and on added classes."""
    found = [run.result.extra[name] for name in ("new_old", "new_new") if name in run.result.extra]
    return fmean(found) if len(found) == 2 else None


_ACCURACY = Measure("accuracy", "Accuracy on the test set", "metrics.test.accuracy", paper="paper_accuracy")
_ERROR: dict[str, Any] = {"digits": 2, "lower_is_better": True}
_NATS: dict[str, Any] = {"unit": "nats", "digits": 3, "lower_is_better": True}
_COST: dict[str, Any] = {"lower_is_better": True, "relative": True}
_ECE = Measure("ece", "ECE after calibration", "calibration.paper.ece_after", **_ERROR, paper="paper_ece")
_ECE_BEFORE = Measure("ece_before", "ECE before calibration", "calibration.paper.ece_before", **_ERROR)
# A table names one of these keys and is shown once for each of its measures.
PANELS = {
    "accuracy": (_ACCURACY,),
    # A table for choosing settings shows nothing of the test set.
    "held_out": (Measure("held_out", "Accuracy on held-out training samples", "metrics.held_out.accuracy"),),
    "ece": (_ECE, _ECE_BEFORE),
    "cost": (
        Measure("step_time", "Time of a training step", step_milliseconds, "ms", **_COST),
        Measure("memory", "Peak memory", _peak_megabytes, "MB", 0, **_COST),
    ),
    "study": (
        _ACCURACY,
        Measure("worst_recall", "Recall of the worst class", _worst_recall),
        Measure("nll", "Negative log likelihood before calibration", "metrics.test.nll", **_NATS),
        Measure("nll_after", "Negative log likelihood after calibration", "calibration.paper.nll_after", **_NATS),
        *(_ECE_BEFORE, _ECE),
        Measure("knn_accuracy", "Accuracy of the 20 nearest training images", "extra.knn_accuracy"),
        Measure("recall_at_1", "Recall@1 among test images", "extra.recall_at_1"),
        Measure("map_at_r", "mAP@R among test images", "extra.map_at_r"),
        Measure("unknown_auroc", "AUROC of images of another data set", "extra.unknown_auroc"),
        Measure("new_classes", "Accuracy on old and ten added classes", _new_classes),
        Measure("transfer", "Accuracy on another data set, logistic regression", "extra.transfer"),
    ),
}

# --- Tables ----------------------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """Mean of n figures, and their standard deviation if there are two or more."""

    n: int
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Cell:
    """The runs of one method in one column; or the average of a row, whose `gain` is over columns."""

    n_planned: int
    summary: Summary | None = None
    gain: Summary | None = None  # over the baseline, on common seeds
    interval: tuple[float, float] | None = None  # of the gain, 95 %
    paper: float | None = None
    paper_gain: float | None = None
    is_best: bool = False


@dataclass(frozen=True)
class Column:
    """A setting of a table with its planned runs by method, sorted by seed."""

    dataset: str
    setting: str
    reduced: str | None  # how the profile makes the paper's setting smaller
    rows: Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class Panel:
    """One measure of a table: `cells[method][i]` belongs to column i; `averages` are mean gains over columns."""

    measure: Measure
    cells: Mapping[str, Sequence[Cell]]
    averages: Mapping[str, Cell]

    @property
    def is_empty(self) -> bool:
        return all(cell.summary is None for row in self.cells.values() for cell in row)


@dataclass(frozen=True)
class ResultTable:
    """All plans of one table and profile, with the cells that the runs fill. `plan` is the newest of them."""

    plan: Plan
    notes: Sequence[str]
    commands: Sequence[str]
    methods: Sequence[str]
    columns: Sequence[Column]
    panels: Sequence[Panel]
    n_done: int

    @property
    def title(self) -> str:
        return self.plan.title or self.plan.table

    @property
    def rows(self) -> dict[str, Row]:
        """All planned runs by key."""
        return {row.key: row for column in self.columns for rows in column.rows.values() for row in rows}

    @property
    def datasets(self) -> list[tuple[str, int]]:
        """The data sets in order, with the number of their columns."""
        return list(Counter(column.dataset for column in self.columns).items())


def result_tables(plans: Iterable[Plan], runs: Mapping[str, StoredRun]) -> list[ResultTable]:
    """Return a table for each (table, profile) among the plans, which are oldest first."""
    groups: dict[tuple[str, str], list[Plan]] = {}
    for plan in plans:
        groups.setdefault((plan.table, plan.profile), []).append(plan)
    tables = []
    for group in groups.values():
        last, (columns, notes) = group[-1], _columns(group)
        methods = method_order(row.method for plan in group for row in plan.rows)
        measures = PANELS.get(last.measure, PANELS["accuracy"])
        panels = [_panel(measure, methods, columns, last.baseline, runs) for measure in measures]
        commands = list(dict.fromkeys(plan.command for plan in group if plan.command))
        n_done = len({row.key for column in columns for rows in column.rows.values() for row in rows} & runs.keys())
        tables.append(ResultTable(last, [*last.notes, *notes], commands, methods, columns, panels, n_done))
    return sorted(tables, key=lambda one: _ORDER.index(one.plan.table) if one.plan.table in _ORDER else len(_ORDER))


def _columns(plans: Sequence[Plan]) -> tuple[list[Column], list[str]]:
    """Unite the plans of one table: columns of one data set side by side, and in each cell the newest settings.

    A mean over runs with different settings would mean nothing, so older settings are left out and a note counts them.
    """
    cells: dict[tuple[str, str], dict[str, dict[str, dict[int, Row]]]] = {}  # column -> method -> settings -> seed
    for plan in sorted(plans, key=lambda one: -len({(row.dataset, row.setting) for row in one.rows})):
        for row in plan.rows:  # the plan with most columns decides their order
            cells.setdefault((row.dataset, row.setting), {})
    for row in (row for plan in plans for row in plan.rows):
        variants = cells[row.dataset, row.setting].setdefault(row.method, {})
        train = row.spec.train.model_copy(update={"seed": 0})
        settings = row.spec.model_copy(update={"train": train}).key
        variants[settings] = {**variants.pop(settings, {}), row.seed: row}  # the newest settings come last
    columns, notes = [], []
    datasets = list(dict.fromkeys(dataset for dataset, _ in cells))
    for (dataset, setting), by_method in sorted(cells.items(), key=lambda item: datasets.index(item[0][0])):
        rows = {}
        for method, variants in by_method.items():
            *older, newest = variants.values()
            rows[method] = [newest[seed] for seed in sorted(newest)]
            if older:
                where = f"{method_title(method)} on {dataset_title(dataset)}, {setting}"
                n = count(sum(map(len, older)), "run")
                notes.append(f"{where}: {n} with other settings than the newest are not shown.")
        columns.append(Column(dataset, setting, next(iter(rows.values()))[0].reduced, rows))
    return columns, notes


def _panel(
    measure: Measure, methods: Sequence[str], columns: Sequence[Column], baseline: str, runs: Mapping[str, StoredRun]
) -> Panel:
    cells: dict[str, list[Cell]] = {method: [] for method in methods}
    for column in columns:
        values: dict[str, dict[int, float]] = {baseline: {}}
        paper: dict[str, float | None] = {baseline: None}
        for method in methods:
            rows = column.rows.get(method, ())
            found = {row.seed: measure.value(runs[row.key]) for row in rows if row.key in runs}
            values[method] = {seed: value for seed, value in found.items() if value is not None}
            paper[method] = measure.published(rows[0]) if rows else None
        means = {method: summary_of(list(of_seed.values())) for method, of_seed in values.items()}
        best = best_methods({method: one.mean for method, one in means.items() if one}, measure.lower_is_better)
        base, base_paper = values[baseline], paper[baseline]
        for method in methods:
            gain, paper_gain, own = None, None, paper[method]
            if method != baseline:
                pairs = [(value, base[seed]) for seed, value in values[method].items() if seed in base]
                gain = summary_of([measure.gain(*pair) for pair in pairs if not measure.relative or pair[1] > 0])
                paper_gain = None if own is None or base_paper is None else measure.gain(own, base_paper)
            n_planned, is_best = len(column.rows.get(method, ())), method in best
            cells[method].append(Cell(n_planned, means[method], gain, paired_interval(gain), own, paper_gain, is_best))
    return Panel(measure, cells, {method: _average(row) for method, row in cells.items()})


def _average(row: Sequence[Cell]) -> Cell:
    """Return the mean gain over columns, and the paper's over the same columns; over all while there is no gain."""
    done = [cell for cell in row if cell.gain is not None]
    ours = summary_of([cell.gain.mean for cell in done if cell.gain is not None])
    paper = summary_of([cell.paper_gain for cell in done or row if cell.paper_gain is not None])
    return Cell(len(row), gain=ours, paper_gain=paper.mean if paper else None)


def summary_of(values: Sequence[float]) -> Summary | None:
    """Return n, mean and deviation; None for no values."""
    return Summary(len(values), fmean(values), stdev(values) if len(values) > 1 else None) if values else None


def paired_interval(gain: Summary | None) -> tuple[float, float] | None:
    """Return the 95 % interval of the paired t-test; None for one seed and for equal differences: t is undefined."""
    if gain is None or gain.deviation is None or gain.deviation <= _ROUNDING * max(1.0, abs(gain.mean)):
        return None
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import

    half = float(stdtrit(gain.n - 1, 0.975)) * gain.deviation / math.sqrt(gain.n)
    return gain.mean - half, gain.mean + half


def best_methods(means: Mapping[str, float], lower_is_better: bool) -> set[str]:
    """Return all methods that share the best mean; none if there is nothing to compare with."""
    if len(means) < 2:
        return set()
    best = min(means.values()) if lower_is_better else max(means.values())
    return {method for method, mean in means.items() if abs(mean - best) <= _ROUNDING * max(1.0, abs(best))}
