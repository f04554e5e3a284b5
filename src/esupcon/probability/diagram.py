"""The reliability diagram: accuracy against confidence, the gap between them, and where the confidences lie."""

import os
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from esupcon.files import write_whole
from esupcon.probability.bootstrap import Interval
from esupcon.probability.calibration import CalibrationReport
from esupcon.probability.reliability import ReliabilityBins
from esupcon.probability.validation import FloatArray

# Okabe and Ito's palette, told apart by colour-blind readers; in grey print the gap is told by its hatching.
_BLUE = "#0072B2"
_LIGHT_BLUE = "#56B4E9"
_VERMILION = "#D55E00"

_GAP: dict[str, Any] = {"facecolor": (1, 1, 1, 0.45), "linewidth": 0.8}
_OVERCONFIDENT: dict[str, Any] = {"edgecolor": _VERMILION, "hatch": "/////"}
_UNDERCONFIDENT: dict[str, Any] = {"edgecolor": _BLUE, "hatch": "\\\\\\\\\\"}
_OVERALL_ACCURACY: dict[str, Any] = {"color": _BLUE, "linewidth": 1.6}
_MEAN_CONFIDENCE: dict[str, Any] = {"color": _VERMILION, "linewidth": 1.6, "linestyle": (0, (2, 1.2))}

_FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}


def reliability_diagram(
    bins: ReliabilityBins,
    after: ReliabilityBins | None = None,
    *,
    interval: Interval | None = None,
    after_interval: Interval | None = None,
    titles: tuple[str, str] = ("before calibration", "after calibration"),
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw `bins`, beside `after` where given, and write the figure to `path` (.png, .svg or .pdf) where given.

    The intervals come from bootstrap_interval: of expected_calibration_error, or of adaptive_calibration_error for
    bins of equal mass. Titles are shown for a pair, whose bins must be of one strategy.
    """
    if after is None and after_interval is not None:
        raise ValueError("after_interval needs the bins it belongs to; got after=None. Pass `after` too.")
    if after is not None and after.strategy != bins.strategy:
        raise ValueError(
            f"both sides must be binned alike; got {bins.strategy!r} and {after.strategy!r}. "
            "Pass the same strategy to reliability_bins."
        )
    panels = [(bins, interval)] if after is None else [(bins, interval), (after, after_interval)]
    figure = Figure(figsize=(0.5 + 3.4 * len(panels), 4.9), layout="constrained")
    axes = figure.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row", height_ratios=[3, 1])
    for column, (shown, its_interval) in enumerate(panels):
        upper, lower = axes[0, column], axes[1, column]
        _draw_reliability(upper, shown, its_interval)
        _draw_histogram(lower, shown)
        if after is not None:
            upper.set_title(titles[column], fontsize=10)
        if column == 0:
            upper.set_ylabel("accuracy")
            lower.set_ylabel("share of\nsamples" if bins.strategy == "uniform" else "density of\nsamples")
    _add_legend(figure)
    if path is not None:
        save_figure(figure, path)
    return figure


def calibration_diagram(report: CalibrationReport, path: str | os.PathLike[str] | None = None) -> Figure:
    """The pair before and after, from paper_calibration or held_out_calibration."""
    return reliability_diagram(
        report.bins_before,
        report.bins_after,
        interval=report.ece_before_interval,
        after_interval=report.ece_after_interval,
        titles=("before calibration, T = 1", f"after calibration, T = {report.temperature:.3g}"),
        path=path,
    )


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write the figure in the format its name ends in; the same figure gives the same bytes."""
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(
            f"a diagram's file name must end in {', '.join(_FORMATS)}; got {target.name!r}. "
            "PNG is for screens, SVG and PDF for print."
        )
    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]
    # Text stays text in SVG, and its identifiers do not change from run to run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "esupcon"}):
        return write_whole(target, lambda file: figure.savefig(file, format=_FORMATS[suffix], dpi=200, metadata=dated))


def _draw_reliability(axes: Axes, bins: ReliabilityBins, interval: Interval | None) -> None:
    held = bins.counts > 0
    left, width = _spans(bins)
    accuracy, confidence = bins.accuracy[held], bins.confidence[held]
    axes.bar(left, accuracy, width, align="edge", color=_LIGHT_BLUE, edgecolor="black", linewidth=0.5)
    over = confidence > accuracy
    for chosen, style in ((over, _OVERCONFIDENT), (~over, _UNDERCONFIDENT)):
        gap = (confidence - accuracy)[chosen]
        axes.bar(left[chosen], gap, width[chosen], bottom=accuracy[chosen], align="edge", **_GAP, **style)
    # The thick line is where the accuracy is, whichever side of it the gap lies on.
    axes.hlines(accuracy, left, left + width, color="black", linewidth=1.8, clip_on=False)
    axes.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1.0)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.text(
        0.97,
        0.04,
        _ece_text(bins, interval),
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "0.3", "boxstyle": "round,pad=0.35"},
    )


def _draw_histogram(axes: Axes, bins: ReliabilityBins) -> None:
    n = bins.counts.sum()
    held = bins.counts > 0
    left, width = _spans(bins)
    share = bins.counts[held] / n
    # Bins of equal mass all hold the same share: only their density shows where the samples lie.
    height = share if bins.strategy == "uniform" else share / width
    axes.bar(left, height, width, align="edge", color="0.75", edgecolor="black", linewidth=0.5)
    mean_confidence = float(share @ bins.confidence[held])
    mean_accuracy = float(share @ bins.accuracy[held])
    axes.axvline(mean_accuracy, **_OVERALL_ACCURACY)
    axes.axvline(mean_confidence, **_MEAN_CONFIDENCE)
    axes.set_xlabel("confidence")


def _spans(bins: ReliabilityBins) -> tuple[FloatArray, FloatArray]:
    """Left edges and widths of the bins that hold samples; a bin of one repeated value is widened to be seen."""
    held = bins.counts > 0
    width = np.maximum(np.diff(bins.edges)[held], 0.004)
    return np.minimum(bins.edges[:-1][held], 1.0 - width), width


def _add_legend(figure: Figure) -> None:
    # Made by hand, not collected from the axes: a panel need not contain every kind of mark.
    handles = [
        Line2D([], [], color="black", linestyle="--", linewidth=1.0, label="perfect calibration"),
        Patch(facecolor=_LIGHT_BLUE, edgecolor="black", linewidth=0.5, label="accuracy"),
        Patch(**_GAP, **_OVERCONFIDENT, label="gap, overconfident"),
        Patch(**_GAP, **_UNDERCONFIDENT, label="gap, underconfident"),
        Line2D([], [], **_OVERALL_ACCURACY, label="overall accuracy"),
        Line2D([], [], **_MEAN_CONFIDENCE, label="mean confidence"),
    ]
    columns = 2 if figure.get_figwidth() < 5 else 3
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def _ece_text(bins: ReliabilityBins, interval: Interval | None) -> str:
    error = bins.expected_calibration_error
    name = "ECE" if bins.strategy == "uniform" else "adaptive ECE"
    lines = [f"{name} {100 * error:.2f} %"]
    if interval is not None:
        if abs(interval.value - error) > 1e-9:
            raise ValueError(
                f"the interval must belong to these bins' {name}, {error:.6f}; it is of {interval.value:.6f}. "
                "Compute it with bootstrap_interval on the same samples and bins."
            )
        lines += [
            f"{100 * interval.confidence:g} % interval",
            f"{100 * interval.low:.2f} to {100 * interval.high:.2f} %",
        ]
    return "\n".join([*lines, f"n = {int(bins.counts.sum()):,}"])
