"""What is taken for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from esupcon.experiments.store import StoredRun
from esupcon.probability import Predictions
from esupcon.report.details import Detail
from esupcon.report.kept_calibration import PREDICTIONS
from esupcon.report.sections import Card, Figure, Option, Section, axis, plain, rounded, ticks
from esupcon.report.words import method_title

_MATRIX_CLASSES, _WORST = 30, 20
_NUMBERED = 12  # classes up to which the squares are large enough for their figures
# Errors are rare beside what is right: the scale is stretched at its low end so that they are seen.
_STRETCHED = [[0.0, "scale0"], [0.03, "scale1"], [0.1, "scale2"], [0.3, "scale3"], [1.0, "scale4"]]


def confusions(details: Sequence[Detail]) -> Section:
    options = []
    for detail in details:
        cards = []
        limited = False
        for method, run in detail.runs.items():
            matrix = _confusion(run)
            if matrix is None:
                continue
            limited = limited or len(matrix) > _MATRIX_CLASSES
            cards.append(Card(method_title(method), _matrix(matrix, detail.classes), method))
        if cards:
            note = f" Of the many classes, the {_WORST} with most mistakes are shown; the rest are “others”."
            options.append(Option(detail.label, cards, detail.note + (note if limited else "")))
    return Section(
        "confusion",
        "What is taken for what",
        "Each row is a class and shows, in per cent of its test samples, what they were taken for: the diagonal is "
        "what is right. Marks away from it name the pairs worth looking at.",
        options,
        "No run here has stored predictions.",
    )


def _confusion(run: StoredRun) -> Any:
    try:
        predictions = Predictions.load(run.folder / PREDICTIONS)
    except (FileNotFoundError, ValueError):
        return None
    k = predictions.n_classes
    cells = np.bincount(predictions.labels * k + predictions.logits.argmax(axis=1), minlength=k * k)
    return cells.reshape(k, k)


def _matrix(matrix: Any, classes: Sequence[str]) -> Figure:
    names = list(classes) if len(classes) == len(matrix) else [f"class {k}" for k in range(len(matrix))]
    columns = list(names)
    totals = matrix.sum(axis=1)
    if len(matrix) > _MATRIX_CLASSES:
        mistakes = totals + matrix.sum(axis=0) - 2 * np.diag(matrix)
        worst = np.sort(np.argsort(-mistakes, kind="stable")[:_WORST])
        inner = matrix[np.ix_(worst, worst)]
        others = totals[worst] - inner.sum(axis=1)
        matrix, totals = np.column_stack([inner, others]), totals[worst]
        names = [names[k] for k in worst]
        columns = [*names, "others"]
    with np.errstate(invalid="ignore"):  # a class without test samples has no shares
        shares = 100 * matrix / totals[:, None]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [rounded(row, 1) for row in shares],
        "x": list(range(len(columns))),
        "y": list(range(len(names))),
        "customdata": [
            [f"{plain(one)} taken for {plain(other)}: {int(n):,}" for other, n in zip(columns, row, strict=True)]
            for one, row in zip(names, matrix, strict=True)
        ],
        "hovertemplate": "%{customdata} (%{z:.1f} %)<extra></extra>",
        "colorscale": _STRETCHED,
        "zmin": 0,
        "zmax": 100,
        "xgap": 1,
        "ygap": 1,
    }
    if len(names) <= _NUMBERED:
        numbers = [[f"{share:.0f}" if share >= 0.5 else "" for share in row] for row in shares]
        trace |= {"text": numbers, "texttemplate": "%{text}", "textfont": {"size": 10}, "showscale": False}
    else:
        bar = {"title": {"text": "%"}, "thickness": 8, "outlinewidth": 0, "tickvals": [0, 25, 50, 75, 100]}
        trace |= {"colorbar": bar}
    down = ticks(names, 12)
    layout = {
        "xaxis": axis("predicted class", **ticks(columns, 12), tickangle=-45, showgrid=False),
        "yaxis": axis("true class", **{**down, "range": down["range"][::-1]}, showgrid=False),
    }
    return {
        "data": [trace],
        "layout": layout,
        "height": 330 if len(names) <= _NUMBERED else 400,
    }
