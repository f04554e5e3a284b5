"""Draw the four kinds of figures, as data for plotly's script: plain dictionaries, without plotly itself.

A section of the page has a select box; each of its options shows cards, and each card holds one figure. Colours named
`ink`, `surface` and `scale0` to `scale4` are those of the page, which differ between light and dark.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from esupcon._console import count
from esupcon.probability import CalibrationFigures
from esupcon.report.aggregate import number_in
from esupcon.report.content import Array, DrawnColumn, Embedding, Labels
from esupcon.report.format import html_text, method_title

MOST_MAPS = 4  # columns with maps of embeddings: each map takes time to compute
MAP_POINTS, MAP_CLASSES = 200, 10  # more colours are hard to tell apart
MATRIX_CLASSES, WORST_CLASSES = 30, 20  # with more than 30 classes, a confusion matrix shows the 20 worst
NUMBERED_CLASSES = 12  # up to here its squares are large enough for numbers
CURVE_POINTS = 200

# Of methods and of classes: middle tones, visible on white and on near-black. Dashes differ too.
_COLOURS = (
    *("#7b8594", "#dd8438", "#2f9c77", "#2f7fd6", "#9a6bc4"),
    *("#c65b4a", "#8d7b5f", "#d0608a", "#a3a12e", "#4aa3bf"),
)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

Styles = Mapping[str, Mapping[str, str]]  # plotly's `line` of each method: colour and dash
Trace = dict[str, Any]
Figure = dict[str, Any]


@dataclass(frozen=True)
class Card:
    """One figure with its title; a figure of a single `method` is hidden with that method."""

    title: str
    figure: Figure
    method: str | None = None


@dataclass(frozen=True)
class Option:
    """What one choice of the select box shows."""

    label: str
    cards: Sequence[Card]
    note: str


@dataclass(frozen=True)
class Section:
    """Figures of one kind. `hint` explains what to look for."""

    key: str
    title: str
    hint: str
    options: Sequence[Option]


def sections(columns: Sequence[DrawnColumn], methods: Sequence[str]) -> list[Section]:
    """Return the sections of a page that have figures."""
    style = styles(methods)
    with_maps = [column for column in columns if any(run.embedding for run in column.runs.values())][:MOST_MAPS]
    options = {
        "reliability": [_reliability(column, style) for column in columns],
        "curves": [_curves(column, style) for column in columns],
        "embedding": [_maps(column) for column in with_maps],
        "confusion": [_confusions(column) for column in columns],
    }
    texts = tomllib.loads(resources.files("esupcon.report").joinpath("page", "sections.toml").read_text("utf-8"))
    shown = {key: [option for option in found if option.cards] for key, found in options.items()}
    return [Section(key, **texts[key], options=found) for key, found in shown.items() if found]


def styles(methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the colour and the dash of each method, the same in all figures."""
    looks = zip(methods, itertools.cycle(_COLOURS), itertools.cycle(_DASHES), strict=False)
    return {method: {"color": colour, "dash": dash} for method, colour, dash in looks}


def _cards(figures: Mapping[str, Figure]) -> list[Card]:
    return [Card(method_title(method), figure, method) for method, figure in figures.items()]


def _rounded(values: Iterable[Any], digits: int = 4) -> list[Any]:
    """Return plain numbers; missing values and those that are not finite become gaps."""
    return [None if v is None or not math.isfinite(v) else round(float(v), digits) for v in values]


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def _figure(traces: Sequence[Trace], x: dict[str, Any], y: dict[str, Any], height: int, **layout: Any) -> Figure:
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y, **layout}, "height": height}


def _trace(hover: str, **parts: Any) -> Trace:
    return {"type": "scatter", "hovertemplate": f"{hover}<extra></extra>", **parts}


# --- Reliability -----------------------------------------------------------------------------------------------------


def _reliability(column: DrawnColumn, style: Styles) -> Option:
    """Draw confidence against accuracy before and after calibration."""
    found = {method: run.calibration for method, run in column.runs.items() if run.calibration}
    note = column.note
    for fitted in list(found.values())[:1]:
        where = "held-out" if fitted.protocol == "held-out" else "test"
        samples = count(fitted.n_calibration, f"{where} sample"), count(fitted.n_evaluation, "test sample")
        note += f" T was fitted on {samples[0]}; the curves show {samples[1]}."
    drawn = {method: _reliability_figure(one, style[method]["color"]) for method, one in found.items()}
    return Option(column.label, _cards(drawn), note.strip())


