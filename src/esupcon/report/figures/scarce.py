"""Accuracy of single classes where some were made scarce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from esupcon.experiments.store import StoredRun
from esupcon.report.aggregate import summary_of
from esupcon.report.details import Detail
from esupcon.report.sections import Card, Figure, Option, Section, Style, axis, plain, rounded, ticks
from esupcon.report.words import method_title

_CLASSES_SHOWN = 30


def scarce_classes(details: Sequence[Detail], style: Mapping[str, Style]) -> Section:
    options = []
    for detail in details:
        groups = _group_figure(detail, style)
        if groups is None:
            continue
        cards = [Card("Scarce classes against the others", groups)]
        note = "Means over all seeds, each of which draws its own scarce classes."
        single = _class_figure(detail, style)
        if single is not None:
            cards.append(Card(f"Every class, seed {detail.seed}", single, wide=True))
        else:
            note += f" With more than {_CLASSES_SHOWN} classes, single ones are not drawn."
        options.append(Option(detail.label, cards, note))
    return Section(
        "classes",
        "Classes that are scarce",
        "The overall accuracy hides what happens to rare classes: look at how far a method drops from the others to "
        "the scarce ones, which are shaded and marked ◆.",
        options,
        "No run here made classes scarce, as esupcon reproduce imbalanced does.",
    )


def _scarce(run: StoredRun) -> set[int]:
    preparation = run.result.get("preparation")
    scenario = preparation.get("scenario") if isinstance(preparation, dict) else None
    found = scenario.get("scarce_classes") if isinstance(scenario, dict) else None
    return {k for k in found if isinstance(k, int)} if isinstance(found, list) else set()


def _class_accuracies(run: StoredRun) -> list[float | None]:
    test = run.result["metrics"]["test"] or {}
    rows = test.get("per_class") or []
    return [100 * row["accuracy"] if row.get("n") and row.get("accuracy") is not None else None for row in rows]


def _group_figure(detail: Detail, style: Mapping[str, Style]) -> Figure | None:
    traces = []
    for method, runs in detail.all_runs.items():
        sides: tuple[list[float], list[float]] = ([], [])
        for run in runs:
            scarce, accuracies = _scarce(run), _class_accuracies(run)
            if scarce:
                for side, wanted in zip(sides, (True, False), strict=True):
                    found = [a for k, a in enumerate(accuracies) if a is not None and (k in scarce) is wanted]
                    side.extend([sum(found) / len(found)] if found else [])
        summaries = [summary_of(side) for side in sides]
        if all(one is None for one in summaries):
            continue
        traces.append(
            {
                "type": "bar",
                "x": ["scarce classes", "other classes"],
                "y": rounded([None if one is None else one.mean for one in summaries], 2),
                "error_y": {
                    "type": "data",
                    "array": rounded([None if one is None else one.deviation for one in summaries], 2),
                    "visible": any(one is not None and one.deviation is not None for one in summaries),
                    "thickness": 1,
                    "color": "ink",
                },
                "name": plain(method_title(method)),
                "meta": {"method": method},
                "marker": {"color": style[method].colour},
                "hovertemplate": "%{fullData.name}, %{x}: %{y:.1f} %<extra></extra>",
            }
        )
    if not traces:
        return None
    layout = {
        "xaxis": axis("", type="category"),
        "yaxis": axis("mean accuracy of the classes (%)", range=[0, 105]),
        "barmode": "group",
        "showlegend": True,
    }
    return {"data": traces, "layout": layout, "height": 380}


def _class_figure(detail: Detail, style: Mapping[str, Style]) -> Figure | None:
    scarce = next((found for run in detail.runs.values() if (found := _scarce(run))), set())
    by_method = {method: _class_accuracies(run) for method, run in detail.runs.items()}
    n = max((len(one) for one in by_method.values()), default=0)
    if not scarce or not 0 < n <= _CLASSES_SHOWN:
        return None
    order = [*(k for k in range(n) if k in scarce), *(k for k in range(n) if k not in scarce)]
    names = detail.classes if len(detail.classes) == n else [f"class {k}" for k in range(n)]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [order.index(k) for k, value in enumerate(values) if value is not None],
            "y": rounded([value for value in values if value is not None], 1),
            "text": [plain(names[k]) for k, value in enumerate(values) if value is not None],
            "name": plain(method_title(method)),
            "meta": {"method": method},
            "marker": {"symbol": style[method].symbol, "size": 9, "color": style[method].colour, "opacity": 0.85},
            "hovertemplate": "%{fullData.name}, %{text}: %{y:.1f} %<extra></extra>",
        }
        for method, values in by_method.items()
    ]
    shade = {"type": "rect", "xref": "x", "yref": "paper", "x0": -0.5, "x1": len(scarce) - 0.5, "y0": 0, "y1": 1}
    layout = {
        "xaxis": axis("class", **ticks([f"{'◆ ' if k in scarce else ''}{names[k]}" for k in order]), showgrid=False),
        "yaxis": axis("accuracy of the class (%)", range=[-4, 104]),
        "shapes": [{**shade, "fillcolor": "#8a93a0", "opacity": 0.14, "line": {"width": 0}, "layer": "below"}],
        "showlegend": True,
    }
    return {"data": traces, "layout": layout, "height": 400}
