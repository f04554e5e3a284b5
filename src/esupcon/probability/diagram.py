"""Draw reliability diagrams: accuracy against confidence, the gap between them, and how many samples each bin holds."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from esupcon._io import write_whole
from esupcon.probability.metrics import ReliabilityBins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; in grey print, hatching marks the gap.
_BLUE, _LIGHT_BLUE, _VERMILION = "#0072B2", "#56B4E9", "#D55E00"
_BAR: dict[str, Any] = {"align": "edge", "linewidth": 0.5, "edgecolor": "black"}
_GAP: dict[str, Any] = {"facecolor": (1, 1, 1, 0.45), "linewidth": 0.8, "edgecolor": _VERMILION, "hatch": "/////"}


def reliability_diagram(
    bins: ReliabilityBins, after: ReliabilityBins | None = None, *, path: str | os.PathLike[str] | None = None
) -> "Figure":
    """Draw `bins`, and those after calibration beside them if given. Needs the extra `report`.

    With `path`, write the figure to a .png, .svg or .pdf file.
    """
    if path is not None and Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"the file name of a diagram must end in .png, .svg or .pdf; got {Path(path).name!r}.")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise ValueError("a diagram needs matplotlib. Install it with: pip install 'esupcon[report]'") from None

    panels = {"": bins} if after is None else {"before calibration": bins, "after calibration": after}
    figure = Figure(figsize=(0.5 + 3.4 * len(panels), 4.9), layout="constrained")
    axes = figure.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row", height_ratios=[3, 1])
    for column, (title, shown) in enumerate(panels.items()):
        axes[0, column].set_title(title, fontsize=10)
        _draw_panel(axes[0, column], axes[1, column], shown)
    axes[0, 0].set_ylabel("accuracy")
    axes[1, 0].set_ylabel("share of\nsamples")
    handles = [handle for each in axes[:, 0] for handle in each.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=1 + len(panels), fontsize=8, frameon=False)
    if path is not None:
        write_whole(path, lambda file: figure.savefig(file, format=Path(path).suffix[1:], dpi=200))
    return figure


def _draw_panel(upper: "Axes", lower: "Axes", bins: ReliabilityBins) -> None:
    held, n = np.flatnonzero(bins.counts), sum(bins.counts)
    left, width = bins.edges[held], 1 / len(bins.counts)
    accuracy, confidence = (np.array(values, float)[held] for values in (bins.accuracy, bins.confidence))
    upper.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1.0, label="perfect calibration")
    upper.bar(left, accuracy, width, color=_LIGHT_BLUE, label="accuracy", **_BAR)
    upper.bar(left, confidence - accuracy, width, bottom=accuracy, align="edge", label="gap to confidence", **_GAP)
    # A thick line at the accuracy, whichever side of it the gap lies on.
    upper.hlines(accuracy, left, left + width, color="black", linewidth=1.8, clip_on=False)
    upper.set(xlim=(0, 1), ylim=(0, 1))
    text = f"ECE {100 * bins.expected_calibration_error:.2f} %\nn = {n:,}"
    box = {"facecolor": "white", "edgecolor": "0.3", "boxstyle": "round,pad=0.35"}
    upper.text(0.97, 0.04, text, transform=upper.transAxes, ha="right", va="bottom", fontsize=9, bbox=box)

    share = np.array(bins.counts)[held] / n
    lower.bar(left, share, width, color="0.75", **_BAR)
    lower.axvline(float(share @ accuracy), color=_BLUE, linewidth=1.6, label="overall accuracy")
    lower.axvline(float(share @ confidence), color=_VERMILION, linewidth=1.6, linestyle=":", label="mean confidence")
    lower.set_xlabel("confidence")
