"""A whole run: a source and a specification in, a trained classifier with its predictions and figures out.

The folder of a run holds `model/` (the classifier), `result.json`, `predictions.npz` (test part), `held_out.npz`
(the part of train that was held out), `embedding.npz` (some test samples and the prototypes, to be looked at),
`history.jsonl`, `timing.jsonl` and, until it is finished, checkpoints.
`result.json` is written last: a folder that has it is finished.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esupcon.data.locking import exclusive
from esupcon.data.scenarios import Scenario
from esupcon.doctor import Finding, check_after
from esupcon.files import read_sealed_json, write_sealed_json
from esupcon.pipeline.embedding import EMBEDDING_FILE, save_embedding
from esupcon.pipeline.measures import measure
from esupcon.pipeline.memory import peak_memory, reset_peak_memory
from esupcon.pipeline.prepare import DataOptions, Log, Prepared, default_epochs, prepare
from esupcon.pipeline.provenance import git_commit, is_first_process, versions
from esupcon.pipeline.trained import MODEL_FOLDER, save_trained
from esupcon.probability import Predictions, softmax
from esupcon.spec import TrainSpec, key_of
from esupcon.training import Fitted, fit
from esupcon.training.result import training_seconds
from esupcon.training.run import RunFolder

RESULT_FILE = "result.json"
PREDICTIONS_FILE, HELD_OUT_FILE = "predictions.npz", "held_out.npz"
SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """What `result.json` holds. `outcome` is equal for equal runs; `provenance` says when, where and how long."""

    out: Path
    outcome: dict[str, Any]
    provenance: dict[str, Any]
    already_finished: bool = False

    @property
    def metrics(self) -> dict[str, Any] | None:
        """Figures on the test part; None where the data have none."""
        metrics: dict[str, Any] | None = self.outcome["metrics"]["test"]
        return metrics

    @property
    def model(self) -> Path:
        return self.out / MODEL_FOLDER

    def as_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **self.outcome, "provenance": self.provenance}


def train(
    source: str | os.PathLike[str],
    spec: TrainSpec,
    *,
    out: str | os.PathLike[str],
    scenario: Scenario | None = None,
    data: DataOptions | None = None,
    validation_fraction: float = 0.1,
    choose_epochs: bool = False,
    shared_stage: Path | None = None,
    devices: int = 1,
    accelerator: str = "auto",
    overwrite: bool = False,
    checkpoint_seconds: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
    log: Log = lambda line: print(line, file=sys.stderr),
    progress: bool | None = None,
    command: str | None = None,
) -> Result:
    """Load, apply the scenario, hold a part out, fit, measure, save.

    The same call again returns the stored result of a finished run and continues one that was stopped or killed; a
    folder that holds another run is refused, unless `overwrite`. With `choose_epochs` the number of epochs follows
    from the number of samples and `spec.epochs` is not read. `shared_stage`, `should_stop` as in `fit`.
    `command` is what the record says was called; None: the command line of this process.
    """
    started = time.monotonic()
    reset_peak_memory()
    folder = Path(out)
    first = is_first_process()
    say: Log = log if first else lambda line: None
    options = data or DataOptions()
    dataset = options.load(source, say)
    prepared = prepare(dataset, scenario or Scenario(seed=spec.seed), validation_fraction, spec.seed)
    if choose_epochs and spec.steps is None:
        spec = spec.model_copy(update={"epochs": default_epochs(len(prepared.train.x))})
        say(f"{spec.epochs} epochs, chosen by the {len(prepared.train.x):,} samples; say --epochs to change it.")
    key = key_of({"spec": spec.model_dump(), "data": dataset.fingerprint, "preparation": _decisive(prepared)})
    with _alone_in(folder, first):
        stored = None if overwrite else _stored(folder, key, spec, prepared)
        if stored is not None:
            return stored
        if overwrite and first:
            _remove_results(folder)
        fitted = fit(
            spec,
            prepared.train,
            out=folder,
            shared_stage=shared_stage,
            overwrite=overwrite and first,  # what the first process has begun, the others must not remove
            devices=devices,
            accelerator=accelerator,
            checkpoint_seconds=checkpoint_seconds,
            should_stop=should_stop,
            log=say,
            progress=progress,
        )
        outcome = _outcome(fitted, prepared, key, options, spec)
        provenance = {
            "command": " ".join(sys.argv) if command is None else command,
            "source": str(Path(source).absolute()) if Path(source).exists() else os.fspath(source),
            "seconds": round(time.monotonic() - started, 3),
            "train_seconds": training_seconds(folder),
            "taken_seconds": training_seconds(folder, reused_only=True),
            "peak_memory_bytes": peak_memory(),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "devices": devices,
            "commit": git_commit(),
            "versions": versions(),
        }
        result = Result(folder, outcome, provenance)
        if is_first_process():
            _store(result, fitted, prepared, say)
        return result


def read_result(folder: str | os.PathLike[str]) -> Result:
    """The result of a finished run, from its folder."""
    path = Path(folder) / RESULT_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no finished run: there is no {RESULT_FILE}. Train it first.")
    values = read_sealed_json(path)
    if values.pop("schema", None) != SCHEMA or "provenance" not in values:
        raise ValueError(f"{path} is not a result of schema {SCHEMA}. Train again with overwrite.")
    return Result(Path(folder), provenance=values.pop("provenance"), outcome=values, already_finished=True)


@contextmanager
def _alone_in(folder: Path, first: bool) -> Iterator[None]:
    """No second training in one folder: each would take the other's checkpoints for its own."""
    if not first:
        yield  # the first process of this run holds the lock for all of them
        return
    RunFolder(folder, lambda line: None).files.claim()
    with exclusive(folder / ".lock") as held:
        if held is False:
            raise ValueError(f"another process is training in {folder}. Wait for it, or choose another folder.")
        yield


