"""Files of runs that cannot be read: what they would show is missing from a report, and the report says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from esupcon.experiments.store import StoredRun
from esupcon.files import read_sealed_json
from esupcon.npz_file import array_names, read_arrays
from esupcon.probability import Predictions
from esupcon.report.aggregate import TableResult
from esupcon.report.details import chosen_details
from esupcon.report.figures.maps import EMBEDDING
from esupcon.report.kept_calibration import KEPT, PREDICTIONS, Calibration, calibration
from esupcon.report.measures import ECE


def unreadable_files(tables: Sequence[TableResult], runs: Mapping[str, StoredRun]) -> list[str]:
    """A line for each damaged file of the runs that are drawn, or that a table of calibration errors would show."""
    details, _ = chosen_details(tables, runs)
    drawn = {run.key: run for detail in details for run in detail.runs.values()}
    drawn |= {run.key: run for run in _calibrated(tables, runs) if calibration(run.folder) is None}
    return damage_of(drawn.values())


def damage_of(runs: Iterable[StoredRun]) -> list[str]:
    paths = [path for run in runs for name in (PREDICTIONS, KEPT, EMBEDDING) if (path := run.folder / name).is_file()]
    return [line for path in paths if (line := _complaint(path)) is not None]


def _calibrated(tables: Sequence[TableResult], runs: Mapping[str, StoredRun]) -> Iterator[StoredRun]:
    for table in tables:
        if table.measure is ECE:
            keys = (place.key for places in table.places.values() for place in places)
            yield from (runs[key] for key in keys if key in runs)


def _complaint(path: Path) -> str | None:
    try:
        if path.name == PREDICTIONS:
            Predictions.load(path)
        elif path.name == KEPT:
            Calibration.model_validate(read_sealed_json(path))
        else:
            read_arrays(path, array_names(path))
    except (OSError, ValueError) as error:
        return " ".join(f"{path} cannot be read, so what it would show is left out: {error}".split())
    return None
