"""The calibration of a run, from its predictions or, where these were left behind, from the figures kept of them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from esupcon.experiments.stored_files import Count
from esupcon.files import read_sealed_json, write_sealed_json
from esupcon.probability import CalibrationReport, Predictions, ReliabilityBins, paper_calibration

PREDICTIONS, KEPT = "predictions.npz", "calibration.json"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Bins(_Part):
    edges: list[float]
    counts: list[Count]
    confidence: list[float | None]  # null: an empty bin
    accuracy: list[float | None]

    @model_validator(mode="after")
    def _of_one_length(self) -> _Bins:
        if {len(self.counts), len(self.confidence), len(self.accuracy), len(self.edges) - 1} != {len(self.counts)}:
            raise ValueError("the lists of the bins differ in length")
        if not sum(self.counts) > 0 or min(self.counts) < 0:
            raise ValueError("the bins hold no samples")
        return self


class Calibration(_Part):
    """The paper's protocol on one run: what a table or a diagram shows of it."""

    temperature: float = Field(gt=0)
    ece_before: float = Field(ge=0, le=1)
    ece_after: float = Field(ge=0, le=1)
    nll_before: float
    nll_after: float
    n_calibration: Count
    n_evaluation: Count
    before: _Bins
    after: _Bins

    @property
    def bins_before(self) -> ReliabilityBins:
        return _as_bins(self.before)

    @property
    def bins_after(self) -> ReliabilityBins:
        return _as_bins(self.after)


def calibration(folder: Path) -> Calibration | None:
    """None where a run has neither predictions nor kept figures, or too few of the former to be split."""
    path = next((folder / name for name in (PREDICTIONS, KEPT) if (folder / name).is_file()), None)
    return None if path is None else _read(path, path.stat().st_mtime_ns)


def keep_calibration(folder: Path, target: Path) -> None:
    """Writes the figures of a run's calibration into `target`, where it has any."""
    found = calibration(folder)
    if found is not None:
        write_sealed_json(target / KEPT, found.model_dump())


@lru_cache(maxsize=4096)  # tables and figures ask for the same runs
def _read(path: Path, changed: int) -> Calibration | None:
    try:
        if path.name == KEPT:
            return Calibration.model_validate(read_sealed_json(path))
        predictions = Predictions.load(path)
        # Intervals of single runs are not shown: the spread over seeds is.
        return _figures(paper_calibration(predictions.logits, predictions.labels, n_resamples=1))
    except (OSError, ValueError, ValidationError):
        return None


def _figures(report: CalibrationReport) -> Calibration:
    return Calibration(
        temperature=report.temperature,
        ece_before=report.ece_before,
        ece_after=report.ece_after,
        nll_before=report.nll_before,
        nll_after=report.nll_after,
        n_calibration=report.n_calibration,
        n_evaluation=report.n_evaluation,
        before=_as_lists(report.bins_before),
        after=_as_lists(report.bins_after),
    )


def _as_lists(bins: ReliabilityBins) -> _Bins:
    def means(values: Any) -> list[float | None]:
        return [None if np.isnan(value) else float(value) for value in values]

    return _Bins(
        edges=bins.edges.tolist(),
        counts=bins.counts.tolist(),
        confidence=means(bins.confidence),
        accuracy=means(bins.accuracy),
    )


def _as_bins(kept: _Bins) -> ReliabilityBins:
    def means(values: list[float | None]) -> Any:
        return np.array([np.nan if value is None else value for value in values])

    return ReliabilityBins(np.array(kept.edges), np.array(kept.counts), means(kept.confidence), means(kept.accuracy))
