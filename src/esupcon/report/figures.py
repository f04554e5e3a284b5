"""Draw the seven kinds of figures, as data for plotly's script: plain dictionaries, without plotly itself.

A section of the page has a select box; each of its options shows cards, and each card holds one figure. Colours named
`ink`, `surface` and `scale0` to `scale4` are those of the page, which differ between light and dark.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

from esupcon._console import printable
from esupcon.experiments.store import StoredRun
from esupcon.probability import CalibrationFigures
from esupcon.report.aggregate import (
    STEP,
    Panel,
    ResultTable,
    Summary,
    number_in,
    peak_megabytes,
    step_milliseconds,
    summary_of,
)
from esupcon.report.content import Confusion, Content, DrawnColumn
from esupcon.report.format import dataset_title, html_text, method_title
from esupcon.report.projection import MOST_CLASSES, PlaneMap, plane_maps

MOST_MAPS = 4  # columns with maps of embeddings: each map takes time to compute
MATRIX_CLASSES, WORST_CLASSES = 30, 20  # with more than 30 classes, a confusion matrix shows the 20 worst
NUMBERED_CLASSES = 12  # up to here its squares are large enough for numbers
CLASSES_SHOWN = 30  # up to here the accuracy of every class is drawn
CURVE_POINTS = 200


@dataclass(frozen=True)
class Card:
    """One figure with its title; a figure of a single `method` is hidden with that method."""

    title: str
    figure: dict[str, Any]
    method: str | None = None
    wide: bool = False


@dataclass(frozen=True)
class Option:
    """What one choice of the select box shows."""

    label: str
    cards: Sequence[Card]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Figures of one kind. `hint` explains what to look for; without options, `missing` explains why."""

    key: str
    title: str
    hint: str
    missing: str
    options: Sequence[Option]


@dataclass(frozen=True)
class Style:
    """How a method is drawn everywhere."""

    colour: str
    symbol: str
    dash: str


Styles = Mapping[str, Style]
Trace = dict[str, Any]
Figure = dict[str, Any]


def sections(content: Content) -> list[Section]:
    """Return the sections of the page in their order."""
    style = styles(content.methods)
    options = {
        "reliability": [option for column in content.drawn for option in reliability(column, style)],
        "curves": [option for column in content.drawn for option in training_curves(column, style)],
        "cost": cost(content.tables, content.drawn, style),
        "sensitivity": [option for table in content.tables for option in sensitivity(table, style)],
        "classes": [option for column in content.drawn for option in scarce_classes(column, style)],
        "embedding": embedding_maps(content.drawn),
        "confusion": [option for column in content.drawn for option in confusion_matrices(column)],
    }
    texts = tomllib.loads(resources.files("esupcon.report").joinpath("page", "sections.toml").read_text("utf-8"))
    return [Section(key, **texts[key], options=found) for key, found in options.items()]


# --- Styles, axes and traces -----------------------------------------------------------------------------------------

# Middle tones, visible on white and on near-black. Symbols and dashes differ too, so colour never decides alone.
_COLOURS = {
    **{"ce": "#7b8594", "supcon_ce": "#dd8438", "supcon_ce_n": "#b99a1e", "supcon_tt": "#2f9c77"},
    **{"spce": "#9a6bc4", "spce_m": "#d0608a", "esupcon": "#2f7fd6"},
}
_OTHER_COLOURS = ("#4aa3bf", "#8d7b5f", "#c65b4a", "#6f8f3a", "#5f6fbf")
_CLASS_COLOURS = (
    *("#2f7fd6", "#dd8438", "#2f9c77", "#c65b4a", "#9a6bc4"),
    *("#8d7b5f", "#d0608a", "#7b8594", "#a3a12e", "#4aa3bf"),
)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "hexagon", "bowtie")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """Return a style for each method."""
    others = itertools.cycle(_OTHER_COLOURS)
    looks = zip(methods, itertools.cycle(_SYMBOLS), itertools.cycle(_DASHES), strict=False)
    return {method: Style(_COLOURS.get(method) or next(others), symbol, dash) for method, symbol, dash in looks}


