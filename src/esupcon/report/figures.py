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
from esupcon.probability import CalibrationFigures
from esupcon.report.aggregate import Panel, ResultTable, number_in, peak_megabytes, step_milliseconds, summary_of
from esupcon.report.content import Confusion, Content, DrawnColumn
from esupcon.report.format import dataset_title, html_text, method_title
from esupcon.report.projection import MOST_CLASSES, Array, Embedding, tsne

MOST_MAPS = 4  # columns with maps of embeddings: each map takes time to compute
MATRIX_CLASSES, WORST_CLASSES = 30, 20  # with more than 30 classes, a confusion matrix shows the 20 worst
NUMBERED_CLASSES = 12  # up to here its squares are large enough for numbers
CURVE_POINTS = 200


@dataclass(frozen=True)
class Card:
    """One figure with its title; a figure of a single `method` is hidden with that method."""

    title: str
    figure: dict[str, Any]
    method: str | None = None


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


Styles = Mapping[str, Mapping[str, str]]  # plotly's `line` of each method: colour and dash
Trace = dict[str, Any]
Figure = dict[str, Any]


def sections(content: Content) -> list[Section]:
    """Return the sections of the page in their order."""
    style = styles(content.methods)
    options = {
        "reliability": [reliability(column, style) for column in content.drawn],
        "curves": [training_curves(column, style) for column in content.drawn],
        "cost": [cost(column, style) for column in content.drawn],
        "sensitivity": [option for table in content.tables for option in sensitivity(table)],
        "classes": [scarce_classes(column, style) for column in content.drawn],
        "embedding": embedding_maps(content.drawn),
        "confusion": [confusion_matrices(column) for column in content.drawn],
    }
    return [section(key, found) for key, found in options.items()]


def section(key: str, options: Sequence[Option], *, of_one_run: bool = False) -> Section:
    """Return the section of a kind of figures, with its texts."""
    texts = tomllib.loads(resources.files("esupcon.report").joinpath("page", "sections.toml").read_text("utf-8"))
    own = {**texts[key], **(texts["of_one_run"][key] if of_one_run else {})}
    return Section(key, **own, options=[option for option in options if option.cards])


# --- Styles, axes and traces -----------------------------------------------------------------------------------------

