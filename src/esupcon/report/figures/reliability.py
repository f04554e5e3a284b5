"""Reliability before and after calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from esupcon.probability import ReliabilityBins
from esupcon.report.details import Detail
from esupcon.report.kept_calibration import calibration
from esupcon.report.sections import Card, Figure, Option, Section, Style, axis, rounded
from esupcon.report.words import method_title


def reliability(details: Sequence[Detail], style: Mapping[str, Style]) -> Section:
    options = []
    for detail in details:
        cards = []
        for method, run in detail.runs.items():
            report = calibration(run.folder)
            if report is None:
                continue
            sides = (
                ("before", 1.0, report.ece_before, report.bins_before),
                ("after", report.temperature, report.ece_after, report.bins_after),
            )
            cards.append(Card(method_title(method), _reliability(sides, style[method]), method))
        if cards:
            options.append(Option(detail.label, cards, detail.note))
    return Section(
        "reliability",
        "Reliability before and after calibration",
        "A point on the diagonal means what it says: of predictions made with confidence 0.8, 80 % are right. "
        "Below the diagonal a classifier is overconfident. Larger marks hold more samples. The temperature T is "
        "fitted on a stratified fifth of the test set, and both curves are of the other four fifths.",
        options,
        "No run here has stored predictions that are enough to be split for calibration.",
    )


def _reliability(sides: Sequence[tuple[str, float, float, ReliabilityBins]], style: Style) -> Figure:
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": [0, 1],
            "y": [0, 1],
            "mode": "lines",
            "line": {"dash": "dot", "width": 1, "color": "#8a93a0"},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]
    for name, temperature, ece, bins in sides:
        held = bins.counts > 0
        share = bins.counts[held] / bins.counts.sum()
        after = name == "after"
        traces.append(
            {
                "type": "scatter",
                "x": rounded(bins.confidence[held]),
                "y": rounded(bins.accuracy[held]),
                "customdata": bins.counts[held].tolist(),
                "mode": "lines+markers",
                "cliponaxis": False,
                "name": f"{name}, T = {temperature:.3g}: ECE {100 * ece:.1f} %",
                "line": {"color": style.colour, "width": 2 if after else 1, "dash": "solid" if after else "dash"},
                "marker": {
                    "size": rounded(5 + 15 * np.sqrt(share), 1),
                    "symbol": "circle" if after else "circle-open",
                    "color": style.colour,
                    "opacity": 0.9,
                    "line": {"width": 1.5 if not after else 0},
                },
                "hovertemplate": f"{name}: confidence %{{x:.3f}}, accuracy %{{y:.3f}}, "
                "%{customdata} samples<extra></extra>",
            }
        )
    layout = {
        "xaxis": axis("confidence", range=[0, 1.03], dtick=0.25),
        "yaxis": axis("accuracy", range=[0, 1.03], dtick=0.25),
        "showlegend": True,
    }
    return {"data": traces, "layout": layout, "height": 320}