def rounded(values: Iterable[Any], digits: int = 4) -> list[Any]:
    """Return plain numbers; missing values and those that are not finite become gaps."""
    return [None if v is None or not math.isfinite(v) else round(float(v), digits) for v in values]


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": html_text(title)}, **more}


def _named_axis(title: str, names: Sequence[object], most: int = 16, **more: Any) -> dict[str, Any]:
    """Return an axis with names at 0, 1, 2, ...: equal names stay apart, and names are not read as numbers."""
    labels = [html_text(name, most) for name in names]
    ticks = {"type": "linear", "tickmode": "array", "tickvals": list(range(len(names))), "ticktext": labels}
    return _axis(title, **ticks, range=[-0.5, len(names) - 0.5], zeroline=False, **more)


def _figure(traces: Sequence[Trace], x: dict[str, Any], y: dict[str, Any], height: int, **layout: Any) -> Figure:
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y, **layout}, "height": height}


def _of_method(method: str) -> Trace:
    """Return the parts that name a trace and hide it with its method."""
    return {"name": html_text(method_title(method)), "meta": {"method": method}}


def _whiskers(summaries: Iterable[Summary | None], **more: Any) -> dict[str, Any]:
    deviations = rounded((one and one.deviation for one in summaries), 3)
    return {"type": "data", "array": deviations, "visible": any(deviations), "thickness": 1, **more}


def _lines(x: Sequence[Any], y: Iterable[Any], hover: str, **more: Any) -> Trace:
    shape = {"type": "scatter", "mode": "lines", "x": x, "y": rounded(y)}
    return {**shape, "hovertemplate": f"{hover}<extra></extra>", **more}


def _bars(x: Sequence[Any], y: Sequence[Any], hover: str, **more: Any) -> Trace:
    return {"type": "bar", "x": x, "y": y, "hovertemplate": f"%{{fullData.name}}{hover}<extra></extra>", **more}


def _points(points: Any, text: str | Sequence[str], hover: str, marker: Any, **more: Any) -> Trace:
    x, y = (rounded((point[i] for point in points), 3) for i in range(2))
    shape = {"type": "scatter", "mode": "markers", "x": x, "y": y, "text": text, "marker": marker}
    return {**shape, "hovertemplate": f"{hover}<extra></extra>", **more}


def _heat_map(z: Sequence[Sequence[Any]], text: Any, customdata: Any, hover: str, stops: Any, **more: Any) -> Trace:
    """Return a heat map of the page's five colours at the given stops from 0 to 1."""
    grid = {"type": "heatmap", "z": z, "x": list(range(len(z[0]))), "y": list(range(len(z))), "xgap": 1, "ygap": 1}
    words = {"text": text, "texttemplate": "%{text}", "customdata": customdata}
    scale = [[stop, f"scale{i}"] for i, stop in enumerate(stops)]
    return {
        **grid,
        **words,
        "hovertemplate": f"{hover}<extra></extra>",
        "colorscale": scale,
        "showscale": False,
        **more,
    }


# --- Reliability -----------------------------------------------------------------------------------------------------


def reliability(column: DrawnColumn, style: Styles) -> list[Option]:
    """Draw confidence against accuracy before and after calibration."""
    found = {method: run.result.calibration.paper for method, run in column.runs.items()}
    cards = [
        Card(method_title(method), _reliability_figure(figures, style[method].colour), method)
        for method, figures in found.items()
        if figures is not None
    ]
    return [Option(column.label, cards, column.note)] if cards else []


