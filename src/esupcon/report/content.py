"""Read everything that a report shows from a store of runs or a one-file study. Each file is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from esupcon._console import count, duration, printable
from esupcon._io import array_names, read_arrays
from esupcon.doctor import SEVERITIES, Finding
from esupcon.experiments.store import StoredRun, read_contents
from esupcon.probability import CalibrationFigures, Predictions
from esupcon.report.aggregate import ResultTable, result_tables
from esupcon.report.format import dataset_title, listed, method_order, method_title
from esupcon.training.result import EMBEDDING_FILE, PREDICTIONS_FILE

MOST_COLUMNS = 12  # settings of which single runs are drawn
File = TypeVar("File")
Array = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]


class Embedding(NamedTuple):
    """Unit vectors (n, d) of samples with their labels, and the prototypes (n_classes, d) or none (0, d)."""

    z: Array
    labels: Labels
    prototypes: Array


@dataclass(frozen=True)
class DrawnRun:
    """What the figures show of one run."""

    history: Sequence[Mapping[str, Any]]
    calibration: CalibrationFigures | None
    confusion: tuple[Labels, Labels] | None  # true and predicted class of each test sample
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
    plans = [plan for plan in found.plans if not tables or {plan.table, f"{plan.table}-{plan.profile}"} & set(tables)]
    known = {name for plan in plans for name in (plan.table, f"{plan.table}-{plan.profile}")}
    if unknown := [name for name in tables if name not in known]:
        there = listed(list(dict.fromkeys(plan.table for plan in found.plans)), 20) or "no table"
        raise ValueError(f"{store} has no table {listed(unknown)}. It has {there}.")
    results = result_tables(plans, found.runs)
    planned = {
        key: printable(f"{method_title(row.method)} on {dataset_title(row.dataset)}, {row.setting}, seed {row.seed}")
        for table in results
        for key, row in table.rows.items()
    }
    runs = {key: run for key, run in found.runs.items() if key in planned}
    problems = list(found.problems)
    if unplanned := found.runs.keys() - {row.key for plan in found.plans for row in plan.rows}:
        problems.append(f"{count(len(unplanned), 'run')} in the store that no plan names: {listed(sorted(unplanned))}.")
    drawn = [_drawn_column(*place, runs, problems) for place in _drawn_places(results, runs)]
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
        findings=_grouped_findings(runs, planned),
        unfinished=[
            (name, printable(reasons.get(key, "not run yet"))) for key, name in planned.items() if key not in runs
        ],
        problems=[printable(line) for line in problems],
        facts=[(printable(name), printable(value)) for name, value in facts],
        n_planned=len(planned),
    )


def _grouped_findings(runs: Mapping[str, StoredRun], names: Mapping[str, str]) -> list[tuple[Finding, list[str]]]:
    """Group findings by code, each with its most severe one: most severe first, then most frequent."""
    worst: dict[str, Finding] = {}
    where: dict[str, dict[str, None]] = {}
    for key, run in runs.items():
        for one in run.result.findings:
            where.setdefault(one.code, {})[names[key]] = None
            worst[one.code] = max(worst.get(one.code, one), one, key=_severity)
    found = [(worst[code], list(where[code])) for code in sorted(worst)]
    return sorted(found, key=lambda one: (-_severity(one[0]), -len(one[1])))


def _severity(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def _provenance(runs: Collection[StoredRun]) -> list[tuple[str, str]]:
    """Return times, commit, versions and machine; where runs differ, every value with its number of runs."""
    records = [run.result.provenance for run in runs]
    finished = sorted(one.finished for one in records if one.finished)
    facts = [("time of all runs", duration(sum(one.seconds for one in records)))]
    facts += [("finished", f"first run {finished[0]}, last run {finished[-1]}")] if finished else []
    values = {"commit": Counter(one.commit or "unknown (installed, not a checkout)" for one in records)}
    for name in sorted({name for one in records for name in one.versions}):
        values[name] = Counter(one.versions.get(name, "unknown") for one in records)
    values["threads"] = Counter(str(run.spec.train.threads) for run in runs)
    for name, counts in values.items() if records else ():
        several = [f"{value} ({count(n, 'run')})" for value, n in counts.most_common()]
        facts.append((name, "; ".join(several if len(counts) > 1 else counts)))
    return facts


# --- Single runs that are drawn --------------------------------------------------------------------------------------


def _drawn_places(tables: Sequence[ResultTable], runs: Mapping[str, StoredRun]) -> list[tuple[ResultTable, int]]:
    """Choose at most MOST_COLUMNS columns, the first ones of every table.

    Columns of two tables that hold the same runs are drawn once, under the name of the first table.
    """
    places: dict[frozenset[str], tuple[int, int]] = {}
    for t, table in enumerate(tables):
        for c, column in enumerate(table.columns):
            keys = frozenset(row.key for rows in column.rows.values() for row in rows if row.key in runs)
            if keys:
                places.setdefault(keys, (c, t))
    return [(tables[t], c) for t, c in sorted((t, c) for c, t in sorted(places.values())[:MOST_COLUMNS])]


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
    """Return stored embeddings; None if there are too few to be drawn."""
    arrays = read_arrays(path, {"z", "labels", *array_names(path)} & {"z", "labels", "prototypes"})
    z, labels = arrays["z"], arrays["labels"]
    prototypes = arrays.get("prototypes", np.zeros((0, *z.shape[1:]), z.dtype))
    are_finite = all(one.dtype.kind == "f" and np.isfinite(one).all() for one in (z, prototypes))
    shapes = (z.ndim, labels.shape, prototypes.shape[1:]) == (2, z.shape[:1], z.shape[1:])
    in_range = labels.dtype.kind in "iu" and np.isin(labels, np.arange(n_classes)).all()
    if not (are_finite and shapes and in_range and len(prototypes) in (0, n_classes)):
        raise ValueError(f"expected finite z (n, d), labels (n,) below {n_classes} and prototypes ({n_classes}, d)")
    return Embedding(z.astype(np.float32), labels, prototypes.astype(np.float32)) if len(z) > 2 else None