# Middle tones, visible on white and on near-black. Dashes differ too, so colour never decides alone.
_COLOURS = {
    **{"ce": "#7b8594", "supcon_ce": "#dd8438", "supcon_ce_n": "#b99a1e", "supcon_tt": "#2f9c77"},
    **{"spce": "#9a6bc4", "spce_m": "#d0608a", "esupcon": "#2f7fd6"},
}
_OTHER_COLOURS = ("#4aa3bf", "#8d7b5f", "#c65b4a", "#6f8f3a", "#5f6fbf")
_CLASS_COLOURS = (
    *("#2f7fd6", "#dd8438", "#2f9c77", "#c65b4a", "#9a6bc4"),
    *("#8d7b5f", "#d0608a", "#7b8594", "#a3a12e", "#4aa3bf"),
)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def styles(methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the colour and the dash of each method, the same in all figures."""
    others = itertools.cycle(_OTHER_COLOURS)
    dashed = zip(methods, itertools.cycle(_DASHES), strict=False)
    return {method: {"color": _COLOURS.get(method) or next(others), "dash": dash} for method, dash in dashed}


def _cards(figures: Mapping[str, Figure]) -> list[Card]:
    return [Card(method_title(method), figure, method) for method, figure in figures.items()]


def _rounded(values: Iterable[Any], digits: int = 4) -> list[Any]:
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


def _trace(kind: str, hover: str, method: str | None = None, **parts: Any) -> Trace:
    """Return a trace; that of a method has its name and is hidden with it."""
    named = {} if method is None else {"name": html_text(method_title(method)), "meta": {"method": method}}
    return {"type": kind, "hovertemplate": f"{hover}<extra></extra>", **named, **parts}


def _points(points: Array, text: str | Sequence[str], hover: str, **marker: Any) -> Trace:
    x, y = (_rounded(points[:, i], 3) for i in range(2))
    return _trace("scatter", hover, mode="markers", x=x, y=y, text=text, marker=marker)


def _heat_map(
    z: Sequence[Sequence[Any]], text: Any, customdata: Any, hover: str, stops: Sequence[float], **more: Any
) -> Trace:
    """Return a heat map of the page's five colours at the given stops from 0 to 1."""
    parts = {"z": z, "x": list(range(len(z[0]))), "y": list(range(len(z))), "xgap": 1, "ygap": 1}
    parts |= {"text": text, "texttemplate": "%{text}", "customdata": customdata, "showscale": False}
    scale = [[stop, f"scale{i}"] for i, stop in enumerate(stops)]
    return _trace("heatmap", hover, colorscale=scale) | parts | more


# --- Reliability -----------------------------------------------------------------------------------------------------


def reliability(column: DrawnColumn, style: Styles) -> Option:
    """Draw confidence against accuracy before and after calibration."""
    found = {method: run.result.calibration.paper for method, run in column.runs.items()}
    drawn = {method: reliability_figure(one, style[method]["color"]) for method, one in found.items() if one}
    protocol = " T is fitted on a stratified fifth of the test set; both curves show the other four fifths."
    return Option(column.label, _cards(drawn), column.note + protocol)


def reliability_figure(figures: CalibrationFigures, colour: str) -> Figure:
    dotted = {"dash": "dot", "width": 1, "color": "#8a93a0"}
    traces = [_trace("scatter", "", x=[0, 1], y=[0, 1], mode="lines", line=dotted, hoverinfo="skip", showlegend=False)]
    open_mark = {"symbol": "circle-open", "line": {"width": 1.5}}
    for when, temperature, ece, bins, line, mark in (
        ("before", 1.0, figures.ece_before, figures.bins_before, {"width": 1, "dash": "dash"}, open_mark),
        ("after", figures.temperature, figures.ece_after, figures.bins_after, {"width": 2, "dash": "solid"}, {}),
    ):
        held = [i for i, n in enumerate(bins.counts) if n > 0]
        sizes = _rounded((5 + 15 * math.sqrt(bins.counts[i] / sum(bins.counts)) for i in held), 1)
        trace = _trace(
            "scatter",
            f"{when}<br>confidence %{{x:.3f}}<br>accuracy %{{y:.3f}}<br>%{{customdata}} samples",
            x=_rounded(bins.confidence[i] for i in held),
            y=_rounded(bins.accuracy[i] for i in held),
            mode="lines+markers",
            name=f"{when}, T = {temperature:.3g}: ECE {100 * ece:.1f} %",
            line={"color": colour, **line},
            marker={"color": colour, "size": sizes, "opacity": 0.9, **mark},
            customdata=[bins.counts[i] for i in held],
            cliponaxis=False,
        )
        traces.append(trace)
    x, y = (_axis(title, range=[0, 1.03], dtick=0.25) for title in ("confidence", "accuracy"))
    return _figure(traces, x, y, 320, showlegend=True)


# --- Training curves -------------------------------------------------------------------------------------------------


def training_curves(column: DrawnColumn, style: Styles) -> Option:
    """Draw held-out accuracy and loss by epoch."""
    cards = []
    for title, axis, name, scale in (
        ("Accuracy on held-out data", "held-out accuracy (%)", "held_out_accuracy", 100.0),
        ("Training loss", "training loss (nats)", "loss", 1.0),
    ):
        traces = []
        for method, run in column.runs.items():
            xs, ys = _curve(run.history, name, scale)
            mode = "lines+markers" if len(ys) < 3 else "lines"
            hover = "%{fullData.name}: %{y:.4g} after epoch %{x}"
            traces += [_trace("scatter", hover, method, x=xs, y=ys, line=style[method], mode=mode)] if ys else []
        if traces:
            several = len(column.runs) > 1
            cards.append(Card(title, _figure(traces, _axis("epoch"), _axis(axis), 360, showlegend=several)))
    note = " These runs held out no data, so their accuracy during training is unknown." if len(cards) == 1 else ""
    return Option(column.label, cards, column.note + note)


def _curve(records: Sequence[Mapping[str, Any]], name: str, scale: float) -> tuple[list[int | None], list[Any]]:
    """Return epochs and values, thinned, with a gap between the stages."""
    xs: list[int | None] = []
    ys: list[float | None] = []
    stage = None
    for place in np.linspace(0, len(records) - 1, min(len(records), CURVE_POINTS)).round().astype(int).tolist():
        value = number_in(records[place], name)
        if value is not None:
            if ys and records[place].get("stage") != stage:
                xs.append(None)
                ys.append(None)
            stage = records[place].get("stage")
            xs.append(place + 1)
            ys.append(scale * value)
    return xs, _rounded(ys)


# --- Time and memory -------------------------------------------------------------------------------------------------


def cost(column: DrawnColumn, style: Styles) -> Option:
    """Draw mean time and memory of the runs of a column."""
    cards = []
    for title, unit, of in (
        ("Time of a training step", "milliseconds", step_milliseconds),
        ("Training time of a run", "seconds", lambda run: run.seconds),
        ("Peak memory", "megabytes", peak_megabytes),
    ):
        found = {m: [[v for run in runs if (v := of(run)) is not None]] for m, runs in column.all_runs.items()}
        cards += _bars(title, unit, ["all seeds"], found, style)
    return Option(column.label, cards, "Means over all seeds; whiskers are standard deviations.")


def _bars(
    title: str, unit: str, names: Sequence[str], values: Mapping[str, Sequence[Sequence[float]]], style: Styles
) -> list[Card]:
    """Draw means with standard deviations: a group of bars for each name, in it a bar for each method."""
    traces = []
    for method, groups in values.items():
        summaries = [summary_of(group) for group in groups]
        deviations = _rounded((one and one.deviation for one in summaries), 3)
        if any(summaries):
            whisker = {"type": "data", "color": "ink", "thickness": 1}
            trace = _trace(
                "bar",
                f"%{{fullData.name}}, %{{x}}: %{{y:.4g}} {unit}",
                method,
                x=names,
                y=_rounded((one and one.mean for one in summaries), 3),
                error_y={**whisker, "array": deviations, "visible": any(deviations)},
                marker={"color": style[method]["color"]},
                texttemplate="%{y:.4g}",
                textposition="inside",
                insidetextanchor="start",  # the whisker is at the end
            )
            traces.append(trace)
    x, y = _axis("", type="category"), _axis(unit, rangemode="tozero")
    return [Card(title, _figure(traces, x, y, 360, barmode="group", showlegend=True))] if traces else []


# --- Sensitivity to settings -----------------------------------------------------------------------------------------


def sensitivity(table: ResultTable) -> list[Option]:
    """Draw heat maps over the first two settings that a table varies; each position on other axes is an option.

    Only positions that were planned are visited: a plan may claim axes with billions of positions.
    """
    groups: dict[tuple[str, ...], dict[tuple[Any, Any], int]] = {}  # columns by their position on the two axes
    for index, column in enumerate(table.columns):
        names = {f"{name}={value}": name for name, value in column.grid.items()}
        parts = column.setting.split(", ")
        axes = [names[part] for part in parts if part in names][:2]
        base = [part for part in parts if names.get(part) not in axes]
        if len(axes) == 2:
            label = printable(", ".join([f"{table.title}: {dataset_title(column.dataset)}", *base]))
            groups.setdefault((label, *axes), {})[column.grid[axes[0]], column.grid[axes[1]]] = index
    return [
        Option(label, [card for method in table.methods for card in _map_card(table.panels[0], method, axes, at)])
        for (label, *axes), at in groups.items()
    ]


def _numbers_first(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _map_card(panel: Panel, method: str, axes: Sequence[str], at: Mapping[tuple[Any, Any], int]) -> list[Card]:
    rows, columns = (sorted({point[i] for point in at}, key=_numbers_first) for i in range(2))
    measure, own = panel.measure, panel.cells[method]
    cells = [[own[at[r, c]].summary if (r, c) in at else None for c in columns] for r in rows]
    if not any(one for row in cells for one in row):
        return []
    means = [one.mean for row in panel.cells.values() for i in at.values() if (one := row[i].summary) is not None]
    trace = _heat_map(
        [[one and round(one.mean, 3) for one in row] for row in cells],
        [["" if one is None else f"{one.mean:.{measure.digits}f}" for one in row] for row in cells],
        [[0 if one is None else one.n for one in row] for row in cells],
        f"%{{z:.2f}} {measure.unit}, n = %{{customdata}}",
        (0, 0.25, 0.5, 0.75, 1),
        reversescale=measure.lower_is_better,
        zmin=min(means),  # all methods share one scale
        zmax=max(means) if max(means) > min(means) else min(means) + 1,
    )
    down, across = (name.replace("_", " ") for name in axes)
    x, y = _named_axis(across, columns, showgrid=False), _named_axis(down, rows, showgrid=False)
    return [Card(method_title(method), _figure([trace], x, y, 260), method)]


# --- Scarce classes --------------------------------------------------------------------------------------------------


def scarce_classes(column: DrawnColumn, style: Styles) -> Option:
    """Draw the mean accuracy of scarce and of other classes, for runs in which some classes were made scarce."""
    means: dict[str, tuple[list[float], list[float]]] = {method: ([], []) for method in column.all_runs}
    for method, run in ((method, run) for method, runs in column.all_runs.items() for run in runs):
        scarce, test = run.result.preparation.scenario.scarce_classes, run.result.metrics.test
        for side, values in zip((True, False), means[method], strict=True):
            classes = [one for k, one in enumerate(test.per_class) if (k in scarce) is side] if scarce and test else []
            found = [one.accuracy for one in classes if one.n and one.accuracy is not None]
            values.extend([100 * sum(found) / len(found)] if found else [])
    title, names = "Scarce classes and other classes", ["scarce classes", "other classes"]
    cards = _bars(title, "mean accuracy of the classes in %", names, means, style)
    return Option(column.label, cards, "Means over all seeds; each seed draws its own scarce classes.")


# --- Map of the embedding --------------------------------------------------------------------------------------------


def embedding_maps(drawn: Sequence[DrawnColumn]) -> list[Option]:
    """Draw embeddings of test samples on a plane, with the prototypes among them."""
    columns = [column for column in drawn if column.embeddings]
    options = []
    for column in columns[:MOST_MAPS]:
        found = column.embeddings.items()
        cards = _cards({method: _embedding_figure(one, column.classes) for method, one in found})
        few = f" The {MOST_CLASSES} classes with most samples are shown." if len(column.classes) > MOST_CLASSES else ""
        options.append(Option(column.label, cards, column.note + few))
    if len(columns) > MOST_MAPS:
        more = f" Maps are drawn for {MOST_MAPS} settings; {len(columns) - MOST_MAPS} others are left out."
        options[-1] = replace(options[-1], note=options[-1].note + more)
    return options


def _embedding_figure(given: Embedding, classes: Sequence[str]) -> Figure:
    plane = tsne(np.concatenate([given.z, given.prototypes]))
    points, prototypes = plane[: len(given.z)], plane[len(given.z) :]
    traces, labels = [], []
    kinds = np.unique(given.labels).tolist()
    for k, colour in zip(kinds, itertools.cycle(_CLASS_COLOURS), strict=False):
        own = points[given.labels == k]
        traces.append(_points(own, html_text(classes[k]), "%{text}", size=6, opacity=0.65, color=colour))
        (x, y), name = _rounded(np.median(own, axis=0), 3), html_text(classes[k], 12)
        frame = {"showarrow": False, "yshift": 15, "bgcolor": "surface", "borderpad": 1, "opacity": 0.9}
        labels.append({**frame, "x": x, "y": y, "text": name, "bordercolor": colour, "font": {"size": 11}})
    if len(prototypes):
        names, colours = [html_text(classes[k]) for k in kinds], [label["bordercolor"] for label in labels]
        star = {"symbol": "star", "size": 13, "color": colours, "line": {"width": 1.5, "color": "ink"}}
        traces.append(_points(prototypes, names, "prototype of %{text}", **star))
    bare = {"showticklabels": False, "zeroline": False, "showgrid": False}
    x_axis, y_axis = _axis("first direction", **bare), _axis("second direction", **bare)
    return _figure(traces, x_axis, y_axis, 300, showlegend=False, annotations=labels)


# --- Confusion matrix ------------------------------------------------------------------------------------------------


def confusion_matrices(column: DrawnColumn) -> Option:
    """Draw confusion matrices; with many classes, those with most errors."""
    cards = _cards({method: _confusion_figure(one, column.classes) for method, one in column.confusions.items()})
    few = f" The {WORST_CLASSES} classes with most errors are shown; “others” are the remaining classes."
    return Option(column.label, cards, column.note + (few if len(column.classes) > MATRIX_CLASSES else ""))


def _confusion_figure(given: Confusion, classes: Sequence[str]) -> Figure:
    """Count only the classes that are shown: a full matrix of 30,000 classes would take 7 GB."""
    k, (labels, predicted) = len(classes), given
    shown = np.arange(k)
    if k > MATRIX_CLASSES:
        errors = sum(np.bincount(one[labels != predicted], minlength=k) for one in (labels, predicted))
        shown = np.sort(np.argsort(-errors, kind="stable")[:WORST_CLASSES])
    n, place = len(shown), np.full(k, len(shown))
    place[shown] = np.arange(n)  # the other classes share one more row and column
    names = [classes[i] for i in shown.tolist()]
    columns = names if n == k else [*names, "others"]
    counts = np.bincount(place[labels] * (n + 1) + place[predicted], minlength=(n + 1) ** 2).reshape(n + 1, n + 1)
    counts = counts[:n, : len(columns)]
    with np.errstate(invalid="ignore"):  # a class without test samples has no shares
        shares = 100 * counts / counts.sum(axis=1, keepdims=True)
    short = [html_text(name, 30) for name in columns]
    hover = [
        [f"{short[i]} predicted as<br>{short[j]}: {c:,}" for j, c in enumerate(row)]
        for i, row in enumerate(counts.tolist())
    ]
    numbered = n <= NUMBERED_CLASSES
    bar = {"title": {"text": "%"}, "thickness": 8, "outlinewidth": 0, "tickvals": [0, 25, 50, 75, 100]}
    trace = _heat_map(
        [_rounded(row, 1) for row in shares],
        [[f"{share:.0f}" if numbered and share >= 0.5 else "" for share in row] for row in shares],
        hover,
        "%{customdata} (%{z:.1f} %)",
        (0, 0.03, 0.1, 0.3, 1),  # stretched at its low end: errors are rare beside correct predictions
        **{"zmin": 0, "zmax": 100, "textfont": {"size": 10}, "showscale": not numbered, "colorbar": bar},
    )
    x_axis = _named_axis("predicted class", columns, 12, tickangle=-45 if numbered else -90, showgrid=False)
    y_axis = _named_axis("true class", names, 12, showgrid=False)
    y_axis["range"] = y_axis["range"][::-1]  # the first class on top
    figure = _figure([trace], x_axis, y_axis, 330 if numbered else 15 * n + 130)
    # Room for the name of every class; on a narrow screen the figure can be scrolled.
    return figure if numbered else {**figure, "width": 15 * len(columns) + 190}