def _reliability_figure(figures: CalibrationFigures, colour: str) -> Figure:
    dotted = {"dash": "dot", "width": 1, "color": "#8a93a0"}
    traces = [_lines([0, 1], [0, 1], "", line=dotted, hoverinfo="skip", showlegend=False)]
    for when, temperature, ece, bins in (
        ("before", 1.0, figures.ece_before, figures.bins_before),
        ("after", figures.temperature, figures.ece_after, figures.bins_after),
    ):
        held = [i for i, n in enumerate(bins.counts) if n > 0]
        sizes = rounded((5 + 15 * math.sqrt(bins.counts[i] / sum(bins.counts)) for i in held), 1)
        open_mark = {"symbol": "circle-open", "line": {"width": 1.5}} if when == "before" else {}
        look = {"width": 1, "dash": "dash"} if when == "before" else {"width": 2, "dash": "solid"}
        trace = _lines(
            *(rounded(bins.confidence[i] for i in held), [bins.accuracy[i] for i in held]),
            f"{when}<br>confidence %{{x:.3f}}<br>accuracy %{{y:.3f}}<br>%{{customdata}} samples",
            mode="lines+markers",
            name=f"{when}, T = {temperature:.3g}: ECE {100 * ece:.1f} %",
            line={"color": colour, **look},
            marker={"color": colour, "size": sizes, "opacity": 0.9, **open_mark},
            customdata=[bins.counts[i] for i in held],
            cliponaxis=False,
        )
        traces.append(trace)
    x, y = (_axis(title, range=[0, 1.03], dtick=0.25) for title in ("confidence", "accuracy"))
    return _figure(traces, x, y, 320, showlegend=True)


# --- Training curves -------------------------------------------------------------------------------------------------


def training_curves(column: DrawnColumn, style: Styles) -> list[Option]:
    """Draw held-out accuracy and loss by epoch."""
    histories = {method: run.history for method, run in column.runs.items()}
    held_out = _curves(histories, "held_out_accuracy", 100.0, style, "held-out accuracy (%)")
    loss = _curves(histories, "loss", 1.0, style, "training loss (nats)")
    cards = [Card("Accuracy on held-out data", held_out)] if held_out else []
    cards += [Card("Training loss", loss)] if loss else []
    note = "" if held_out else " These runs held out no data, so their accuracy during training is unknown."
    return [Option(column.label, cards, column.note + note)] if cards else []


def _curves(histories: Mapping[str, Any], name: str, scale: float, style: Styles, title: str) -> Figure | None:
    traces = []
    for method, records in histories.items():
        xs: list[int | None] = []
        ys: list[float | None] = []
        stage = None
        places = np.linspace(0, len(records) - 1, min(len(records), CURVE_POINTS)).round().astype(int).tolist()
        for place in places:
            value = number_in(records[place], name)
            if value is not None:
                if ys and records[place].get("stage") != stage:  # a gap between stages
                    xs.append(None)
                    ys.append(None)
                stage = records[place].get("stage")
                xs.append(place + 1)
                ys.append(scale * value)
        if ys:
            look = {"color": style[method].colour, "dash": style[method].dash, "width": 2}
            mode = "lines+markers" if len(ys) < 3 else "lines"
            hover = "%{fullData.name}: %{y:.4g} after epoch %{x}"
            traces.append(_lines(xs, ys, hover, line=look, mode=mode, **_of_method(method)))
    return _figure(traces, _axis("epoch"), _axis(title), 360, showlegend=True) if traces else None


# --- Time and memory -------------------------------------------------------------------------------------------------


def cost(tables: Sequence[ResultTable], drawn: Sequence[DrawnColumn], style: Styles) -> list[Option]:
    """Draw time and memory: lines for tables that measure cost, bars for others."""
    options: list[Option] = []
    for table in filter(_measures_cost, tables):
        options += [option for grid in _grids(table) for option in _along_axis(table, *grid, style)]
    for column in drawn:
        if _measures_cost(column.table) and options:
            continue
        cards = []
        for title, unit, of in (
            ("Time of a training step", "milliseconds", step_milliseconds),
            ("Training time of a run", "seconds", lambda run: run.seconds),
            ("Peak memory", "megabytes", peak_megabytes),
        ):
            found = {m: [v for run in runs if (v := of(run)) is not None] for m, runs in column.all_runs.items()}
            means = {method: one for method, values in found.items() if (one := summary_of(values)) is not None}
            cards += [Card(title, _cost_bars(unit, means, style))] if means else []
        if cards:
            options.append(Option(column.label, cards, "Means over all seeds; whiskers are standard deviations."))
    return options


def _measures_cost(table: ResultTable) -> bool:
    return table.panels[0].measure is STEP


