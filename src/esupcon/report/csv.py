"""The cells of a report's tables as CSV: one line a cell, numbers unrounded."""

from __future__ import annotations

import csv
import io

from esupcon.report.aggregate import Cell, Panel, TableResult
from esupcon.report.content import Content
from esupcon.report.words import printable

FIELDS = (
    "table",
    "profile",
    "measure",
    "unit",
    "dataset",
    "setting",
    "reduced",
    "method",
    "baseline",
    "n",
    "n_planned",
    "mean",
    "deviation",
    "gain",
    "gain_deviation",
    "gain_n",
    "p",
    "is_best",
    "paper",
    "paper_gain",
)
_FORMULA = ("=", "+", "-", "@")


def as_csv(content: Content) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for table in content.tables:
        for panel in table.panels:
            for method in table.methods:
                for index, cell in enumerate(panel.cells[method]):
                    writer.writerow(_line(table, panel, index, cell))
    return text.getvalue()


def defused(name: object) -> str:
    """A name that a spreadsheet would take for a formula gets an apostrophe in front, which it reads as “text”."""
    text = printable(name)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _line(table: TableResult, panel: Panel, index: int, cell: Cell) -> list[object]:
    column = table.columns[index]
    names = [table.name, table.profile, panel.measure.key, panel.measure.unit, column.dataset, column.setting]
    names += [column.reduced or "", cell.method, table.baseline]
    summary, gain = cell.summary, cell.gain
    numbers = [
        summary.n if summary else 0,
        cell.n_planned,
        summary.mean if summary else None,
        summary.deviation if summary else None,
        gain.mean if gain else None,
        gain.deviation if gain else None,
        gain.n if gain else 0,
        cell.p,
        int(cell.is_best),
        cell.paper,
        cell.paper_gain,
    ]
    return [*(defused(name) for name in names), *("" if one is None else _number(one) for one in numbers)]


def _number(value: float) -> str:
    """Ten digits: no noise of binary fractions, and more than any figure here is worth."""
    return str(value) if isinstance(value, int) else f"{value:.10g}"