def _reliability_figure(figures: CalibrationFigures, colour: str) -> Figure:
    dotted = {"dash": "dot", "width": 1, "color": "#8a93a0"}
    traces = [_trace("", x=[0, 1], y=[0, 1], mode="lines", line=dotted, hoverinfo="skip", showlegend=False)]
    for when, temperature, ece, bins, dash, symbol in (
        ("before", 1.0, figures.ece_before, figures.bins_before, "dash", "circle-open"),
        ("after", figures.temperature, figures.ece_after, figures.bins_after, "solid", "circle"),
    ):
        held = [i for i, n in enumerate(bins.counts) if n > 0]
        sizes = _rounded((5 + 15 * math.sqrt(bins.counts[i] / sum(bins.counts)) for i in held), 1)
        trace = _trace(
            f"{when}<br>confidence %{{x:.3f}}<br>accuracy %{{y:.3f}}<br>%{{customdata}} samples",
            x=_rounded(bins.confidence[i] for i in held),
            y=_rounded(bins.accuracy[i] for i in held),
            mode="lines+markers",
            name=f"{when}, T = {temperature:.3g}: ECE {100 * ece:.1f} %",
            line={"color": colour, "dash": dash, "width": 1.5},
            marker={"color": colour, "size": sizes, "opacity": 0.9, "symbol": symbol},
            customdata=[bins.counts[i] for i in held],
            cliponaxis=False,
        )
        traces.append(trace)
    x, y = (_axis(title, range=[0, 1.03], dtick=0.25) for title in ("confidence", "accuracy"))
    return _figure(traces, x, y, 320, showlegend=True)


# --- Training curves -------------------------------------------------------------------------------------------------


def _curves(column: DrawnColumn, style: Styles) -> Option:
    """Draw held-out accuracy and loss by epoch; a trace of a method is hidden with it."""
    cards = []
    for title, axis, name, scale in (
        ("Accuracy on held-out data", "held-out accuracy (%)", "held_out_accuracy", 100.0),
        ("Training loss", "training loss (nats)", "loss", 1.0),
    ):
        traces = []
        for method, run in column.runs.items():
            n = len(run.history)
            places = np.linspace(0, n - 1, min(n, CURVE_POINTS)).round().astype(int).tolist()
            values = [number_in(run.history[place], name) for place in places]
            if any(value is not None for value in values):
                ys = _rounded(None if value is None else scale * value for value in values)
                mode = "lines+markers" if n < 3 else "lines"
                named = {"name": html_text(method_title(method)), "meta": {"method": method}}
                hover = "%{fullData.name}: %{y:.4g} after epoch %{x}"
                xs = [place + 1 for place in places]
                traces.append(_trace(hover, x=xs, y=ys, line=style[method], mode=mode, **named))
        if traces:
            several = len(column.runs) > 1
            cards.append(Card(title, _figure(traces, _axis("epoch"), _axis(axis), 360, showlegend=several)))
    note = " These runs held out no data, so their accuracy during training is unknown." if len(cards) == 1 else ""
    return Option(column.label, cards, column.note + note)


# --- Map of the embedding --------------------------------------------------------------------------------------------


def _maps(column: DrawnColumn) -> Option:
    """Draw embeddings of test samples on a plane, with the prototypes among them."""
    found = {method: run.embedding for method, run in column.runs.items() if run.embedding}
    few = f" The {MAP_CLASSES} classes with most samples are shown." if len(column.classes) > MAP_CLASSES else ""
    drawn = {method: _map(one, column.classes) for method, one in found.items()}
    return Option(column.label, _cards(drawn), column.note + few)


