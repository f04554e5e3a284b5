"""Compute the cells of result tables from plans and runs. No file is read here.

A cell holds the runs of one method in one column, one per seed. With x_s the figure of seed s:

    mean = 1/n Σ_s x_s,   deviation = sqrt(1/(n-1) Σ_s (x_s - mean)²)   (none for n = 1)
    gain_s = x_s - b_s, b_s the baseline's figure of the same seed; its mean and deviation likewise
    p = P(|T| > |mean gain| / (deviation of gain / sqrt n)), T of Student's distribution with n - 1 degrees
    interval = mean gain ± t · deviation of gain / sqrt n, with P(|T| > t) = 0.05
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
from esupcon.spec import RunSpec

# Tables of the paper in its order; others follow in the order in which they were planned.
_ORDER = ("full", "low_sample", "imbalanced", "noisy", "calibration", "complexity", "sensitivity")
_ROUNDING = 1e-9  # equal figures in per cent differ by less than this

# --- Measures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A figure of a run that a table can show: `of` returns it in `unit`, or None if the run does not have it.

    A gain is the difference to the baseline or, if `relative`, that difference in per cent of the baseline.
    """

    key: str
    title: str
    unit: str
    digits: int
    lower_is_better: bool
    of: Callable[[StoredRun], float | None]
    paper: Callable[[Row], float | None] = lambda row: None  # the published figure
    relative: bool = False

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


def peak_megabytes(run: StoredRun) -> float | None:
    """Return the peak memory of training; None if another run trained the encoder, since the peak lies there."""
    provenance = run.result.provenance
    if provenance.reused_seconds or provenance.peak_memory_bytes is None:
        return None
    return provenance.peak_memory_bytes / 2**20


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 9)


_ACCURACY = Measure(
    *("accuracy", "Accuracy on the test set", "%", 1, False),
    of=lambda run: _percent(run.accuracy),
    paper=lambda row: row.paper_accuracy,
)
_HELD_OUT = Measure(  # a table for choosing settings shows nothing of the test set
    *("held_out", "Accuracy on held-out training samples", "%", 1, False),
    of=lambda run: _percent(found.accuracy if (found := run.result.metrics.held_out) else None),
)
_ECE = Measure(
    *("ece", "ECE after calibration", "%", 2, True),
    of=lambda run: _percent(found.ece_after if (found := run.result.calibration.paper) else None),
    paper=lambda row: _percent(row.paper_ece),
)
_ECE_BEFORE = Measure(
    *("ece_before", "ECE before calibration", "%", 2, True),
    of=lambda run: _percent(found.ece_before if (found := run.result.calibration.paper) else None),
)


def _extra(key: str, title: str) -> Measure:
    return Measure(key, title, "%", 1, False, of=lambda run: _percent(run.result.extra.get(key)))


def worst_recall(run: StoredRun) -> float | None:
    """Return the recall of the class that is recognised worst."""
    test = run.result.metrics.test
    known = [one.accuracy for one in test.per_class if one.accuracy is not None] if test else []
    return _percent(min(known, default=None))


def new_class_accuracy(run: StoredRun) -> float | None:
    """Return the mean of the accuracies on old and on added classes."""
    old, new = (run.result.extra.get(name) for name in ("new_old", "new_new"))
    return None if old is None or new is None else _percent((old + new) / 2)


