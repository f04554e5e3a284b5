"""Draw the seven kinds of figures, as data for plotly's script: plain dictionaries, without plotly itself.

A section of the page has a select box; each of its options shows cards, and each card holds one figure. Colours named
`ink`, `surface` and `scale0` to `scale4` are those of the page, which differ between light and dark.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from esupcon._console import printable
from esupcon.report._interim import StoredRun
from esupcon.report.aggregate import (
    STEP,
    Panel,
    ResultTable,
    Summary,
    peak_megabytes,
    step_milliseconds,
    summary_of,
)
from esupcon.report.content import MOST_COLUMNS, Confusion, Content, DrawnColumn
from esupcon.report.format import dataset_title, html_text, method_title
from esupcon.report.projection import MOST_CLASSES, PlaneMap, plane_maps

MOST_MAPS = 4  # columns with maps of embeddings: each map takes time to compute
MATRIX_CLASSES, WORST_CLASSES, NUMBERED_CLASSES = 30, 20, 12  # classes in a confusion matrix; 12 squares hold numbers
CLASSES_SHOWN = 30  # classes up to which each is drawn
CURVE_POINTS = 200

Trace = dict[str, Any]
Figure = dict[str, Any]


@dataclass(frozen=True)
class Card:
    """One figure with its title; a figure of a single `method` is hidden with that method."""

    title: str
    figure: Figure
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
    options: Sequence[Option]
    missing: str


def sections(content: Content) -> list[Section]:
    """Return the sections of the page in their order."""
    style = styles(content.methods)
    return [
        reliability(content.drawn, style),
        training_curves(content.drawn, style),
        cost(content.tables, content.drawn, style),
        sensitivity(content.tables, style),
        scarce_classes(content.drawn, style),
        embedding_maps(content.drawn),
        confusion_matrices(content.drawn),
    ]


def not_drawn_note(content: Content) -> str:
    """Explain which settings have no figures of single runs; empty if all have."""
    if not content.n_not_drawn:
        return ""
    return (
        f"Figures of single runs show {MOST_COLUMNS} settings, some of every table; {content.n_not_drawn} others are "
        "left out. Select tables with --table to see theirs."
    )


# --- Styles, axes and traces -----------------------------------------------------------------------------------------

# Middle tones, visible on white and on near-black. Symbols and dashes differ too, so colour never decides alone.
_COLOURS = {
    "ce": "#7b8594",
    "supcon_ce": "#dd8438",
    "supcon_ce_n": "#b99a1e",
    "supcon_tt": "#2f9c77",
    "spce": "#9a6bc4",
    "spce_m": "#d0608a",
    "esupcon": "#2f7fd6",
}
_OTHER_COLOURS = ("#4aa3bf", "#8d7b5f", "#c65b4a", "#6f8f3a", "#5f6fbf")
_CLASS_COLOURS = (
    *("#2f7fd6", "#dd8438", "#2f9c77", "#c65b4a", "#9a6bc4"),
    *("#8d7b5f", "#d0608a", "#7b8594", "#a3a12e", "#4aa3bf"),
)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "hexagon", "bowtie")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SCALE = [[0.0, "scale0"], [0.25, "scale1"], [0.5, "scale2"], [0.75, "scale3"], [1.0, "scale4"]]
# Errors are rare beside correct predictions: this scale is stretched at its low end so that they are visible.
_STRETCHED_SCALE = [[0.0, "scale0"], [0.03, "scale1"], [0.1, "scale2"], [0.3, "scale3"], [1.0, "scale4"]]


@dataclass(frozen=True)
class Style:
    """How a method is drawn everywhere."""

    colour: str
    symbol: str
    dash: str


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """Return a style for each method."""
    others = itertools.cycle(_OTHER_COLOURS)
    return {
        method: Style(_COLOURS.get(method) or next(others), _SYMBOLS[i % len(_SYMBOLS)], _DASHES[i % len(_DASHES)])
        for i, method in enumerate(methods)
    }


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


def _figure(
    traces: Sequence[Trace], xaxis: dict[str, Any], yaxis: dict[str, Any], height: int, **layout: Any
) -> Figure:
    return {"data": list(traces), "layout": {"xaxis": xaxis, "yaxis": yaxis, **layout}, "height": height}


def _of_method(method: str) -> Trace:
    """Return the parts that name a trace and hide it with its method."""
    return {"name": html_text(method_title(method)), "meta": {"method": method}}


def _whiskers(summaries: Iterable[Summary | None]) -> dict[str, Any]:
    deviations = [None if one is None else one.deviation for one in summaries]
    visible = any(one is not None for one in deviations)
    return {"type": "data", "array": rounded(deviations, 3), "visible": visible, "thickness": 1}


def _lines(method: str, style: Style, x: Sequence[Any], y: Iterable[Any], hover: str, **more: Any) -> Trace:
    look = {"color": style.colour, "dash": style.dash, "width": 2}
    return {
        **{"type": "scatter", "mode": "lines", "x": list(x), "y": rounded(y), "line": look},
        **{"hovertemplate": f"%{{fullData.name}}: {hover}<extra></extra>", **_of_method(method), **more},
    }


def _bars(method: str, style: Style, x: Sequence[Any], y: Sequence[Any], hover: str, **more: Any) -> Trace:
    return {
        **{"type": "bar", "x": list(x), "y": list(y), "marker": {"color": style.colour}},
        **{"hovertemplate": f"%{{fullData.name}}{hover}<extra></extra>", **_of_method(method), **more},
    }


def _points(
    x: Iterable[Any], y: Iterable[Any], text: str | Sequence[str], hover: str, marker: Any, **more: Any
) -> Trace:
    return {
        **{"type": "scatter", "mode": "markers", "x": rounded(x, 3), "y": rounded(y, 3), "text": text},
        **{"marker": marker, "hovertemplate": f"{hover}<extra></extra>", **more},
    }


def _heat_map(z: Sequence[Sequence[Any]], text: Any, customdata: Any, hover: str, **more: Any) -> Trace:
    return {
        **{"type": "heatmap", "z": z, "x": list(range(len(z[0]))), "y": list(range(len(z))), "xgap": 1, "ygap": 1},
        **{"text": text, "texttemplate": "%{text}", "customdata": customdata},
        **{"hovertemplate": f"{hover}<extra></extra>", "showscale": False, **more},
    }


# --- Reliability -----------------------------------------------------------------------------------------------------


def reliability(drawn: Sequence[DrawnColumn], style: Mapping[str, Style]) -> Section:
    """Draw confidence against accuracy before and after calibration."""
    options = []
    for column in drawn:
        found = {method: run.result.calibration.paper for method, run in column.runs.items()}
        cards = [
            Card(method_title(method), _reliability_figure(figures, style[method]), method)
            for method, figures in found.items()
            if figures is not None
        ]
        options += [Option(column.label, cards, column.note)] if cards else []
    return Section(
        "reliability",
        "Reliability before and after calibration",
        "A point on the diagonal is calibrated: of the predictions made with confidence 0.8, 80 % are correct. Below "
        "the diagonal the classifier is overconfident. Larger marks hold more samples. The temperature T is fitted on "
        "a stratified fifth of the test set; both curves show the other four fifths.",
        options,
        "No run has enough test predictions to be split for calibration.",
    )


def _reliability_figure(figures: Any, style: Style) -> Figure:
    diagonal = {"dash": "dot", "width": 1, "color": "#8a93a0"}
    line = {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "line": diagonal}
    traces = [{**line, "hoverinfo": "skip", "showlegend": False}]
    for when, temperature, ece, bins in (
        ("before", 1.0, figures.ece_before, figures.bins_before),
        ("after", figures.temperature, figures.ece_after, figures.bins_after),
    ):
        held = [i for i, n in enumerate(bins.counts) if n > 0]
        share = np.array([bins.counts[i] for i in held]) / sum(bins.counts)
        after = when == "after"
        symbol = {"symbol": "circle" if after else "circle-open", "line": {"width": 0 if after else 1.5}}
        hover = f"{when}: confidence %{{x:.3f}}, accuracy %{{y:.3f}}, %{{customdata}} samples"
        traces.append(
            _points(
                *([bins.confidence[i] for i in held], [bins.accuracy[i] for i in held], "", hover),
                {**symbol, "size": rounded(5 + 15 * np.sqrt(share), 1), "color": style.colour, "opacity": 0.9},
                mode="lines+markers",
                line={"color": style.colour, "width": 2 if after else 1, "dash": "solid" if after else "dash"},
                name=f"{when}, T = {temperature:.3g}: ECE {100 * ece:.1f} %",
                customdata=[int(bins.counts[i]) for i in held],
                cliponaxis=False,
            )
        )
    x, y = (_axis(title, range=[0, 1.03], dtick=0.25) for title in ("confidence", "accuracy"))
    return _figure(traces, x, y, 320, showlegend=True)


# --- Training curves -------------------------------------------------------------------------------------------------


def training_curves(drawn: Sequence[DrawnColumn], style: Mapping[str, Style]) -> Section:
    """Draw held-out accuracy and loss by epoch."""
    options = []
    for column in drawn:
        histories = {method: run.history for method, run in column.runs.items()}
        held_out = _curves(histories, "held_out_accuracy", 100.0, style, "held-out accuracy (%)")
        loss = _curves(histories, "loss", 1.0, style, "training loss (nats)")
        titles = ("Accuracy on held-out data", held_out), ("Training loss", loss)
        cards = [Card(title, figure) for title, figure in titles if figure is not None]
        if cards:
            note = "" if held_out else " These runs held out no data, so their accuracy during training is unknown."
            options.append(Option(column.label, cards, column.note + note))
    return Section(
        "curves",
        "Training curves",
        "A curve that still rises at the end asks for longer training; one that falls again, for a shorter one. Losses "
        "of different methods are different quantities: compare their shapes, not their heights. A gap separates the "
        "two stages of a method.",
        options,
        "No run has a history of its epochs.",
    )


def _curves(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    name: str,
    scale: float,
    style: Mapping[str, Style],
    title: str,
) -> Figure | None:
    traces = []
    for method, records in histories.items():
        xs: list[int | None] = []
        ys: list[float | None] = []
        places = np.unique(np.linspace(0, len(records) - 1, min(len(records), CURVE_POINTS)).round().astype(int))
        stage = records[0].get("stage") if records else None
        for place in places.tolist():
            value = records[place].get(name)
            if isinstance(value, int | float):
                if records[place].get("stage") != stage:
                    xs.append(None)
                    ys.append(None)
                stage = records[place].get("stage")
                xs.append(place + 1)
                ys.append(scale * value)
        if ys:
            mode = "lines+markers" if len(ys) < 3 else "lines"
            traces.append(_lines(method, style[method], xs, ys, "%{y:.4g} after epoch %{x}", mode=mode))
    return _figure(traces, _axis("epoch"), _axis(title), 360, showlegend=True) if traces else None


# --- Time and memory -------------------------------------------------------------------------------------------------


def cost(tables: Sequence[ResultTable], drawn: Sequence[DrawnColumn], style: Mapping[str, Style]) -> Section:
    """Draw time and memory: lines for tables that measure cost, bars for others."""
    options = [option for table in tables if _measures_cost(table) for option in _along_axis(table, style)]
    measured: tuple[tuple[str, str, Callable[[StoredRun], float | None]], ...] = (
        ("Time of a training step", "milliseconds", step_milliseconds),
        ("Training time of a run", "seconds", lambda run: run.seconds),
        ("Peak memory", "megabytes", peak_megabytes),
    )
    for column in drawn:
        if _measures_cost(column.table) and options:
            continue
        found = [(title, _cost_bars(unit, of, column.all_runs, style)) for title, unit, of in measured]
        cards = [Card(title, figure) for title, figure in found if figure is not None]
        if cards:
            options.append(Option(column.label, cards, "Means over all seeds; whiskers are standard deviations."))
    return Section(
        "cost",
        "Time and memory",
        "Shorter bars and lower lines are cheaper. Times depend on the machine and on how many processes shared it: "
        "compare methods with each other, not with other machines.",
        options,
        "No run has a record of its time and memory.",
    )


def _measures_cost(table: ResultTable) -> bool:
    return table.panels[0].measure is STEP


def _cost_bars(
    unit: str,
    of: Callable[[StoredRun], float | None],
    runs: Mapping[str, Sequence[StoredRun]],
    style: Mapping[str, Style],
) -> Figure | None:
    values = {method: [v for run in group if (v := of(run)) is not None] for method, group in runs.items()}
    traces = [
        _bars(
            *(method, style[method], rounded([one.mean], 3), [html_text(method_title(method))]),
            f": %{{x:.4g}} {unit}, n = {one.n}",
            orientation="h",
            error_x={**_whiskers([one]), "color": "ink"},
            text=[f"{one.mean:,.4g}"],
            textposition="inside",
            insidetextanchor="start",  # the whisker is at the other end
        )
        for method, group in values.items()
        if (one := summary_of(group)) is not None
    ]
    if not traces:
        return None
    y = _axis("", type="category", autorange="reversed")
    return _figure(traces, _axis(unit, rangemode="tozero"), y, 90 + 32 * len(traces), showlegend=False, bargap=0.35)


# --- Sensitivity to settings -----------------------------------------------------------------------------------------


def sensitivity(tables: Sequence[ResultTable], style: Mapping[str, Style]) -> Section:
    """Draw tables that vary training settings: lines along one axis, heat maps over two or more."""
    options: list[Option] = []
    for table in tables:
        if not _measures_cost(table):
            several = max(len(column.grid) for column in table.columns) > 1
            options += _heat_maps(table) if several else _along_axis(table, style)
    return Section(
        "sensitivity",
        "Sensitivity to settings",
        "An even map or a level line means that the method is insensitive to the setting; one dark square or a peak, "
        "that it has to be tuned. All maps of a setting share one scale.",
        options,
        "No table varies training settings; esupcon reproduce sensitivity does.",
    )


def _grids(table: ResultTable) -> dict[tuple[str, str], list[int]]:
    """Group the columns that differ only in their position on the axes, by data set and remaining setting."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, column in enumerate(table.columns):
        if column.grid:
            points = {f"{name}={value}" for name, value in column.grid.items()}
            base = ", ".join(part for part in column.setting.split(", ") if part not in points)
            groups.setdefault((column.dataset, base), []).append(index)
    return groups