def _map(given: Embedding, classes: Sequence[str]) -> Figure:
    def points(rows: Array, text: str | Sequence[str], hover: str, **marker: Any) -> Trace:
        x, y = (_rounded(rows[:, i], 3) for i in range(2))
        return _trace(hover, mode="markers", x=x, y=y, text=text, marker=marker)

    largest = np.argsort(-np.bincount(given.labels), kind="stable")[:MAP_CLASSES]
    rows = np.flatnonzero(np.isin(given.labels, largest))[:MAP_POINTS]
    drawn, kinds = given.labels[rows], np.unique(given.labels[rows])
    prototypes = given.prototypes[kinds] if len(given.prototypes) else given.prototypes
    plane = tsne(np.concatenate([given.z[rows], prototypes]))
    traces, labels = [], []
    for k, colour in zip(kinds.tolist(), _COLOURS, strict=False):
        own, name = plane[: len(rows)][drawn == k], html_text(classes[k])
        traces.append(points(own, name, "%{text}", size=6, opacity=0.65, color=colour))
        x, y = _rounded(np.median(own, axis=0), 3)
        frame = {"showarrow": False, "yshift": 15, "bgcolor": "surface", "borderpad": 1, "opacity": 0.9}
        text = {"text": html_text(classes[k], 12), "bordercolor": colour, "font": {"size": 11}}
        labels.append({**frame, **text, "x": x, "y": y})
    if len(prototypes):
        names, colours = [html_text(classes[k]) for k in kinds], _COLOURS[: len(kinds)]
        star = {"symbol": "star", "size": 13, "color": colours, "line": {"width": 1.5, "color": "ink"}}
        traces.append(points(plane[len(rows) :], names, "prototype of %{text}", **star))
    bare = {"showticklabels": False, "zeroline": False, "showgrid": False}
    x_axis, y_axis = _axis("first direction", **bare), _axis("second direction", **bare)
    return _figure(traces, x_axis, y_axis, 300, showlegend=False, annotations=labels)


def tsne(x: Array) -> Array:
    """Return the t-SNE map (n, 2) of the rows of x. Equal rows give equal maps."""
    from sklearn.manifold import TSNE  # noqa: PLC0415 - slow to import

    start = "pca" if min(x.shape) > 1 and np.ptp(x, axis=0).max() > 0 else "random"
    mapped = TSNE(init=start, perplexity=min(20.0, (len(x) - 1) / 3), random_state=0, n_jobs=1, max_iter=400)
    plane: Array = mapped.fit_transform(x)
    return plane


# --- Confusion matrix ------------------------------------------------------------------------------------------------


def _confusions(column: DrawnColumn) -> Option:
    """Draw confusion matrices; with many classes, those with most errors."""
    found = {method: run.confusion for method, run in column.runs.items() if run.confusion}
    few = f" The {WORST_CLASSES} classes with most errors are shown; “others” are the remaining classes."
    drawn = {method: _confusion(one, column.classes) for method, one in found.items()}
    return Option(column.label, _cards(drawn), column.note + (few if len(column.classes) > MATRIX_CLASSES else ""))


def _confusion(given: tuple[Labels, Labels], classes: Sequence[str]) -> Figure:
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
    short, numbered = [html_text(name, 30) for name in columns], n <= NUMBERED_CLASSES
    # The colours are stretched at their low end: errors are rare beside correct predictions.
    trace = {
        "type": "heatmap",
        **{"z": [_rounded(row, 1) for row in shares], "zmin": 0, "zmax": 100, "xgap": 1, "ygap": 1},
        "colorscale": [[stop, f"scale{i}"] for i, stop in enumerate((0, 0.03, 0.1, 0.3, 1))],
        "showscale": not numbered,
        "colorbar": {"title": {"text": "%"}, "thickness": 8, "outlinewidth": 0, "tickvals": [0, 25, 50, 75, 100]},
        "text": [[f"{share:.0f}" if numbered and share >= 0.5 else "" for share in row] for row in shares],
        **{"texttemplate": "%{text}", "textfont": {"size": 10}},
        "customdata": [
            [f"{short[i]} predicted as<br>{short[j]}: {c:,}" for j, c in enumerate(row)]
            for i, row in enumerate(counts.tolist())
        ],
        "hovertemplate": "%{customdata} (%{z:.1f} %)<extra></extra>",
    }
    # Classes lie at 0, 1, 2, ...: equal names stay apart, and names are not read as numbers.
    ticks = [
        {"tickvals": list(range(len(one))), "ticktext": [html_text(t, 12) for t in one]} for one in (columns, names)
    ]
    fixed = {"type": "linear", "tickmode": "array", "zeroline": False, "showgrid": False}
    turned = {"range": [-0.5, len(columns) - 0.5], "tickangle": -45 if numbered else -90}
    x = _axis("predicted class", **fixed, **ticks[0], **turned)
    y = _axis("true class", **fixed, **ticks[1], range=[n - 0.5, -0.5])  # the first class on top
    if numbered:
        return _figure([trace], x, y, 330)
    # Room for the name of every class; on a narrow screen the figure can be scrolled.
    return {**_figure([trace], x, y, 15 * n + 130), "width": 15 * len(columns) + 190}
