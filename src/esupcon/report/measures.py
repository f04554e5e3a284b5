"""What the cells of a table can hold: a figure of a run, its unit, and which way is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from esupcon.experiments.store import StoredRun
from esupcon.files import read_json_lines
from esupcon.report.kept_calibration import calibration

TIMING = "timing.jsonl"


@dataclass(frozen=True)
class Measure:
    """`of` gives the figure of a run in `unit`, or None where the run has none.

    A gain is the difference to the baseline in the same unit or, where it is `relative`, in per cent of the baseline.
    """

    key: str
    title: str
    unit: str
    digits: int
    lower_is_better: bool
    of: Callable[[StoredRun], float | None]
    paper: str = ""  # the field of a plan's row that holds the paper's figure
    paper_scale: float = 1.0
    relative: bool = False

    def paper_figure(self, row: Mapping[str, Any]) -> float | None:
        printed = row.get(self.paper) if self.paper else None
        return None if printed is None else round(self.paper_scale * float(printed), 6)

    def gain(self, value: float, baseline: float) -> float:
        return 100 * (value / baseline - 1) if self.relative else value - baseline

    @property
    def gain_unit(self) -> str:
        return "%" if self.relative else "points"


def _accuracy(run: StoredRun) -> float | None:
    share = run.accuracy
    return None if share is None else 100 * share


def _held_out_accuracy(run: StoredRun) -> float | None:
    metrics = run.result["metrics"].get("held_out")
    share = metrics.get("accuracy") if isinstance(metrics, dict) else None
    return 100 * share if isinstance(share, int | float) else None


def _ece_after(run: StoredRun) -> float | None:
    report = calibration(run.folder)
    return None if report is None else 100 * report.ece_after


def _ece_before(run: StoredRun) -> float | None:
    report = calibration(run.folder)
    return None if report is None else 100 * report.ece_before


def step_milliseconds(run: StoredRun) -> float | None:
    """Seconds of all epochs over their number of steps, which are images / batch size."""
    batch = run.result.get("batch_size")
    seconds = images = 0.0
    for line in read_json_lines(run.folder / TIMING):
        duration, rate = line.get("seconds"), line.get("images_per_second")
        if isinstance(duration, int | float) and isinstance(rate, int | float):
            seconds += duration
            images += duration * rate
    if not isinstance(batch, int) or batch < 1 or images <= 0:
        return None
    return 1000 * seconds / (images / batch)


def epoch_seconds(run: StoredRun) -> float | None:
    durations = [line.get("seconds") for line in read_json_lines(run.folder / TIMING)]
    known = [float(one) for one in durations if isinstance(one, int | float)]
    return sum(known) / len(known) if known else None


def peak_megabytes(run: StoredRun) -> float | None:
    provenance = run.result["provenance"]
    if provenance.get("taken_seconds"):
        return None  # another run trained its encoder, and that is where the peak lies
    peak = provenance.get("peak_memory_bytes")
    return peak / 2**20 if isinstance(peak, int | float) else None


ACCURACY = Measure("accuracy", "Accuracy on the test set", "%", 1, False, _accuracy, paper="paper_accuracy")
HELD_OUT = Measure("held_out", "Accuracy on held-out training samples", "%", 1, False, _held_out_accuracy)
ECE = Measure("ece", "ECE after calibration", "%", 2, True, _ece_after, paper="paper_ece", paper_scale=100)
ECE_BEFORE = Measure("ece_before", "ECE before calibration", "%", 2, True, _ece_before)
STEP = Measure("step_time", "Time of a training step", "ms", 1, True, step_milliseconds, relative=True)
MEMORY = Measure("memory", "Peak memory", "MB", 0, True, peak_megabytes, relative=True)

# By the measure that a table names; a table is shown once for each.
PANELS: dict[str, tuple[Measure, ...]] = {
    "accuracy": (ACCURACY,),
    "held_out": (HELD_OUT,),  # a table that settings are chosen by shows nothing of the test set
    "ece": (ECE, ECE_BEFORE),
    "cost": (STEP, MEMORY),
}
