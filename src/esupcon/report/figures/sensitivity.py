"""Heat maps over the axes of a grid."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from esupcon.report.aggregate import Cell, Panel, TableResult
from esupcon.report.figures.grid import along_axis, axes_of, axis_words, grids_of, in_order
from esupcon.report.measures import STEP
from esupcon.report.sections import SEQUENTIAL, Card, Figure, Option, Section, Style, axis, ticks
from esupcon.report.words import dataset_title, method_title, printable


def sensitivity(tables: Sequence[TableResult], style: Mapping[str, Style]) -> Section:
    options = [option for table in tables if table.measure is not STEP for option in _of_grid(table, style)]
    return Section(
        "sensitivity",
        "Sensitivity to settings",
        "An even map or a level line is a method that forgives its settings; one dark square or a peak is a method "
        "that has to be tuned. All maps of a setting share one scale.",
        options,
        "No table here varies training settings, as esupcon reproduce sensitivity does.",
    )


def _of_grid(table: TableResult, style: Mapping[str, Style]) -> list[Option]:
    if len(axes_of(table.columns[0].setting, table.columns[0].grid)) < 2:
        return along_axis(table, style)
    return [
        option
        for (dataset, base), indices in grids_of(table).items()
        if (option := _heat_maps(table, dataset, base, indices)) is not None
    ]


def _heat_maps(table: TableResult, dataset: str, base: str, indices: Sequence[int]) -> Option | None:
    panel = table.panels[0]
    names = axes_of(table.columns[indices[0]].setting, table.columns[indices[0]].grid)
    values = {name: in_order({table.columns[i].grid[name] for i in indices}) for name in names}
    # The last axis with several values is taken out into maps of its own, so that two are left to span each.
    varied = [name for name in names if len(values[name]) > 1] or names
    spanning = (varied + [name for name in names if name not in varied])[:2]
    rest = [name for name in names if name not in spanning]
    at = {tuple(table.columns[i].grid[name] for name in names): i for i in indices}
    means = [cell.summary.mean for row in panel.cells.values() for i in indices if (cell := row[i]).summary is not None]
    if not means:
        return None
    cards = []
    for method in table.methods:
        for fixed in itertools.product(*(values[name] for name in rest)):
            point = dict(zip(rest, fixed, strict=True))
            cells = [
                [
                    _at(
                        panel,
                        method,
                        at.get(tuple({**point, spanning[0]: down, spanning[1]: across}[n] for n in names)),
                    )
                    for across in values[spanning[1]]
                ]
                for down in values[spanning[0]]
            ]
            if all(cell is None or cell.summary is None for row in cells for cell in row):
                continue
            title = ", ".join([method_title(method), *(f"{axis_words(n)} {v}" for n, v in point.items())])
            figure = _heat_map(cells, spanning, values, (min(means), max(means)), panel)
            cards.append(Card(title, figure, method))
    return Option(printable(f"{table.title}: {dataset_title(dataset)}{', ' + base if base else ''}"), cards)


def _at(panel: Panel, method: str, index: int | None) -> Cell | None:
    return None if index is None else panel.cells[method][index]


def _heat_map(
    cells: Sequence[Sequence[Cell | None]],
    spanning: Sequence[str],
    values: Mapping[str, Sequence[Any]],
    limits: tuple[float, float],
    panel: Panel,
) -> Figure:
    down, across = spanning
    known = [[cell.summary if cell is not None else None for cell in row] for row in cells]
    trace = {
        "type": "heatmap",
        "z": [[None if one is None else round(one.mean, 3) for one in row] for row in known],
        "x": list(range(len(values[across]))),
        "y": list(range(len(values[down]))),
        "text": [["" if one is None else f"{one.mean:.{panel.measure.digits}f}" for one in row] for row in known],
        "texttemplate": "%{text}",
        "customdata": [[0 if one is None else one.n for one in row] for row in known],
        "hovertemplate": "%{z:.2f} " + panel.measure.unit + ", n = %{customdata}<extra></extra>",
        "colorscale": SEQUENTIAL,
        "reversescale": panel.measure.lower_is_better,
        "zmin": limits[0],
        "zmax": limits[1] if limits[1] > limits[0] else limits[0] + 1,
        "xgap": 2,
        "ygap": 2,
        "showscale": False,  # every square says its figure
    }
    layout = {
        "xaxis": axis(axis_words(across), **ticks([str(v) for v in values[across]]), showgrid=False),
        "yaxis": axis(axis_words(down), **ticks([str(v) for v in values[down]]), showgrid=False),
    }
    return {"data": [trace], "layout": layout, "height": 260}
