"""A table that varies training settings: which columns are points of one grid, and lines along an axis of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esupcon.report.aggregate import Panel, TableResult
from esupcon.report.sections import Card, Option, Style, axis, plain, rounded, ticks
from esupcon.report.words import dataset_title, method_title, printable


def axes_of(setting: str, grid: Mapping[str, Any]) -> list[str]:
    """The names of the axes in the order in which the setting gives them."""
    parts = setting.split(", ")
    place = {name: parts.index(f"{name}={value}") for name, value in grid.items() if f"{name}={value}" in parts}
    return sorted(grid, key=lambda name: place.get(name, len(parts)))


def grids_of(table: TableResult) -> dict[tuple[str, str], list[int]]:
    """Columns that are points of one grid: those that differ in nothing but the place on the axes."""
    found: dict[tuple[str, str], list[int]] = {}
    for index, column in enumerate(table.columns):
        if not column.grid:
            continue
        points = {f"{name}={value}" for name, value in column.grid.items()}
        base = ", ".join(part for part in column.setting.split(", ") if part not in points)
        found.setdefault((column.dataset, base), []).append(index)
    return found


def along_axis(table: TableResult, style: Mapping[str, Style]) -> list[Option]:
    """Lines over the one axis of a grid; the further axes, where there are any, make options of their own."""
    groups: dict[tuple[str, str], list[int]] = {}
    for (dataset, base), indices in grids_of(table).items():
        for index in indices:
            column = table.columns[index]
            first, *others = axes_of(column.setting, column.grid)
            rest = ", ".join(filter(None, [base, *(f"{name}={column.grid[name]}" for name in others)]))
            groups.setdefault((dataset, f"{rest}\n{first}"), []).append(index)
    options = []
    for (dataset, where), indices in groups.items():
        rest, name = where.split("\n")
        cards = [card for panel in table.panels if (card := _lines(table, panel, name, indices, style)) is not None]
        if cards:
            label = printable(f"{table.title}: {dataset_title(dataset)}{', ' + rest if rest else ''}")
            options.append(Option(label, cards))
    return options


def _lines(
    table: TableResult, panel: Panel, name: str, indices: Sequence[int], style: Mapping[str, Style]
) -> Card | None:
    values = in_order({table.columns[i].grid[name] for i in indices})
    at = {table.columns[i].grid[name]: i for i in indices}
    traces = []
    for method in table.methods:
        known = [(place, panel.cells[method][at[value]].summary) for place, value in enumerate(values)]
        drawn = [(place, one) for place, one in known if one is not None]
        if drawn:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "x": [place for place, _ in drawn],
                    "y": rounded([one.mean for _, one in drawn], 3),
                    "error_y": {
                        "type": "data",
                        "array": rounded([one.deviation for _, one in drawn], 3),
                        "visible": any(one.deviation is not None for _, one in drawn),
                    },
                    "name": plain(method_title(method)),
                    "meta": {"method": method},
                    "line": {"color": style[method].colour, "dash": style[method].dash},
                    "marker": {"symbol": style[method].symbol, "size": 8, "color": style[method].colour},
                    "hovertemplate": "%{fullData.name}: %{y:.4g} " + panel.measure.unit + "<extra></extra>",
                }
            )
    if not traces:
        return None
    layout = {
        "xaxis": axis(axis_words(name), **ticks([str(v) for v in values])),
        "yaxis": axis(
            f"{panel.measure.title.lower()} ({panel.measure.unit})",
            **({"rangemode": "tozero"} if panel.measure.relative else {}),
        ),
        "showlegend": True,
    }
    return Card(panel.measure.title, {"data": traces, "layout": layout, "height": 360})


def axis_words(name: str) -> str:
    return {"lr": "learning rate", "temperature": "temperature τ"}.get(name, name.replace("_", " "))


def in_order(values: set[Any]) -> list[Any]:
    numbers = sorted(value for value in values if isinstance(value, int | float))
    return [*numbers, *sorted((value for value in values if not isinstance(value, int | float)), key=str)]