_STUDY = (
    *(_ACCURACY, Measure("worst_recall", "Recall of the worst class", "%", 1, False, of=worst_recall)),
    Measure(
        *("nll", "Negative log likelihood before calibration", "nats", 3, True),
        of=lambda run: found.nll if (found := run.result.metrics.test) else None,
    ),
    Measure(
        *("nll_after", "Negative log likelihood after calibration", "nats", 3, True),
        of=lambda run: found.nll_after if (found := run.result.calibration.paper) else None,
    ),
    *(_ECE_BEFORE, _ECE),
    _extra("knn_accuracy", "Accuracy of the 20 nearest training images"),
    _extra("recall_at_1", "Recall@1 among test images"),
    _extra("map_at_r", "mAP@R among test images"),
    _extra("unknown_auroc", "AUROC of images of another data set"),
    Measure("new_classes", "Accuracy on old and ten added classes", "%", 1, False, of=new_class_accuracy),
    _extra("transfer", "Accuracy on another data set, logistic regression"),
)
_STEP_TIME = Measure("step_time", "Time of a training step", "ms", 1, True, of=step_milliseconds, relative=True)
_MEMORY = Measure("memory", "Peak memory", "MB", 0, True, of=peak_megabytes, relative=True)
# A table names one of these keys and is shown once for each of its measures.
PANELS = {
    **{"accuracy": (_ACCURACY,), "held_out": (_HELD_OUT,), "ece": (_ECE, _ECE_BEFORE), "cost": (_STEP_TIME, _MEMORY)},
    "study": _STUDY,
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
    p: float | None = None
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
    grid: Mapping[str, Any]  # position on the table's axes, if it has some
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
    """All plans of one table and profile, with the cells that the runs fill."""

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
    n_done: int

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
    tables = [_result_table(group, runs) for group in groups.values()]
    return sorted(tables, key=lambda table: _ORDER.index(table.name) if table.name in _ORDER else len(_ORDER))


def _result_table(plans: Sequence[Plan], runs: Mapping[str, StoredRun]) -> ResultTable:
    last = plans[-1]
    columns, notes = _columns(plans)
    methods = method_order(row.method for plan in plans for row in plan.rows)
    measures = PANELS.get(last.measure, PANELS["accuracy"])
    return ResultTable(
        last.table,
        last.profile,
        title=last.title or last.table,
        paper=last.paper,
        notes=[*last.notes, *notes],
        commands=list(dict.fromkeys(plan.command for plan in plans if plan.command)),
        baseline=last.baseline,
        methods=methods,
        columns=columns,
        panels=[_panel(measure, methods, columns, last.baseline, runs) for measure in measures],
        n_done=len({row.key for column in columns for rows in column.rows.values() for row in rows} & runs.keys()),
    )


def _columns(plans: Sequence[Plan]) -> tuple[list[Column], list[str]]:
    """Unite the plans of one table: columns of one data set side by side, and in each cell the newest settings.

    A mean over runs with different settings would mean nothing, so older settings are left out and a note lists them.
    """
    cells: dict[tuple[str, str], dict[str, dict[str, dict[int, Row]]]] = {}  # column -> method -> settings -> seed
    for plan in sorted(plans, key=lambda one: -len({(row.dataset, row.setting) for row in one.rows})):
        for row in plan.rows:  # the plan with most columns decides their order
            cells.setdefault((row.dataset, row.setting), {})
    for row in (row for plan in plans for row in plan.rows):
        variants = cells[row.dataset, row.setting].setdefault(row.method, {})
        settings = _without_seed(row.spec).key
        variants[settings] = {**variants.pop(settings, {}), row.seed: row}  # the newest settings come last
    columns, notes = [], []
    datasets = list(dict.fromkeys(dataset for dataset, _ in cells))
    for (dataset, setting), by_method in sorted(cells.items(), key=lambda item: datasets.index(item[0][0])):
        rows = {}
        for method, variants in by_method.items():
            *older, newest = variants.values()
            rows[method] = [newest[seed] for seed in sorted(newest)]
            if older:
                now, before = (_without_seed(next(iter(seeds.values())).spec) for seeds in (newest, older[-1]))
                notes.append(
                    f"{method_title(method)} on {dataset_title(dataset)}, {setting}: {now.difference(before)}. "
                    f"{count(sum(map(len, older)), 'run')} with other settings than the newest are not shown."
                )
        first = next(iter(rows.values()))[0]
        columns.append(Column(dataset, setting, first.reduced, first.grid, rows))
    return columns, notes


def _without_seed(spec: RunSpec) -> RunSpec:
    return spec.model_copy(update={"train": spec.train.model_copy(update={"seed": 0})})


def _panel(
    measure: Measure, methods: Sequence[str], columns: Sequence[Column], baseline: str, runs: Mapping[str, StoredRun]
) -> Panel:
    cells: dict[str, list[Cell]] = {method: [] for method in methods}
    for column in columns:
        values: dict[str, dict[int, float]] = {baseline: {}}
        paper: dict[str, float | None] = {baseline: None}
        for method in methods:
            rows = column.rows.get(method, ())
            found = {row.seed: measure.of(runs[row.key]) for row in rows if row.key in runs}
            values[method] = {seed: value for seed, value in found.items() if value is not None}
            paper[method] = next(map(measure.paper, rows), None)
        means = {method: summary_of(list(of_seed.values())) for method, of_seed in values.items()}
        best = best_methods({method: one.mean for method, one in means.items() if one}, measure.lower_is_better)
        base, base_paper = values[baseline], paper[baseline]
        for method in methods:
            gain = paper_gain = None
            if method != baseline:
                pairs = [(value, base[seed]) for seed, value in values[method].items() if seed in base]
                gain = summary_of([measure.gain(*pair) for pair in pairs if not measure.relative or pair[1] > 0])
                own = paper[method]
                paper_gain = None if own is None or base_paper is None else measure.gain(own, base_paper)
            n_planned, is_best = len(column.rows.get(method, ())), method in best
            p, interval = paired_test(gain) or (None, None)
            cells[method].append(Cell(n_planned, means[method], gain, p, interval, paper[method], paper_gain, is_best))
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


def paired_test(gain: Summary | None) -> tuple[float, tuple[float, float]] | None:
    """Return the two-sided p and the 95 % interval of the paired t-test; None for one seed, and for equal differences:
    t is undefined."""
    if gain is None or gain.deviation is None or gain.deviation <= _ROUNDING * max(1.0, abs(gain.mean)):
        return None
    from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import

    error = gain.deviation / math.sqrt(gain.n)
    half = float(stdtrit(gain.n - 1, 0.975)) * error
    return float(2 * stdtr(gain.n - 1, -abs(gain.mean / error))), (gain.mean - half, gain.mean + half)


def best_methods(means: Mapping[str, float], lower_is_better: bool) -> set[str]:
    """Return all methods that share the best mean; none if there is nothing to compare with."""
    if len(means) < 2:
        return set()
    best = min(means.values()) if lower_is_better else max(means.values())
    return {method for method, mean in means.items() if abs(mean - best) <= _ROUNDING * max(1.0, abs(best))}
