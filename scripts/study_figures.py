"""The figures of docs/results.md, from the stored runs of a study."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from study_search import common
from study_tables import BASELINE, OURS, SETTINGS, difference

from esupcon.probability.diagram import save_figure
from esupcon.report.aggregate import TableResult
from esupcon.report.content import Content
from esupcon.report.kept_calibration import calibration
from esupcon.report.sections import styles
from esupcon.report.words import dataset_title, method_title

_PANELS_ABREAST = 4
_MARKS = ("o", "s", "D", "^", "v", "P", "X")


def draw(study: Content, searched: Content, folder: Path) -> None:
    _gains(study, folder / "study-gains.png")
    _lengths(searched, folder / "study-epochs.png")
    _reliability(study, folder / "study-reliability.png")


def _gains(study: Content, path: Path) -> None:
    """The difference of every method to CE in every column."""
    tables = [table for table in study.tables if table.name in SETTINGS]
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    widths = [len(table.columns) for table in tables]
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False, width_ratios=widths)[0]
    for axes, table in zip(panels, tables, strict=True):
        _panel(axes, table, study)
    panels[0].set_ylabel("accuracy less that of CE, points")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    save_figure(figure, path)


def _panel(axes: Axes, table: TableResult, study: Content) -> None:
    methods = [method for method in table.methods if method != BASELINE]
    style = styles(table.methods)
    for m, method in enumerate(methods):
        at, means, widths = [], [], []
        for i in range(len(table.columns)):
            runs = study.collected.runs
            found = difference(table.runs(i, method, runs), table.runs(i, BASELINE, runs))
            if found is not None:
                at.append(i + 0.7 * ((m + 0.5) / len(methods) - 0.5))
                means.append(found.mean)
                widths.append(found.half_width)
        axes.errorbar(
            at,
            means,
            yerr=widths,
            fmt=_MARKS[m % len(_MARKS)],
            ms=7 if method == OURS else 5,
            lw=1,
            color=style[method].colour,
            label=method_title(method),
            zorder=3 if method == OURS else 2,
        )
    axes.axhline(0, color="#666", lw=0.8)
    axes.set_title(SETTINGS[table.name], fontsize=11)
    names = [f"{dataset_title(column.dataset)}\n{column.setting}" for column in table.columns]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(axis="y", lw=0.4, color="#ddd")
    axes.spines[["top", "right"]].set_visible(False)


def _lengths(searched: Content, path: Path) -> None:
    """The best held-out accuracy of each method against the length of training."""
    figure = Figure(figsize=(6.2, 3.8), layout="constrained")
    axes = figure.subplots()
    style = styles(searched.methods)
    for m, method in enumerate(searched.methods):
        best: dict[int, float] = {}
        for run in common(searched):
            if run.spec.train.method == method:
                share = run.result["metrics"]["held_out"]["accuracy"]
                epochs = run.spec.train.epochs
                best[epochs] = max(best.get(epochs, 0.0), 100 * share)
        lengths = sorted(best)
        mark = _MARKS[m % len(_MARKS)]
        axes.plot(
            lengths, [best[n] for n in lengths], mark + "-", color=style[method].colour, label=method_title(method)
        )
    axes.set_xscale("log")
    ticks = sorted({run.spec.train.epochs for run in common(searched)})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("epochs")
    axes.set_ylabel("best held-out accuracy, %")
    axes.legend(frameon=False, fontsize=9)
    axes.grid(lw=0.4, color="#ddd")
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def _reliability(study: Content, path: Path) -> None:
    """Before and after one temperature, the methods side by side, the first seed of each."""
    table = next((table for table in study.tables if table.name == "calibration"), None)
    found = []
    for method in table.methods if table else ():
        for run in table.runs(0, method, study.collected.runs)[:1]:
            report = calibration(run.folder)
            if report is not None:
                found.append((method, report))
    if not found:
        return
    n_rows = math.ceil(len(found) / _PANELS_ABREAST)
    n_columns = math.ceil(len(found) / n_rows)  # rows of about one length
    figure = Figure(figsize=(1 + 2.5 * n_columns, 0.4 + 2.7 * n_rows), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for unused in panels[len(found) :]:
        unused.set_visible(False)
    style = styles([method for method, _ in found])
    for axes, (method, report) in zip(panels, found, strict=False):
        axes.plot([0, 1], [0, 1], ":", color="#888", lw=1)
        for name, bins, line in (("before", report.bins_before, "--o"), ("after", report.bins_after, "-o")):
            held = bins.counts > 0
            ece = report.ece_before if name == "before" else report.ece_after
            axes.plot(
                bins.confidence[held],
                bins.accuracy[held],
                line,
                color=style[method].colour,
                mfc="white" if name == "before" else None,
                ms=4,
                lw=1.2,
                label=f"{name}: ECE {100 * ece:.1f} %",
            )
        axes.set_title(textwrap.fill(method_title(method), 18), fontsize=10)
        axes.set_xlabel("confidence")
        axes.legend(frameon=False, fontsize=7.5, loc="lower right", borderaxespad=0.1)
        axes.set_xticks([0, 0.5, 1])
        axes.tick_params(labelbottom=True)  # also where no panel stands below
        axes.set_aspect("equal")
        axes.spines[["top", "right"]].set_visible(False)
    for row in grid:
        row[0].set_ylabel("accuracy")
    save_figure(figure, path)
