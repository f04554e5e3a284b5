"""A table as words: what stands in its head and in each of its cells, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from esupcon.report.aggregate import SIGNIFICANT, Average, Cell, Column, Panel, TableResult
from esupcon.report.words import as_printed, dataset_title, direction, method_title, number, printable, signed

STAR, BEST = "*", "●"
OPEN = "open"


@dataclass(frozen=True)
class Gain:
    """`tone`: 1 better than the baseline, -1 worse, 0 neither; `arrow` points the way the figure moved."""

    text: str
    tone: int
    arrow: str
    star: str = ""
    spoken: str = ""


@dataclass(frozen=True)
class Words:
    """One cell: `value` is `74.1 ± 0.4`, `n` is `(n=3)`; an open cell has neither."""

    value: str
    n: str
    sort: float | None
    gain: Gain | None
    paper: str
    is_best: bool

    @property
    def is_open(self) -> bool:
        return not self.value


@dataclass(frozen=True)
class Line:
    method: str
    title: str
    is_baseline: bool
    cells: Sequence[Words]
    average: Words


@dataclass(frozen=True)
class Head:
    """A column: its setting, and what makes it smaller than the paper's, where something does."""

    setting: str
    reduced: str


@dataclass(frozen=True)
class Sheet:
    """`groups` are the data sets with the number of their columns; `legend` explains every mark that occurs."""

    key: str
    title: str
    unit: str
    groups: Sequence[tuple[str, int]]
    heads: Sequence[Head]
    lines: Sequence[Line]
    average_title: str
    legend: Sequence[str]


def sheet(table: TableResult, panel: Panel) -> Sheet:
    baseline = method_title(table.baseline)
    lines = [
        Line(
            method=method,
            title=method_title(method),
            is_baseline=method == table.baseline,
            cells=[_words(cell, panel) for cell in panel.cells[method]],
            average=_average(panel.averages[method], panel, len(table.columns)),
        )
        for method in table.methods
    ]
    return Sheet(
        key=f"{table.identity}-{panel.measure.key}",
        title=panel.measure.title,
        unit=panel.measure.unit,
        groups=_groups(table.columns),
        heads=[Head(printable(column.setting), printable(column.reduced or "")) for column in table.columns],
        lines=lines,
        average_title="Avg. change" if panel.measure.relative else "Avg. gain",
        legend=_legend(table, panel, baseline),
    )


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    groups: list[tuple[str, int]] = []
    for column in columns:
        title = dataset_title(column.dataset)
        if groups and groups[-1][0] == title:
            groups[-1] = (title, groups[-1][1] + 1)
        else:
            groups.append((title, 1))
    return groups


def _words(cell: Cell, panel: Panel) -> Words:
    measure = panel.measure
    paper = ""
    if cell.paper is not None:
        paper = as_printed(cell.paper)
        if cell.paper_gain is not None:
            paper += f" ({signed(cell.paper_gain, 2)})"
    if cell.summary is None:
        return Words("", "", None, None, paper, False)
    value = number(cell.summary.mean, measure.digits)
    if cell.summary.deviation is not None:
        value += f" ± {number(cell.summary.deviation, measure.digits)}"
    missing = f" of {cell.n_planned}" if cell.summary.n < cell.n_planned else ""
    gain = None
    if cell.gain is not None:
        gain = _gain(cell.gain.mean, panel, cell)
    return Words(value, f"(n={cell.summary.n}{missing})", cell.summary.mean, gain, paper, cell.is_best)


def _gain(mean: float, panel: Panel, cell: Cell | None = None) -> Gain:
    measure = panel.measure
    moved = direction(mean, measure.digits)
    tone = -moved if measure.lower_is_better else moved
    text = signed(mean, measure.digits) + (" %" if measure.relative else "")
    spoken = {1: "better", -1: "worse", 0: "equal"}[tone]
    if cell is not None and cell.gain is not None and cell.p is not None:
        deviation = number(cell.gain.deviation or 0.0, measure.digits)
        spoken += f"; gain {text} ± {deviation}, p = {cell.p:.2g}, paired t-test over {cell.gain.n} seeds"
    star = STAR if cell is not None and cell.is_significant else ""
    return Gain(text, tone, {1: "▲", -1: "▼", 0: ""}[moved], star, spoken)


def _average(average: Average, panel: Panel, n_columns: int) -> Words:
    paper = signed(average.paper_gain, 2) if average.paper_gain is not None else ""
    if average.gain is None:
        return Words("", "", None, None, paper, False)
    n = "" if average.n_columns == n_columns else f"({average.n_columns} of {n_columns} columns)"
    gain = _gain(average.gain, panel)
    return Words(gain.text, n, average.gain, gain, paper, False)


def _legend(table: TableResult, panel: Panel, baseline: str) -> list[str]:
    measure = panel.measure
    cells = [cell for row in panel.cells.values() for cell in row]
    better = "lower is better" if measure.lower_is_better else "higher is better"
    entries = [f"{measure.title} in {measure.unit}, {better}: mean ± deviation over n seeds."]
    if any(cell.summary is not None and cell.summary.n == 1 for cell in cells):
        entries.append("A single seed (n=1) has no deviation.")
    if any(cell.gain is not None for cell in cells):
        kind = "in per cent of it" if measure.relative else "on the same seeds"
        entries.append(f"▲ ▼ and the sign: difference to {baseline} {kind}; blue is better, red is worse.")
    if any(cell.is_best for cell in cells):
        entries.append(f"{BEST} bold: best of its column.")
    if any(cell.p is not None for cell in cells):
        entries.append(
            f"{STAR} p < {SIGNIFICANT:g}, two-sided paired t-test over n seeds, not corrected for the number of "
            "comparisons."
        )
    if any(cell.paper is not None for cell in cells):
        entries.append(
            "“paper”: the published figure, of its own network and schedule, and the gain that follows from it."
        )
        if any(column.reduced for column in table.columns):
            entries.append(
                "Columns that give a number of samples are smaller than the paper's setting: its figure there is of "
                "another scale, and only the sign of the gains compares."
            )
    if any(cell.is_open for cell in cells):
        entries.append(f"“{OPEN}”: asked for, and not finished.")
    return entries
