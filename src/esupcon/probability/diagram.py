"""Draw reliability diagrams: accuracy against confidence, the gap between them, and how many samples each bin holds.

Needs matplotlib (the extra `report`), which is imported when a diagram is drawn.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from esupcon._io import write_whole
from esupcon.probability.calibration import CalibrationFigures
from esupcon.probability.metrics import Bounds, ReliabilityBins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; in grey print, hatching marks the gap.
_BLUE, _LIGHT_BLUE, _VERMILION = "#0072B2", "#56B4E9", "#D55E00"
_BAR: dict[str, Any] = {"align": "edge", "linewidth": 0.5, "edgecolor": "black"}
_GAP: dict[str, Any] = {"facecolor": (1, 1, 1, 0.45), "linewidth": 0.8}
_OVERCONFIDENT = {**_GAP, "edgecolor": _VERMILION, "hatch": "/////"}
_UNDERCONFIDENT = {**_GAP, "edgecolor": _BLUE, "hatch": "\\\\\\\\\\"}
_DIAGONAL: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.0}
_ACCURACY: dict[str, Any] = {"color": _BLUE, "linewidth": 1.6}
_CONFIDENCE: dict[str, Any] = {"color": _VERMILION, "linewidth": 1.6, "linestyle": (0, (2, 1.2))}

# No dates in the files, so that the same figure gives the same bytes.
_METADATA: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def reliability_diagram(
    bins: ReliabilityBins,
    after: ReliabilityBins | None = None,
    *,
    interval: Bounds | None = None,
    after_interval: Bounds | None = None,
    titles: tuple[str, str] = ("before calibration", "after calibration"),
    path: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Draw `bins`, and `after` beside it if given. Write the figure to `path` (.png, .svg or .pdf) if given.

    The intervals are those of the ECE, shown with it. Titles are shown above a pair.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise ValueError("a diagram needs matplotlib. Install it with: pip install 'esupcon[report]'") from None

    panels = [(bins, interval)] if after is None else [(bins, interval), (after, after_interval)]
    figure = Figure(figsize=(0.5 + 3.4 * len(panels), 4.9), layout="constrained")
    axes = figure.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row", height_ratios=[3, 1])
    for column, (shown, its_interval) in enumerate(panels):
        _draw_panel(axes[0, column], axes[1, column], shown, its_interval)
        if after is not None:
            axes[0, column].set_title(titles[column], fontsize=10)
    axes[0, 0].set_ylabel("accuracy")
    axes[1, 0].set_ylabel("share of\nsamples")
    _add_legend(figure, columns=2 if after is None else 3)
    if path is not None:
        save_figure(figure, path)
    return figure


def calibration_diagram(figures: CalibrationFigures, path: str | os.PathLike[str] | None = None) -> "Figure":
    """Draw the diagrams before and after calibration of `paper_calibration` or `held_out_calibration`."""
    return reliability_diagram(
        figures.bins_before,
        figures.bins_after,
        interval=figures.ece_before_interval,
        after_interval=figures.ece_after_interval,
        titles=("before calibration, T = 1", f"after calibration, T = {figures.temperature:.3g}"),
        path=path,
    )


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> Path:
    """Write the figure in the format of the file name; the same figure gives the same bytes."""
    import matplotlib  # noqa: PLC0415

    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in _METADATA:
        raise ValueError(
            f"the file name of a diagram must end in .png, .svg or .pdf; got {target.name!r}. "
            "PNG is for screens, SVG and PDF for print."
        )
    # Text stays text in SVG, and its identifiers do not change from run to run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "esupcon"}):
        return write_whole(target, lambda file: figure.savefig(file, format=kind, dpi=200, metadata=_METADATA[kind]))


def _draw_panel(upper: "Axes", lower: "Axes", bins: ReliabilityBins, interval: Bounds | None) -> None:
    held = np.flatnonzero(bins.counts)
    left, width = bins.edges[held], np.diff(bins.edges)[held]
    accuracy, confidence = (np.array(values, float)[held] for values in (bins.accuracy, bins.confidence))
    upper.bar(left, accuracy, width, color=_LIGHT_BLUE, **_BAR)
    over = confidence > accuracy
    for chosen, style in ((over, _OVERCONFIDENT), (~over, _UNDERCONFIDENT)):
        gap = (confidence - accuracy)[chosen]
        upper.bar(left[chosen], gap, width[chosen], bottom=accuracy[chosen], align="edge", **style)
    # A thick line at the accuracy, whichever side of it the gap lies on.
    upper.hlines(accuracy, left, left + width, color="black", linewidth=1.8, clip_on=False)
    upper.plot([0, 1], [0, 1], **_DIAGONAL)
    upper.set(xlim=(0, 1), ylim=(0, 1))
    lines = [f"ECE {100 * bins.expected_calibration_error:.2f} %"]
    if interval is not None and None not in interval:
        lines += [
            "95 % interval",
            "{:.2f} to {:.2f} %".format(*(100 * bound for bound in interval if bound is not None)),
        ]
    box = {"facecolor": "white", "edgecolor": "0.3", "boxstyle": "round,pad=0.35"}
    text = "\n".join([*lines, f"n = {sum(bins.counts):,}"])
    upper.text(0.97, 0.04, text, transform=upper.transAxes, ha="right", va="bottom", fontsize=9, bbox=box)

    share = np.array(bins.counts)[held] / sum(bins.counts)
    lower.bar(left, share, width, color="0.75", **_BAR)
    lower.axvline(float(share @ accuracy), **_ACCURACY)
    lower.axvline(float(share @ confidence), **_CONFIDENCE)
    lower.set_xlabel("confidence")


def _add_legend(figure: "Figure", columns: int) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    # Not collected from the axes: a panel need not contain every kind of mark.
    handles = [
        Line2D([], [], **_DIAGONAL, label="perfect calibration"),
        Patch(facecolor=_LIGHT_BLUE, edgecolor="black", linewidth=0.5, label="accuracy"),
        Patch(**_OVERCONFIDENT, label="gap, overconfident"),
        Patch(**_UNDERCONFIDENT, label="gap, underconfident"),
        Line2D([], [], **_ACCURACY, label="overall accuracy"),
        Line2D([], [], **_CONFIDENCE, label="mean confidence"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
