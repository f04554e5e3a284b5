"""Stand-in for experiments.store.read_contents until it lands; to be deleted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from esupcon._io import read_json_lines
from esupcon.experiments import stored_files
from esupcon.experiments.spec import RunSpec
from esupcon.experiments.store import Store, in_order
from esupcon.probability import Predictions, paper_calibration

SEVERITIES = ("note", "warning", "error")
Finding = Any
PREDICTIONS_FILE, EMBEDDING_FILE = "predictions.npz", "embedding.npz"


class Row(stored_files._Row):
    spec: RunSpec  # type: ignore[assignment]


class Plan(stored_files._Plan):
    rows: Any


@dataclass(frozen=True)
class StoredRun:
    key: str
    spec: RunSpec
    result: Any
    folder: Path | None

    @property
    def history(self) -> list[dict[str, Any]]:
        return read_json_lines(self.folder / "history.jsonl") if self.folder else []

    @property
    def timing(self) -> list[dict[str, Any]]:
        return read_json_lines(self.folder / "timing.jsonl") if self.folder else []

    @property
    def seconds(self) -> float:
        return float(self.result.provenance.train_seconds or self.result.provenance.seconds)


@dataclass(frozen=True)
class Contents:
    plans: list[Plan]
    runs: dict[str, StoredRun]
    problems: list[str]
    failures: dict[str, str]


def _result(run: Any) -> Any:
    found = stored_files._Result.model_validate(run.result)
    provenance = SimpleNamespace(
        **{
            **found.provenance.model_dump(),
            "reused_seconds": found.provenance.taken_seconds,
            "threads": 1,
            "processes": 1,
        }
    )
    paper = None
    try:
        predictions = Predictions.load(run.folder / PREDICTIONS_FILE)
        paper = paper_calibration(predictions, n_resamples=1)
    except (OSError, ValueError):
        pass
    return SimpleNamespace(
        **{name: getattr(found, name) for name in ("metrics", "batch_size", "findings", "data", "preparation")},
        provenance=provenance,
        calibration=SimpleNamespace(paper=paper),
    )


def read_contents(path: Path) -> Contents:
    store = Store(path)
    store.require()
    runs, problems, plans = {}, [], []
    for key in store.keys():  # noqa: SIM118
        try:
            one = store.read(key)
            runs[key] = StoredRun(key, one.spec, _result(one), one.folder)
        except (ValueError, OSError) as error:
            problems.append(f"run {key} is left out: {error}")
    for file in store.plan_paths():
        try:
            plans.append(store.read_plan(file))
        except (ValueError, OSError) as error:
            problems.append(f"a plan is left out: {error}")
    made = []
    for plan in in_order(plans):
        rows = [
            Row.model_construct(
                **{
                    "reduced": None,
                    "grid": {},
                    "paper_accuracy": None,
                    "paper_ece": None,
                    **row,
                    "spec": RunSpec.read(row["spec"]),
                }
            )
            for row in plan["rows"]
        ]
        made.append(
            Plan.model_construct(
                **{
                    "paper": "",
                    "baseline": "ce",
                    "measure": "accuracy",
                    "notes": [],
                    "command": "",
                    **plan,
                    "rows": rows,
                }
            )
        )
    failures = {f.stem: store.failure(f.stem) or "" for f in sorted((path / "failed").glob("*.json"))}
    return Contents(made, runs, problems, failures)