def _cost_bars(unit: str, means: Mapping[str, Summary], style: Styles) -> Figure:
    traces = []
    for method, one in means.items():
        title = html_text(method_title(method))
        trace = _bars(rounded([one.mean], 3), [title], f": %{{x:.4g}} {unit}, n = {one.n}", **_of_method(method))
        # The number stands at the start of its bar: the whisker is at the end.
        trace |= {"text": [f"{one.mean:,.4g}"], "textposition": "inside", "insidetextanchor": "start"}
        trace |= {"error_x": _whiskers([one], color="ink"), "marker": {"color": style[method].colour}}
        traces.append({**trace, "orientation": "h"})
    x, y = _axis(unit, rangemode="tozero"), _axis("", type="category", autorange="reversed")
    return _figure(traces, x, y, 90 + 32 * len(traces), showlegend=False, bargap=0.35)


# --- Sensitivity to settings -----------------------------------------------------------------------------------------


def sensitivity(table: ResultTable, style: Styles) -> list[Option]:
    """Draw a table that varies training settings: lines along one axis, heat maps over two or more."""
    options: list[Option] = []
    for label, axes, indices in _grids(table) if not _measures_cost(table) else ():
        options += (
            _heat_maps(table, label, axes, indices) if axes[1:] else _along_axis(table, label, axes, indices, style)
        )
    return options