def _decisive(prepared: Prepared) -> dict[str, Any]:
    """What of the preparation the result depends on."""
    record = prepared.record
    return {"scenario": record["scenario"]["sha256"], "held_out": [record["validation_fraction"], record["n_held_out"]]}


def _stored(folder: Path, key: str, spec: TrainSpec, prepared: Prepared) -> Result | None:
    if not (folder / RESULT_FILE).exists():
        return None
    result = read_result(folder)
    if result.outcome.get("key") != key:
        raise ValueError(
            f"{folder} holds the result of another run: {_difference(result.outcome, spec, prepared)}. "
            "Choose another folder, or pass --overwrite."
        )
    RunFolder(folder, lambda line: None).clear_checkpoints()  # a kill right after the result may have left some
    return result


def _difference(outcome: dict[str, Any], spec: TrainSpec, prepared: Prepared) -> str:
    """The settings that differ from those of a stored outcome."""
    record = prepared.record
    now = {
        **spec.model_dump(),
        **{f"{name} of the setting": value for name, value in record["scenario"]["settings"].items()},
        "validation_fraction": record["validation_fraction"],
    }
    stored = outcome.get("preparation", {})
    before = {
        **outcome.get("spec", {}),
        **{f"{name} of the setting": value for name, value in stored.get("scenario", {}).get("settings", {}).items()},
        "validation_fraction": stored.get("validation_fraction"),
    }
    changed = [f"{name} was {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
    return "; ".join(changed) or "its data differ"


def _remove_results(folder: Path) -> None:
    """Takes away what an earlier run left, the mark that it is finished first; nothing that is not ours."""
    model = folder / MODEL_FOLDER
    ours = [folder / name for name in (RESULT_FILE, PREDICTIONS_FILE, HELD_OUT_FILE, EMBEDDING_FILE)]
    ours += [model / name for name in ("config.json", "model.safetensors", "README.md")]
    for path in ours:
        path.unlink(missing_ok=True)


def _outcome(fitted: Fitted, prepared: Prepared, key: str, options: DataOptions, spec: TrainSpec) -> dict[str, Any]:
    dataset = prepared.dataset
    return {
        "key": key,
        "spec": spec.model_dump(),
        "precision": fitted.spec.precision,
        "batch_size": fitted.batch_size,
        "recipe": fitted.data.augmentation(fitted.spec.augmentation),
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "classes": list(dataset.classes),
            "image_shape": list(dataset.image_shape),
            "options": options.record(),
            "n_skipped": len(dataset.skipped),
        },
        "preparation": prepared.record,
        "metrics": {"test": None, "held_out": None},
        "findings": [finding.model_dump() for finding in fitted.findings],
    }


def _store(result: Result, fitted: Fitted, prepared: Prepared, say: Log) -> None:
    """Measures, then writes everything; `result.json` comes last and says that all of it is there."""
    dataset, outcome = prepared.dataset, result.outcome
    parts = {
        "test": (PREDICTIONS_FILE, dataset.x_test, dataset.y_test),
        "held_out": (HELD_OUT_FILE, prepared.x_held, prepared.y_held),
    }
    for part, (name, x, y) in parts.items():
        if len(x):
            predictions = Predictions(fitted.classifier.logits(x), y)
            predictions.save(result.out / name)
            outcome["metrics"][part] = measure(predictions, dataset.classes)
    save_embedding(result.out / EMBEDDING_FILE, fitted, dataset)
    if outcome["metrics"]["test"] is None:
        say("There is no test part, so nothing was measured on one.")
    for finding in _suspect_labels(fitted, prepared):
        say(str(finding))
        outcome["findings"].append(finding.model_dump())
    save_trained(result.model, fitted, outcome, result.provenance)
    write_sealed_json(result.out / RESULT_FILE, result.as_dict())
    RunFolder(result.out, say).clear_checkpoints()


def _suspect_labels(fitted: Fitted, prepared: Prepared) -> list[Finding]:
    """Labels of the held-out part that the classifier disagrees with; those it was fitted to tell nothing."""
    if not len(prepared.x_held):
        return []
    return check_after(
        softmax(fitted.classifier.logits(prepared.x_held)), prepared.y_held, classes=prepared.dataset.classes
    )