def _axes(table: ResultTable, index: int) -> list[str]:
    """Return the names of the axes in the order in which the setting gives them."""
    column = table.columns[index]
    parts = column.setting.split(", ")
    place = {name: parts.index(f"{name}={v}") for name, v in column.grid.items() if f"{name}={v}" in parts}
    return sorted(column.grid, key=lambda name: place.get(name, len(parts)))


def _axis_title(name: str) -> str:
    return {"lr": "learning rate", "temperature": "temperature τ"}.get(name, name.replace("_", " "))


def _axis_values(table: ResultTable, indices: Sequence[int], name: str) -> list[Any]:
    values = {table.columns[i].grid.get(name) for i in indices}
    return sorted(values, key=lambda v: (0, v, "") if isinstance(v, int | float) else (1, 0, str(v)))


def _label(table: ResultTable, dataset: str, rest: str) -> str:
    return printable(f"{table.title}: {dataset_title(dataset)}{', ' + rest if rest else ''}")


def _along_axis(table: ResultTable, style: Mapping[str, Style]) -> list[Option]:
    """Draw lines along the first axis of a grid; each point on the other axes is an option of its own."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for (dataset, base), indices in _grids(table).items():
        for index in indices:
            first, *others = _axes(table, index)
            rest = ", ".join(filter(None, [base, *(f"{name}={table.columns[index].grid[name]}" for name in others)]))
            groups.setdefault((dataset, rest, first), []).append(index)
    options = []
    for (dataset, rest, name), indices in groups.items():
        figures = [(panel.measure.title, _axis_lines(table, panel, name, indices, style)) for panel in table.panels]
        cards = [Card(title, figure) for title, figure in figures if figure is not None]
        options += [Option(_label(table, dataset, rest), cards)] if cards else []
    return options


def _axis_lines(
    table: ResultTable, panel: Panel, name: str, indices: Sequence[int], style: Mapping[str, Style]
) -> Figure | None:
    values = _axis_values(table, indices, name)
    at = {table.columns[i].grid[name]: i for i in indices}
    traces = []
    for method in table.methods:
        found = [(place, panel.cells[method][at[value]].summary) for place, value in enumerate(values)]
        known = [(place, one) for place, one in found if one is not None]
        if known:
            look = style[method]
            traces.append(
                _lines(
                    *(method, look, [place for place, _ in known], [one.mean for _, one in known]),
                    f"%{{y:.4g}} {panel.measure.unit}",
                    mode="lines+markers",
                    error_y=_whiskers(one for _, one in known),
                    marker={"symbol": look.symbol, "size": 8, "color": look.colour},
                )
            )
    y = _axis(f"{panel.measure.title.lower()} ({panel.measure.unit})")
    y |= {"rangemode": "tozero"} if panel.measure.relative else {}
    return _figure(traces, _named_axis(_axis_title(name), values), y, 360, showlegend=True) if traces else None


def _heat_maps(table: ResultTable) -> list[Option]:
    """Draw a map over two axes for each method and each point on the other axes."""
    panel, options = table.panels[0], []
    for (dataset, base), indices in _grids(table).items():
        names = _axes(table, indices[0])
        values = {name: _axis_values(table, indices, name) for name in names}
        down, across, *rest = sorted(names, key=lambda name: len(values[name]) == 1)  # axes that vary come first
        at = {tuple(table.columns[i].grid.get(name) for name in (down, across, *rest)): i for i in indices}
        means = [one.mean for row in panel.cells.values() for i in indices if (one := row[i].summary) is not None]
        cards = []
        for method, fixed in itertools.product(table.methods, itertools.product(*(values[name] for name in rest))):
            places = [[at.get((i, j, *fixed)) for j in values[across]] for i in values[down]]
            cells = [[None if p is None else panel.cells[method][p].summary for p in row] for row in places]
            if all(one is None for row in cells for one in row):
                continue
            title = [method_title(method), *(f"{_axis_title(n)} {v}" for n, v in zip(rest, fixed, strict=True))]
            trace = _heat_map(
                [[None if one is None else round(one.mean, 3) for one in row] for row in cells],
                [["" if one is None else f"{one.mean:.{panel.measure.digits}f}" for one in row] for row in cells],
                [[0 if one is None else one.n for one in row] for row in cells],
                f"%{{z:.2f}} {panel.measure.unit}, n = %{{customdata}}",
                colorscale=_SCALE,
                reversescale=panel.measure.lower_is_better,
                zmin=min(means),
                zmax=max(means) if max(means) > min(means) else min(means) + 1,
            )
            x, y = (_named_axis(_axis_title(n), values[n], showgrid=False) for n in (across, down))
            cards.append(Card(", ".join(title), _figure([trace], x, y, 260), method))
        options += [Option(_label(table, dataset, base), cards)] if cards else []
    return options


# --- Scarce classes --------------------------------------------------------------------------------------------------


def scarce_classes(drawn: Sequence[DrawnColumn], style: Mapping[str, Style]) -> Section:
    """Draw the accuracy of single classes for runs in which some classes were made scarce."""
    options = []
    for column in drawn:
        groups = _class_groups(column, style)
        if groups is None:
            continue
        cards = [Card("Scarce classes and other classes", groups)]
        note = "Means over all seeds; each seed draws its own scarce classes."
        single = _single_classes(column, style)
        if single is not None:
            cards.append(Card(f"Every class, seed {column.seed}", single, wide=True))
        else:
            note += f" Single classes are drawn for up to {CLASSES_SHOWN} classes."
        options.append(Option(column.label, cards, note))
    return Section(
        "classes",
        "Scarce classes",
        "The overall accuracy hides what happens to rare classes: compare how far each method drops from the other "
        "classes to the scarce ones, which are shaded and marked ◆.",
        options,
        "No run made classes scarce; esupcon reproduce imbalanced does.",
    )


def _scarce(run: StoredRun) -> set[int]:
    return set(run.result.preparation.scenario.scarce_classes or ())


def _class_accuracies(run: StoredRun) -> list[float | None]:
    test = run.result.metrics.test
    return (
        [100 * one.accuracy if one.n and one.accuracy is not None else None for one in test.per_class] if test else []
    )


def _class_groups(column: DrawnColumn, style: Mapping[str, Style]) -> Figure | None:
    traces = []
    for method, runs in column.all_runs.items():
        means: tuple[list[float], list[float]] = ([], [])
        for run in runs:
            if scarce := _scarce(run):
                for side, wanted in zip(means, (True, False), strict=True):
                    found = [
                        a for k, a in enumerate(_class_accuracies(run)) if a is not None and (k in scarce) is wanted
                    ]
                    side.extend([sum(found) / len(found)] if found else [])
        sides = [summary_of(side) for side in means]
        if any(sides):
            names, y = ["scarce classes", "other classes"], rounded((one and one.mean for one in sides), 2)
            whiskers = {**_whiskers(sides), "color": "ink"}
            traces.append(_bars(method, style[method], names, y, ", %{x}: %{y:.1f} %", error_y=whiskers))
    if not traces:
        return None
    y_axis = _axis("mean accuracy of the classes (%)", range=[0, 105])
    return _figure(traces, _axis("", type="category"), y_axis, 380, barmode="group", showlegend=True)


def _single_classes(column: DrawnColumn, style: Mapping[str, Style]) -> Figure | None:
    scarce = next((found for run in column.runs.values() if (found := _scarce(run))), set())
    by_method = {method: _class_accuracies(run) for method, run in column.runs.items()}
    names = column.classes
    if not scarce or not 0 < len(names) <= CLASSES_SHOWN:
        return None
    order = sorted(range(len(names)), key=lambda k: k not in scarce)
    traces = []
    for method, values in by_method.items():
        known = [
            (order.index(k), value, html_text(names[k]))
            for k, value in enumerate(values[: len(names)])
            if value is not None
        ]
        look = {"symbol": style[method].symbol, "size": 9, "color": style[method].colour, "opacity": 0.85}
        x, y, text = ([one[i] for one in known] for i in range(3))
        hover = "%{fullData.name}, %{text}: %{y:.1f} %"
        traces.append(_points(x, y, [str(one) for one in text], hover, look, **_of_method(method)))
    shade = {"type": "rect", "xref": "x", "yref": "paper", "x0": -0.5, "x1": len(scarce) - 0.5, "y0": 0, "y1": 1}
    shade |= {"fillcolor": "#8a93a0", "opacity": 0.14, "line": {"width": 0}, "layer": "below"}
    x_axis = _named_axis("class", [f"{'◆ ' if k in scarce else ''}{names[k]}" for k in order], showgrid=False)
    y_axis = _axis("accuracy of the class (%)", range=[-4, 104])
    return _figure(traces, x_axis, y_axis, 400, shapes=[shade], showlegend=True)


# --- Map of the embedding --------------------------------------------------------------------------------------------


def embedding_maps(drawn: Sequence[DrawnColumn]) -> Section:
    """Draw embeddings of test samples on a plane, with the prototypes among them."""
    having = [column for column in drawn if column.embeddings]
    options = []
    for column in having[:MOST_MAPS]:
        maps = plane_maps(list(column.embeddings.values()))
        cards = [
            Card(f"{method_title(method)}, {one.method}", _map_figure(one, column.classes), method)
            for method, one in zip(column.embeddings, maps, strict=True)
        ]
        note = f" The {MOST_CLASSES} classes with most samples are shown." if len(column.classes) > MOST_CLASSES else ""
        options.append(Option(column.label, cards, column.note + note))
    if len(having) > MOST_MAPS:
        more = f" Maps are drawn for {MOST_MAPS} settings; {len(having) - MOST_MAPS} others are left out."
        options[-1] = replace(options[-1], note=options[-1].note + more)
    return Section(
        "embedding",
        "Map of the embedding",
        "Learnt classes form islands, and a star, the prototype of a class, lies on its own island. The maps show test "
        "samples. They are made by principal components if these keep the classes apart, otherwise by t-SNE, where "
        "distances between islands mean little. The axes have no unit.",
        options,
        "No run has stored embeddings.",
    )


def _map_figure(drawn: PlaneMap, classes: Sequence[str]) -> Figure:
    kinds = np.unique(drawn.labels).tolist()
    colours = dict(zip(kinds, itertools.cycle(_CLASS_COLOURS), strict=False))
    traces, centres = [], []
    for k in kinds:
        points = drawn.points[drawn.labels == k]
        centres.append(np.median(points, axis=0))
        look = {"size": 6, "opacity": 0.65, "color": colours[k]}
        traces.append(_points(points[:, 0], points[:, 1], html_text(classes[k]), "%{text}", look))
    if len(drawn.prototypes):
        look = {
            "symbol": "star",
            "size": 13,
            "color": [colours[k] for k in kinds],
            "line": {"width": 1.5, "color": "ink"},
        }
        names = [html_text(classes[k]) for k in kinds]
        traces.append(_points(drawn.prototypes[:, 0], drawn.prototypes[:, 1], names, "prototype of %{text}", look))
    frame = {
        "showarrow": False,
        "yshift": 15,
        "font": {"size": 11},
        "bgcolor": "surface",
        "borderpad": 1,
        "opacity": 0.9,
    }
    labels = [
        {**frame, "x": x, "y": y, "text": html_text(classes[k], 12), "bordercolor": colours[k]}
        for k, (x, y) in zip(kinds, _spread_labels(centres, drawn.points), strict=True)
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


def confusion_matrices(drawn: Sequence[DrawnColumn]) -> Section:
    """Draw confusion matrices; with many classes, those with most errors."""
    options = []
    for column in drawn:
        cards = [
            Card(method_title(method), _confusion_figure(one, column.classes), method)
            for method, one in column.confusions.items()
        ]
        if cards:
            note = f" The {WORST_CLASSES} classes with most errors are shown; “others” are the remaining classes."
            options.append(
                Option(column.label, cards, column.note + (note if len(column.classes) > MATRIX_CLASSES else ""))
            )
    return Section(
        "confusion",
        "Confusion matrix",
        "Each row is a true class and shows, in per cent of its test samples, which classes were predicted: the "
        "diagonal is correct. Marks away from it are the pairs worth looking at.",
        options,
        "No run has stored predictions.",
    )


def _confusion_figure(given: Confusion, classes: Sequence[str]) -> Figure:
    """Count only the classes that are shown: a full matrix of 30,000 classes would take 7 GB."""
    k = given.n_classes
    totals = np.bincount(given.labels, minlength=k)
    shown, names = np.arange(k), list(classes)
    if k > MATRIX_CLASSES:
        wrong = given.labels != given.predicted
        errors = sum(np.bincount(one[wrong], minlength=k) for one in (given.labels, given.predicted))
        shown = np.sort(np.argsort(-errors, kind="stable")[:WORST_CLASSES])
        names = [classes[i] for i in shown.tolist()]
    n, place = len(shown), np.full(k, -1)
    place[shown] = np.arange(n)
    true, predicted = place[given.labels], place[given.predicted]
    both = (true >= 0) & (predicted >= 0)
    counts = np.bincount(true[both] * n + predicted[both], minlength=n * n).reshape(n, n)
    columns = names
    if k > n:
        counts, columns = np.column_stack([counts, totals[shown] - counts.sum(axis=1)]), [*names, "others"]
    with np.errstate(invalid="ignore"):  # a class without test samples has no shares
        shares = 100 * counts / totals[shown][:, None]
    numbered = n <= NUMBERED_CLASSES
    bar = {"title": {"text": "%"}, "thickness": 8, "outlinewidth": 0, "tickvals": [0, 25, 50, 75, 100]}
    trace = _heat_map(
        [rounded(row, 1) for row in shares],
        [[f"{share:.0f}" if numbered and share >= 0.5 else "" for share in row] for row in shares],
        [
            [f"{html_text(one)} predicted as {html_text(other)}: {c:,}" for other, c in zip(columns, row, strict=True)]
            for one, row in zip(names, counts.tolist(), strict=True)
        ],
        "%{customdata} (%{z:.1f} %)",
        colorscale=_STRETCHED_SCALE,
        zmin=0,
        zmax=100,
        textfont={"size": 10},
        **({} if numbered else {"showscale": True, "colorbar": bar}),
    )
    x_axis = _named_axis("predicted class", columns, 12, tickangle=-45, showgrid=False)
    y_axis = _named_axis("true class", names, 12, showgrid=False)
    y_axis["range"] = y_axis["range"][::-1]  # the first class on top
    return _figure([trace], x_axis, y_axis, 330 if numbered else 400)