def _grids(table: ResultTable) -> list[tuple[str, tuple[str, ...], list[int]]]:
    """Group the columns that differ only in their position on the axes; return label, axes and columns of each group.

    The axes are in the order in which the setting names them.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    for index, column in enumerate(table.columns):
        points = {f"{name}={value}": name for name, value in column.grid.items()}
        parts = column.setting.split(", ")
        axes = dict.fromkeys([*(points[part] for part in parts if part in points), *column.grid])
        base = ", ".join(part for part in parts if part not in points)
        groups.setdefault((column.dataset, base, tuple(axes)), []).append(index)
    return [
        (printable(", ".join(filter(None, [f"{table.title}: {dataset_title(dataset)}", base]))), axes, indices)
        for (dataset, base, axes), indices in groups.items()
        if axes
    ]


def _slices(table: ResultTable, indices: Sequence[int], axes: Sequence[str]) -> dict[tuple[Any, ...], list[int]]:
    """Group columns by their position on these axes: only positions that occur, however many axes a plan claims."""
    slices: dict[tuple[Any, ...], list[int]] = {}
    for index in indices:
        slices.setdefault(tuple(table.columns[index].grid[name] for name in axes), []).append(index)
    return slices


def _axis_title(name: str) -> str:
    return {"lr": "learning rate", "temperature": "temperature τ"}.get(name, name.replace("_", " "))


def _axis_values(table: ResultTable, indices: Sequence[int], name: str) -> list[Any]:
    values = {table.columns[i].grid[name] for i in indices}
    return sorted(values, key=lambda v: (0, v, "") if isinstance(v, int | float) else (1, 0, str(v)))


def _along_axis(
    table: ResultTable, label: str, axes: Sequence[str], indices: Sequence[int], style: Styles
) -> list[Option]:
    """Draw lines along the first axis of a grid; each position on the other axes is an option of its own."""
    options = []
    for point, members in _slices(table, indices, axes[1:]).items():
        rest = [f"{name}={value}" for name, value in zip(axes[1:], point, strict=True)]
        figures = [(panel.measure.title, _axis_lines(table, panel, axes[0], members, style)) for panel in table.panels]
        cards = [Card(title, figure) for title, figure in figures if figure is not None]
        options += [Option(printable(", ".join([label, *rest])), cards)] if cards else []
    return options


def _axis_lines(table: ResultTable, panel: Panel, name: str, indices: Sequence[int], style: Styles) -> Figure | None:
    values = _axis_values(table, indices, name)
    at = {table.columns[i].grid[name]: i for i in indices}
    traces = []
    for method in table.methods:
        found = [(place, panel.cells[method][at[value]].summary) for place, value in enumerate(values)]
        known = [(place, one) for place, one in found if one is not None]
        if known:
            look = style[method]
            trace = _lines(
                *([place for place, _ in known], [one.mean for _, one in known]),
                f"%{{fullData.name}}: %{{y:.4g}} {panel.measure.unit}",
                mode="lines+markers",
                error_y=_whiskers(one for _, one in known),
                line={"color": look.colour, "dash": look.dash},
                marker={"symbol": look.symbol, "size": 8, "color": look.colour},
            )
            traces.append(trace | _of_method(method))
    y = _axis(f"{panel.measure.title.lower()} ({panel.measure.unit})")
    y |= {"rangemode": "tozero"} if panel.measure.relative else {}
    return _figure(traces, _named_axis(_axis_title(name), values), y, 360, showlegend=True) if traces else None


def _heat_maps(table: ResultTable, label: str, axes: Sequence[str], indices: Sequence[int]) -> list[Option]:
    """Draw a map over two axes for each method and each position on the other axes."""
    panel = table.panels[0]
    down, across, *rest = sorted(
        axes, key=lambda name: len(_axis_values(table, indices, name)) == 1
    )  # varied ones first
    means = [one.mean for row in panel.cells.values() for i in indices if (one := row[i].summary) is not None]
    cards = []
    for method, (point, members) in itertools.product(table.methods, _slices(table, indices, rest).items()):
        at = {place: i for place, (i, *_) in _slices(table, members, (down, across)).items()}
        rows, columns = (_axis_values(table, members, name) for name in (down, across))
        places = [[at.get((row, column)) for column in columns] for row in rows]
        cells = [[None if i is None else panel.cells[method][i].summary for i in row] for row in places]
        if all(one is None for row in cells for one in row):
            continue
        title = [method_title(method), *(f"{_axis_title(n)} {v}" for n, v in zip(rest, point, strict=True))]
        trace = _heat_map(
            [[one and round(one.mean, 3) for one in row] for row in cells],
            [["" if one is None else f"{one.mean:.{panel.measure.digits}f}" for one in row] for row in cells],
            [[0 if one is None else one.n for one in row] for row in cells],
            *(f"%{{z:.2f}} {panel.measure.unit}, n = %{{customdata}}", (0, 0.25, 0.5, 0.75, 1)),
            reversescale=panel.measure.lower_is_better,
            zmin=min(means),
            zmax=max(means) if max(means) > min(means) else min(means) + 1,
        )
        x, y = (
            _named_axis(_axis_title(across), columns, showgrid=False),
            _named_axis(_axis_title(down), rows, showgrid=False),
        )
        cards.append(Card(", ".join(title), _figure([trace], x, y, 260), method))
    return [Option(label, cards)] if cards else []


# --- Scarce classes --------------------------------------------------------------------------------------------------


def scarce_classes(column: DrawnColumn, style: Styles) -> list[Option]:
    """Draw the accuracy of single classes for runs in which some classes were made scarce."""
    traces = []
    for method, runs in column.all_runs.items():
        means: tuple[list[float], list[float]] = ([], [])  # of the scarce classes, of the others
        for run in runs:
            scarce = _scarce(run)
            for side, wanted in zip(means, (True, False), strict=True):
                found = [a for k, a in enumerate(_class_accuracies(run)) if a is not None and (k in scarce) is wanted]
                side.extend([sum(found) / len(found)] if found and scarce else [])
        sides = [summary_of(side) for side in means]
        if any(sides):
            y = rounded((one and one.mean for one in sides), 2)
            more = {"error_y": _whiskers(sides, color="ink"), "marker": {"color": style[method].colour}}
            names = ["scarce classes", "other classes"]
            traces.append(_bars(names, y, ", %{x}: %{y:.1f} %", **more, **_of_method(method)))
    if not traces:
        return []
    y_axis = _axis("mean accuracy of the classes (%)", range=[0, 105])
    groups = _figure(traces, _axis("", type="category"), y_axis, 380, barmode="group", showlegend=True)
    cards = [Card("Scarce classes and other classes", groups)]
    note = "Means over all seeds; each seed draws its own scarce classes."
    if len(column.classes) <= CLASSES_SHOWN:
        cards.append(Card(f"Every class, seed {column.seed}", _single_classes(column, style), wide=True))
    else:
        note += f" Single classes are drawn for up to {CLASSES_SHOWN} classes."
    return [Option(column.label, cards, note)]


def _scarce(run: StoredRun) -> set[int]:
    return set(run.result.preparation.scenario.scarce_classes or ())


def _class_accuracies(run: StoredRun) -> list[float | None]:
    classes = run.result.metrics.test.per_class if run.result.metrics.test else ()
    return [None if not one.n or one.accuracy is None else 100 * one.accuracy for one in classes]


def _single_classes(column: DrawnColumn, style: Styles) -> Figure:
    names = column.classes
    scarce = {k for run in column.runs.values() for k in _scarce(run)}  # equal for all methods of one seed
    order = sorted(range(len(names)), key=lambda k: k not in scarce)
    traces = []
    for method, run in column.runs.items():
        accuracies = dict(enumerate(_class_accuracies(run)))
        known = [(place, k) for place, k in enumerate(order) if accuracies.get(k) is not None]
        look = {"symbol": style[method].symbol, "size": 9, "color": style[method].colour, "opacity": 0.85}
        points, text = [(place, accuracies[k]) for place, k in known], [html_text(names[k]) for _, k in known]
        traces.append(_points(points, text, "%{fullData.name}, %{text}: %{y:.1f} %", look, **_of_method(method)))
    shade = {"type": "rect", "xref": "x", "yref": "paper", "x0": -0.5, "x1": len(scarce) - 0.5, "y0": 0, "y1": 1}
    shade |= {"fillcolor": "#8a93a0", "opacity": 0.14, "line": {"width": 0}, "layer": "below"}
    x_axis = _named_axis("class", [f"{'◆ ' if k in scarce else ''}{names[k]}" for k in order], showgrid=False)
    y_axis = _axis("accuracy of the class (%)", range=[-4, 104])
    return _figure(traces, x_axis, y_axis, 400, shapes=[shade], showlegend=True)


# --- Map of the embedding --------------------------------------------------------------------------------------------


def embedding_maps(drawn: Sequence[DrawnColumn]) -> list[Option]:
    """Draw embeddings of test samples on a plane, with the prototypes among them."""
    columns = [column for column in drawn if column.embeddings]
    options = []
    for column in columns[:MOST_MAPS]:
        maps = zip(column.embeddings, plane_maps(list(column.embeddings.values())), strict=True)
        cards = [Card(f"{method_title(m)}, {one.method}", _map_figure(one, column.classes), m) for m, one in maps]
        few = f" The {MOST_CLASSES} classes with most samples are shown." if len(column.classes) > MOST_CLASSES else ""
        options.append(Option(column.label, cards, column.note + few))
    if len(columns) > MOST_MAPS:
        more = f" Maps are drawn for {MOST_MAPS} settings; {len(columns) - MOST_MAPS} others are left out."
        options[-1] = replace(options[-1], note=options[-1].note + more)
    return options


def _map_figure(drawn: PlaneMap, classes: Sequence[str]) -> Figure:
    kinds = np.unique(drawn.labels).tolist()
    colours = dict(zip(kinds, itertools.cycle(_CLASS_COLOURS), strict=False))
    groups = {k: drawn.points[drawn.labels == k] for k in kinds}
    traces = [
        _points(groups[k], html_text(classes[k]), "%{text}", {"size": 6, "opacity": 0.65, "color": colours[k]})
        for k in kinds
    ]
    if len(drawn.prototypes):
        star = {"symbol": "star", "size": 13, "color": list(colours.values()), "line": {"width": 1.5, "color": "ink"}}
        names = [html_text(classes[k]) for k in kinds]
        traces.append(_points(drawn.prototypes, names, "prototype of %{text}", star))
    places = _spread_labels([np.median(groups[k], axis=0) for k in kinds], drawn.points)
    frame = {"showarrow": False, "yshift": 15, "font": {"size": 11}, "bgcolor": "surface", "borderpad": 1}
    labels = [
        {**frame, "x": x, "y": y, "text": html_text(classes[k], 12), "bordercolor": colours[k], "opacity": 0.9}
        for k, (x, y) in zip(kinds, places, strict=True)
    ]
    bare = {"showticklabels": False, "zeroline": False, "showgrid": False}
    x_axis, y_axis = _axis("first direction", **bare), _axis("second direction", **bare)
    return _figure(traces, x_axis, y_axis, 300, showlegend=False, annotations=labels)


def _spread_labels(centres: Sequence[Any], points: Any) -> list[tuple[float, float]]:
    """Return places of labels, moved up until none covers another; a label is wide and low."""
    width, height = 0.24 * float(np.ptp(points[:, 0])), 0.075 * float(np.ptp(points[:, 1]))
    places = [(float(x), float(y)) for x, y in centres]
    taken: list[tuple[float, float]] = []
    for index in sorted(range(len(places)), key=lambda one: places[one][1]):
        x, y = places[index]
        for below in sorted(taken, key=lambda one: one[1]):
            if abs(below[0] - x) < width and abs(below[1] - y) < height:
                y = below[1] + height
        places[index] = (round(x, 3), round(y, 3))
        taken.append(places[index])
    return places


# --- Confusion matrix ------------------------------------------------------------------------------------------------


def confusion_matrices(column: DrawnColumn) -> list[Option]:
    """Draw confusion matrices; with many classes, those with most errors."""
    found = column.confusions.items()
    cards = [Card(method_title(method), _confusion_figure(one, column.classes), method) for method, one in found]
    few = f" The {WORST_CLASSES} classes with most errors are shown; “others” are the remaining classes."
    note = column.note + (few if len(column.classes) > MATRIX_CLASSES else "")
    return [Option(column.label, cards, note)] if cards else []


def _confusion_figure(given: Confusion, classes: Sequence[str]) -> Figure:
    """Count only the classes that are shown: a full matrix of 30,000 classes would take 7 GB."""
    k, (labels, predicted) = len(classes), given
    shown = np.arange(k)
    if k > MATRIX_CLASSES:
        errors = sum(np.bincount(one[labels != predicted], minlength=k) for one in (labels, predicted))
        shown = np.sort(np.argsort(-errors, kind="stable")[:WORST_CLASSES])
    n, place = len(shown), np.full(k, len(shown))
    place[shown] = np.arange(n)  # the other classes share one more row and column
    counts = np.bincount(place[labels] * (n + 1) + place[predicted], minlength=(n + 1) ** 2).reshape(n + 1, n + 1)[:n]
    names = [classes[i] for i in shown.tolist()]
    columns = [*names, "others"]
    with np.errstate(invalid="ignore"):  # a class without test samples has no shares
        shares = 100 * counts / counts.sum(axis=1, keepdims=True)
    if k == n:
        counts, shares, columns = counts[:, :n], shares[:, :n], names
    numbered = n <= NUMBERED_CLASSES
    bar = {"title": {"text": "%"}, "thickness": 8, "outlinewidth": 0, "tickvals": [0, 25, 50, 75, 100]}
    trace = _heat_map(
        [rounded(row, 1) for row in shares],
        [[f"{share:.0f}" if numbered and share >= 0.5 else "" for share in row] for row in shares],
        [
            [
                f"{html_text(one, 30)} predicted as<br>{html_text(other, 30)}: {c:,}"
                for other, c in zip(columns, row, strict=True)
            ]
            for one, row in zip(names, counts.tolist(), strict=True)
        ],
        "%{customdata} (%{z:.1f} %)",
        (0, 0.03, 0.1, 0.3, 1),  # stretched at its low end: errors are rare beside correct predictions
        **{"zmin": 0, "zmax": 100, "textfont": {"size": 10}},
        **({} if numbered else {"showscale": True, "colorbar": bar}),
    )
    x_axis = _named_axis("predicted class", columns, 12, tickangle=-45, showgrid=False)
    y_axis = _named_axis("true class", names, 12, showgrid=False)
    y_axis["range"] = y_axis["range"][::-1]  # the first class on top
    return _figure([trace], x_axis, y_axis, 330 if numbered else 400)
