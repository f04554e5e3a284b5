"""Read everything that a report shows from a store of runs or a one-file study. Each file is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from esupcon._console import count, duration, printable
from esupcon._io import array_names, read_arrays
from esupcon.doctor import SEVERITIES, Finding
from esupcon.experiments.store import StoredRun, read_contents
from esupcon.probability import CalibrationFigures, Predictions
from esupcon.report.aggregate import ResultTable, result_tables
from esupcon.report.format import dataset_title, listed, method_order, method_title
from esupcon.report.projection import Embedding, sample
from esupcon.training.result import EMBEDDING_FILE, PREDICTIONS_FILE

MOST_COLUMNS = 12  # settings of which single runs are drawn
File = TypeVar("File")
Confusion = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]  # true and predicted class of each test sample


@dataclass(frozen=True)
class DrawnRun:
    """What the figures show of one run."""

    history: Sequence[Mapping[str, Any]]
    calibration: CalibrationFigures | None
    confusion: Confusion | None
    embedding: Embedding | None


@dataclass(frozen=True)
class DrawnColumn:
    """A column of which one run of each method is drawn. `classes` are in the order of the logits."""

    label: str
    note: str  # which seed, and which methods are missing
    classes: Sequence[str]
    runs: Mapping[str, DrawnRun]


@dataclass(frozen=True)
class Content:
    """What a report shows, whatever its format."""

    runs: Mapping[str, StoredRun]  # of the tables shown
    tables: Sequence[ResultTable]
    drawn: Sequence[DrawnColumn]
    n_not_drawn: int
    findings: Sequence[tuple[Finding, Sequence[str]]]  # the most severe finding of each code, and the runs that have it
    unfinished: Sequence[tuple[str, str]]  # run, and why it is missing
    problems: Sequence[str]  # a line for each run, plan or file that cannot be read
    facts: Sequence[tuple[str, str]]  # how the results were produced
    n_planned: int

    @property
    def methods(self) -> list[str]:
        return method_order(method for table in self.tables for method in table.methods)

    @property
    def completeness(self) -> str:
        """How many of the planned runs are finished, in one sentence."""
        return f"{len(self.runs):,} of {count(self.n_planned, 'planned run')} finished."


def read(store: Path, tables: Sequence[str] = (), command: str = "") -> Content:
    """Read a store or a study. `tables` selects tables by name or by name-profile, such as `full-cpu`.

    Damaged runs, plans and files are left out and named in `problems`. So are runs that no plan names.
    """
    found = read_contents(store)
    names = [{plan.table, f"{plan.table}-{plan.profile}"} for plan in found.plans]
    if unknown := [name for name in tables if not any(name in both for both in names)]:
        there = listed(list(dict.fromkeys(plan.table for plan in found.plans)), 20) or "no table"
        raise ValueError(f"{store} has no table {listed(unknown)}. It has {there}.")
    chosen = [plan for plan, both in zip(found.plans, names, strict=True) if not tables or both & set(tables)]
    results = result_tables(chosen, found.runs)
    planned = {
        key: printable(f"{method_title(row.method)} on {dataset_title(row.dataset)}, {row.setting}, seed {row.seed}")
        for table in results
        for key, row in table.rows.items()
    }
    runs = {key: run for key, run in found.runs.items() if key in planned}
    problems = list(found.problems)
    if unplanned := found.runs.keys() - {row.key for plan in found.plans for row in plan.rows}:
        problems.append(f"{count(len(unplanned), 'run')} in the store that no plan names: {listed(sorted(unplanned))}.")
    drawn, n_not_drawn = _drawn_columns(results, runs, problems)
    reasons = {key: f"failed: {error}" for key, error in found.failures.items()}
    for key in planned.keys() - runs.keys():
        reasons.update((key, f"damaged: {line}") for line in found.problems if key in line)
    facts = [("this report", command)] if command else []
    facts += [(f"{table.plan.table}, {table.plan.profile}", line) for table in results for line in table.commands]
    facts += [("source", str(store)), *_provenance(runs.values())]
    return Content(
        runs=runs,
        tables=results,
        drawn=drawn,
        n_not_drawn=n_not_drawn,
        findings=_grouped_findings(runs, planned),
        unfinished=[
            (name, printable(reasons.get(key, "not run yet"))) for key, name in planned.items() if key not in runs
        ],
        problems=[printable(line) for line in problems],
        facts=[(printable(name), printable(value)) for name, value in facts],
        n_planned=len(planned),
    )


def _grouped_findings(runs: Mapping[str, StoredRun], names: Mapping[str, str]) -> list[tuple[Finding, list[str]]]:
    """Group findings by code: most severe first, then most frequent."""
    groups: dict[str, list[tuple[Finding, str]]] = {}
    for key, run in runs.items():
        for finding in run.result.findings:
            groups.setdefault(finding.code, []).append((finding, names[key]))
    found = []
    for code in sorted(groups):
        worst = max((finding for finding, _ in groups[code]), key=lambda one: SEVERITIES.index(one.severity))
        found.append((worst, list(dict.fromkeys(name for _, name in groups[code]))))
    return sorted(found, key=lambda one: (-SEVERITIES.index(one[0].severity), -len(one[1])))


def _provenance(runs: Collection[StoredRun]) -> list[tuple[str, str]]:
    """Return times, commit, versions and machine; where runs differ, every value with its number of runs."""
    records = [run.result.provenance for run in runs]
    finished = sorted(one.finished for one in records if one.finished)
    facts = [("time of all runs", duration(sum(one.seconds for one in records)))]
    facts += [("finished", f"first run {finished[0]}, last run {finished[-1]}")] if finished else []
    values = {"commit": [one.commit or "unknown (installed, not a checkout)" for one in records]}
    for name in sorted({name for one in records for name in one.versions}):
        values[name] = [one.versions.get(name, "unknown") for one in records]
    values["threads"] = [str(run.spec.train.threads) for run in runs]
    values["processes"] = [str(run.spec.processes) for run in runs]
    for name, given in values.items() if records else ():
        counts = Counter(given).most_common()
        several = "; ".join(f"{value} ({count(n, 'run')})" for value, n in counts)
        facts.append((name, several if len(counts) > 1 else given[0]))
    return facts


# --- Single runs that are drawn --------------------------------------------------------------------------------------


def _drawn_columns(
    tables: Sequence[ResultTable], runs: Mapping[str, StoredRun], problems: list[str]
) -> tuple[list[DrawnColumn], int]:
    """Choose at most MOST_COLUMNS columns, from every table in turn; return how many others there are.

    Columns of two tables that hold the same runs are drawn once, under the name of the first table.
    """
    places: dict[frozenset[str], tuple[int, int]] = {}
    for t, table in enumerate(tables):
        for c, column in enumerate(table.columns):
            keys = frozenset(row.key for rows in column.rows.values() for row in rows if row.key in runs)
            if keys:
                places.setdefault(keys, (c, t))
    chosen = sorted((t, c) for c, t in sorted(places.values())[:MOST_COLUMNS])
    return [_drawn_column(tables[t], c, runs, problems) for t, c in chosen], len(places) - len(chosen)


def _drawn_column(table: ResultTable, index: int, runs: Mapping[str, StoredRun], problems: list[str]) -> DrawnColumn:
    column = table.columns[index]
    finished = [row for rows in column.rows.values() for row in rows if row.key in runs]
    seeds = Counter(row.seed for row in finished)
    seed = min(seeds, key=lambda one: (-seeds[one], one))  # the one that most methods have
    own = {row.method: runs[row.key] for row in finished if row.seed == seed}
    missing = [method_title(method) for method in table.methods if method not in own]
    drawn = {}
    for method, run in ((method, own[method]) for method in table.methods if method in own):
        predictions = read_file(run, PREDICTIONS_FILE, read_predictions, problems)
        drawn[method] = drawn_run(run, run.result.calibration.paper, predictions, problems)
    return DrawnColumn(
        label=printable(f"{table.title}: {dataset_title(column.dataset)}, {column.setting}"),
        note=f"Runs of seed {seed}." + (f" {listed(missing)} not finished." if missing else ""),
        classes=[printable(name) for name in next(iter(own.values())).result.data.classes],
        runs=drawn,
    )


def drawn_run(
    run: StoredRun, calibration: CalibrationFigures | None, predictions: Predictions | None, problems: list[str]
) -> DrawnRun:
    """Return what the figures show of a run: its curves, and with them these predictions and its embedding."""
    confusion = None if predictions is None else (predictions.labels, predictions.logits.argmax(axis=1))
    return DrawnRun(run.history, calibration, confusion, read_file(run, EMBEDDING_FILE, _read_embedding, problems))


def read_file(run: StoredRun, name: str, read: Callable[[Path, int], File], problems: list[str]) -> File | None:
    """Return what a file of a run holds; None if there is no such file, or if it is damaged, which is noted."""
    if run.folder is None or not (run.folder / name).is_file():
        return None
    try:
        return read(run.folder / name, len(run.result.data.classes))
    except (OSError, ValueError) as error:
        problems.append(f"{run.folder / name} cannot be read and is left out: {error}")
        return None


def read_predictions(path: Path, n_classes: int) -> Predictions:
    """Return stored predictions; raise a ValueError if they are not of a run with this number of classes."""
    predictions = Predictions.load(path)
    if predictions.n_classes != n_classes:
        raise ValueError(f"it has {predictions.n_classes:,} classes; the run has {n_classes:,}")
    return predictions


def _read_embedding(path: Path, n_classes: int) -> Embedding | None:
    """Return some stored embeddings; None if there are too few to be drawn."""
    arrays = read_arrays(path, {"z", "labels", *array_names(path)} & {"z", "labels", "prototypes"})
    z, labels, prototypes = arrays["z"], arrays["labels"], arrays.get("prototypes", np.zeros((n_classes, 0)))
    kinds = z.dtype.kind + labels.dtype.kind + prototypes.dtype.kind
    d = z.shape[1:] if "prototypes" in arrays else (0,)
    if kinds not in ("fif", "fuf") or z.ndim != 2 or labels.shape != z.shape[:1] or prototypes.shape != (n_classes, *d):
        given = ", ".join(f"{name} {array.dtype}{array.shape}" for name, array in arrays.items())
        raise ValueError(f"expected z (n, d), labels (n,) and prototypes ({n_classes}, d); got {given}")
    if len(z) < 3:
        return None  # nothing to see
    if labels.min() < 0 or labels.max() >= n_classes or not (np.isfinite(z).all() and np.isfinite(prototypes).all()):
        raise ValueError(f"expected finite numbers and labels from 0 to {n_classes - 1}")
    return sample(z, labels, arrays.get("prototypes"))
