"""Seconds and memory, method by method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from esupcon.experiments.store import StoredRun
from esupcon.report.aggregate import TableResult, summary_of
from esupcon.report.details import Detail
from esupcon.report.figures.grid import along_axis
from esupcon.report.measures import STEP, peak_megabytes, step_milliseconds
from esupcon.report.sections import Card, Option, Section, Style, axis, plain, rounded
from esupcon.report.words import method_title


def cost(tables: Sequence[TableResult], details: Sequence[Detail], style: Mapping[str, Style]) -> Section:
    options = [option for table in tables if table.measure is STEP for option in along_axis(table, style)]
    drawn = {option.label for option in options}
    for detail in details:
        if detail.label in drawn or (detail.table.measure is STEP and options):
            continue
        cards = [
            card
            for title, unit, of in (
                ("Time of a training step", "milliseconds", step_milliseconds),
                ("Training time of a run", "seconds", lambda run: run.seconds),
                ("Peak memory", "megabytes", peak_megabytes),
            )
            if (card := _bars(title, unit, of, detail.all_runs, style)) is not None
        ]
        if cards:
            options.append(Option(detail.label, cards, "Means over all seeds; whiskers are deviations over them."))
    return Section(
        "cost",
        "What a method costs",
        "Shorter bars and lower lines are cheaper. Times are of the machine and the number of processes that shared "
        "it: compare methods with each other, not with other machines.",
        options,
        "No run here says what it cost.",
    )


def _bars(
    title: str,
    unit: str,
    of: Callable[[StoredRun], float | None],
    runs: Mapping[str, Sequence[StoredRun]],
    style: Mapping[str, Style],
) -> Card | None:
    values = {method: [v for run in group if (v := of(run)) is not None] for method, group in runs.items()}
    known = {method: one for method, group in values.items() if (one := summary_of(group)) is not None}
    if not known:
        return None
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [plain(method_title(method))],
            "x": rounded([one.mean], 3),
            "error_x": {
                "type": "data",
                "array": rounded([one.deviation], 3),
                "visible": one.deviation is not None,
                "color": "ink",
            },
            "text": [f"{one.mean:,.4g}"],
            "textposition": "inside",
            "insidetextanchor": "start",  # the whisker is at the other end
            "meta": {"method": method},
            "name": plain(method_title(method)),
            "marker": {"color": style[method].colour},
            "hovertemplate": f"%{{y}}: %{{x:.4g}} {unit}, n = {one.n}<extra></extra>",
        }
        for method, one in known.items()
    ]
    layout = {
        "xaxis": axis(unit, rangemode="tozero"),
        "yaxis": axis("", type="category", autorange="reversed"),
        "showlegend": False,
        "bargap": 0.35,
    }
    return Card(title, {"data": traces, "layout": layout, "height": 90 + 32 * len(known)})
