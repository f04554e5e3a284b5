"""Loss and held-out accuracy, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from esupcon.files import read_json_lines
from esupcon.report.details import Detail
from esupcon.report.sections import Card, Figure, Option, Section, Style, axis, plain, rounded
from esupcon.report.words import method_title

HISTORY = "history.jsonl"
_CURVE_POINTS = 200


def curves(details: Sequence[Detail], style: Mapping[str, Style]) -> Section:
    options = []
    for detail in details:
        histories = {method: read_json_lines(run.folder / HISTORY) for method, run in detail.runs.items()}
        held_out = _curves(histories, "held_out_accuracy", 100.0, style, "held-out accuracy (%)")
        loss = _curves(histories, "loss", 1.0, style, "training loss (nats)")
        cards = [Card("Accuracy on held-out data", held_out)] if held_out is not None else []
        cards += [Card("Training loss", loss)] if loss is not None else []
        if cards:
            note = (
                "" if held_out is not None else " These runs held no data out, so accuracy while training is unknown."
            )
            options.append(Option(detail.label, cards, detail.note + note))
    return Section(
        "curves",
        "Learning, epoch by epoch",
        "Look for curves that still rise at the end (train longer) or fall again (stop earlier). Losses of different "
        "methods are different quantities: compare their shapes, not their heights. A gap in a line is where the "
        "second stage begins.",
        options,
        "No run here has a history of its epochs.",
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
        xs: list[Any] = []
        ys: list[Any] = []
        stage = None
        for place, record in enumerate(_thinned(records)):
            value = record.get(name)
            if not isinstance(value, int | float):
                continue
            if place and record.get("stage") != stage:
                xs.append(None)
                ys.append(None)
            stage = record.get("stage")
            xs.append(record["_epoch"])
            ys.append(scale * value)
        if not ys:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(ys) < 3 else "lines",
                "x": xs,
                "y": rounded(ys, 4),
                "name": plain(method_title(method)),
                "meta": {"method": method},
                "line": {"color": style[method].colour, "dash": style[method].dash, "width": 2},
                "hovertemplate": "%{fullData.name}: %{y:.4g} after %{x} epochs<extra></extra>",
            }
        )
    if not traces:
        return None
    layout = {"xaxis": axis("epochs trained"), "yaxis": axis(title), "showlegend": True}
    return {"data": traces, "layout": layout, "height": 360}


def _thinned(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """At most so many records, the last among them, each with its place in the whole run."""
    numbered = [{**record, "_epoch": index + 1} for index, record in enumerate(records)]
    if len(numbered) <= _CURVE_POINTS:
        return numbered
    places = np.unique(np.linspace(0, len(numbered) - 1, _CURVE_POINTS).round().astype(int))
    return [numbered[place] for place in places]
