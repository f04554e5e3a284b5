"""`train`: from a data source to a finished folder with a classifier, its predictions and its metrics."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon._console import Log, say
from esupcon._io import PathLike, locked, write_whole
from esupcon.classifier.folder import ModelInfo, TrainingData
from esupcon.classifier.preprocessing import Rows
from esupcon.data import Dataset, load, source_digest
from esupcon.data.dataset import take_rows
from esupcon.data.scenarios import Prepared, Scenario, prepare
from esupcon.doctor import check_after
from esupcon.models import resolve_encoder
from esupcon.probability import (
    Calibration,
    Predictions,
    can_calibrate,
    held_out_calibration,
    measure,
    paper_calibration,
    softmax,
)
from esupcon.spec import RunSpec
from esupcon.training.batches import TrainData
from esupcon.training.devices import n_processes, rank, torch_threads
from esupcon.training.loop import fit
from esupcon.training.result import (
    EMBEDDING_FILE,
    HELD_OUT_FILE,
    LOCK_FILE,
    MODEL_FOLDER,
    PREDICTIONS_FILE,
    RESULT_FILE,
    CalibrationResult,
    DataRecord,
    Metrics,
    Preparation,
    Provenance,
    Result,
    training_seconds,
    versions,
)
from esupcon.training.run import (
    ROWS_BETWEEN_CHECKS,
    START_OVER,
    Fitted,
    RunFolder,
    TrainingInterrupted,
    digest_objects,
    resolve,
)

# Images seen in all, within sensible numbers of epochs: small sets need many epochs, large ones few.
IMAGES_SEEN, MIN_EPOCHS, MAX_EPOCHS = 200_000, 20, 200
#: Test samples whose embeddings are kept to be drawn: enough to see clusters in a file of some hundred kilobytes.
DRAWN_SAMPLES = 600
#: Held-out samples below which a temperature is too uncertain to be stored in the model.
MIN_CALIBRATION = 30
#: Values of training embeddings that the model of a run stores: 32 MB.
MAX_EXAMPLE_VALUES = 2**23


def train(
    run: RunSpec,
    out: PathLike,
    *,
    choose_epochs: bool = False,
    keep_model: bool = True,
    shared_stage: Path | None = None,
    devices: int = 1,
    accelerator: str = "auto",
    overwrite: bool = False,
    checkpoint_seconds: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
    log: Log = say,
    progress: bool | None = None,
    command: str | None = None,
) -> Result:
    """Load the data, hold a part out, fit, measure, calibrate and save; return the result.

    The same call again returns the stored result of a finished run, and continues one that was stopped or killed. A
    folder that holds another run is an error, unless `overwrite`. In a launch of several processes only the first one
    writes files and messages.

    choose_epochs: derive the number of epochs from the number of samples; `run.train.epochs` is not used.
    keep_model: save the classifier. A grid of many runs keeps their predictions only.
    command: recorded as what was called; default: the command line of this process.
    For the other options see `fit`.
    """
    started, first = time.monotonic(), rank() == 0
    log = log if first else lambda line: None
    _reset_peak_memory()
    folder = RunFolder(Path(out), log)
    if first and folder.path.exists():
        folder.files.claim()  # files of others are refused before anything is read
    content = source_digest(run.source, run.data)
    if run.content is not None and run.content != content:
        raise ValueError(f"the data of {run.source} changed since this run was planned. Repeat the command.")
    dataset = load(run.source, run.data, log=log)
    prepared = prepare(dataset, Scenario(**run.scenario), run.validation_fraction, run.train.seed)
    train_spec = run.train
    if choose_epochs and train_spec.steps is None:
        train_spec = train_spec.model_copy(update={"epochs": default_epochs(len(prepared.fit))})
        log(f"{train_spec.epochs} epochs for {len(prepared.fit):,} samples; pass --epochs to change it.")
    with _lock_folder(folder, first):
        asked = run.model_copy(update={"content": content, "train": train_spec, "processes": n_processes(devices)})
        asked = asked.model_copy(update={"objects": digest_objects(asked)})
        stored = None if overwrite else _stored_result(folder, asked, accelerator)
        if stored is not None:
            return stored
        fitted = fit(
            asked,
            _train_data(dataset, prepared),
            out=folder.path,
            shared_stage=shared_stage,
            overwrite=overwrite and first,  # the other processes must not remove what the first has begun
            devices=devices,
            accelerator=accelerator,
            checkpoint_seconds=checkpoint_seconds,
            should_stop=should_stop,
            log=log,
            progress=progress,
        )

        def outputs(rows: Rows, name: str) -> NDArray[np.float64]:
            """Return an output of the classifier; stop between parts if asked to. The checkpoint has the weights."""
            parts = []
            for start in range(0, len(rows), ROWS_BETWEEN_CHECKS):
                if should_stop():
                    raise TrainingInterrupted
                part = rows[start : start + ROWS_BETWEEN_CHECKS]
                parts.append(fitted.classifier.outputs(part, (name,))[name].double().numpy())
            return np.concatenate(parts)

        with torch_threads(fitted.spec.threads):
            measured = _measure(fitted, dataset, outputs, folder.path, log) if first else {}
        result = Result(
            key=fitted.run.key,
            run=fitted.run,
            precision_reason=fitted.precision_reason,
            encoder=resolve_encoder(fitted.spec.encoder, fitted.data.preprocessing.input_shape),
            augmentation=fitted.data.augmentation(fitted.spec.augmentation),
            batch_size=fitted.batch_size,
            data=DataRecord(
                name=dataset.name,
                fingerprint=dataset.fingerprint,
                classes=dataset.classes,
                input_shape=fitted.data.preprocessing.input_shape,
                n_skipped=len(dataset.skipped),
            ),
            preparation=Preparation(
                **prepared.record, class_counts=tuple(np.bincount(prepared.y_fit, minlength=dataset.n_classes).tolist())
            ),
            **measured,
            provenance=Provenance(
                command=" ".join(sys.argv) if command is None else command,
                source=str(Path(run.source).absolute()) if Path(run.source).exists() else run.source,
                seconds=round(time.monotonic() - started, 3),
                train_seconds=training_seconds(folder.path),
                reused_seconds=training_seconds(folder.path, reused_only=True),
                peak_memory_bytes=_peak_memory(),
                finished=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                device=fitted.device,
                commit=_git_commit(),
                versions=versions(),
            ),
        )
        if first:
            if keep_model:
                with torch_threads(fitted.spec.threads):
                    _save_model(folder.path / MODEL_FOLDER, fitted, result)
            result.write(folder.path)
            folder.clear_checkpoints()
        return result


def default_epochs(n_train: int) -> int:
    """Return the number of epochs that show about 200,000 images, at least 20 and at most 200."""
    return min(max(round(IMAGES_SEEN / max(1, n_train)), MIN_EPOCHS), MAX_EPOCHS)


@contextmanager
def _lock_folder(folder: RunFolder, first: bool) -> Iterator[None]:
    """Keep a second command out of the folder: each would take the checkpoints of the other for its own."""
    if not first:
        yield  # the first process of this run holds the lock for all of them
        return
    folder.files.claim()
    with locked(folder.path / LOCK_FILE) as held:
        if held is False:
            raise ValueError(f"another process is training in {folder.path}. Wait for it, or choose another folder.")
        yield


def _stored_result(folder: RunFolder, asked: RunSpec, accelerator: str) -> Result | None:
    """Return the result if the folder holds this run, finished; raise a ValueError if it holds another one's."""
    if not (folder.path / RESULT_FILE).exists():
        return None
    result = Result.read(folder.path)
    resolved, _ = resolve(asked, result.run, accelerator, images=True)
    if resolved.key != result.key:
        difference = resolved.difference(result.run)
        raise ValueError(f"{folder.path} holds the result of another run: {difference}. {START_OVER}")
    folder.clear_checkpoints()  # a process killed right after the result may have left some
    return result


def _train_data(dataset: Dataset, prepared: Prepared) -> TrainData:
    held = len(prepared.held) > 0
    return TrainData(
        take_rows(dataset.x_train, prepared.fit),
        prepared.y_fit,
        dataset.n_classes,
        take_rows(dataset.x_train, prepared.held) if held else None,
        prepared.y_held if held else None,
        x_test=dataset.x_test if len(dataset.x_test) else None,
        classes=dataset.classes,
    )


def _measure(
    fitted: Fitted, dataset: Dataset, outputs: Callable[[Rows, str], NDArray[np.float64]], folder: Path, log: Log
) -> dict[str, Any]:
    """Measure the classifier on the test and the held-out part and calibrate it on the latter; store the predictions.

    Return metrics, calibration and findings of the result.
    """
    classifier, data = fitted.classifier, fitted.data
    classifier.calibration = Calibration(
        class_counts=tuple(np.bincount(data.y, minlength=data.n_classes).tolist()),
        balanced=fitted.spec.class_weight == "balanced",
    )
    findings, calibration = list(fitted.findings), CalibrationResult()
    test = held_out = None
    if len(dataset.x_test):
        test = Predictions(outputs(dataset.x_test, "logits"), dataset.y_test)
        test.save(folder / PREDICTIONS_FILE)
        _save_embedding(folder / EMBEDDING_FILE, fitted, dataset)
        with suppress(ValueError):  # too few samples or classes to divide
            calibration = calibration.model_copy(update={"paper": paper_calibration(test)})
    else:
        log("There is no test part, so nothing was measured on one.")
    if data.x_held is not None and data.y_held is not None:
        held_out = Predictions(outputs(data.x_held, "logits"), data.y_held)
        held_out.save(folder / HELD_OUT_FILE)
        # Labels that the classifier was fitted to tell nothing; those it has not seen may be wrong.
        p = softmax(held_out.logits)
        for finding in check_after(p, held_out.labels, classes=dataset.classes, already_reported=findings):
            log(str(finding))
            findings.append(finding)
        if can_calibrate(held_out.labels):
            if len(held_out) >= MIN_CALIBRATION:
                classifier.calibration = classifier.calibration.fit(held_out.logits, held_out.labels, how="held-out")
            if test is not None:
                calibration = calibration.model_copy(update={"held_out": held_out_calibration(held_out, test)})
    parts = {"test": test, "held_out": held_out}
    metrics = {part: None if found is None else measure(found, dataset.classes) for part, found in parts.items()}
    return {"metrics": Metrics(**metrics), "calibration": calibration, "findings": tuple(findings)}


def _save_embedding(path: Path, fitted: Fitted, dataset: Dataset) -> None:
    """Store unit embeddings `z` of some test samples with their `labels`, and the `prototypes` if the head has them."""
    n = len(dataset.x_test)
    rows = np.sort(np.random.default_rng(0).choice(n, min(n, DRAWN_SAMPLES), replace=False))
    z = fitted.classifier.outputs(np.asarray(dataset.x_test[rows]), ("embedding",))["embedding"].float().numpy()
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    arrays: dict[str, Any] = {"z": z.astype(np.float16), "labels": dataset.y_test[rows]}
    if fitted.classifier.prototypes_ is not None:
        arrays["prototypes"] = fitted.classifier.prototypes_.astype(np.float16)
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def _save_model(folder: Path, fitted: Fitted, result: Result) -> None:
    """Save the classifier with its training samples as examples, and with what is needed to hold out the same rows."""
    run, classifier = result.run, fitted.classifier
    figures = {part: getattr(result.metrics, part) for part in ("test", "held_out")}
    headline = ("n", "accuracy", "ece", "nll", "brier")
    classifier.about = ModelInfo(
        encoder=result.encoder,
        method=run.train.method,
        settings={**run.train.model_dump(), "key": result.key},
        data=TrainingData(
            name=Path(result.data.name).name,
            fingerprint=result.data.fingerprint,
            **run.data.model_dump(include={"split_seed", "test_fraction", "n_per_class"}),
            **{name: value for name, value in run.scenario.items() if name != "seed"},
            validation_fraction=run.validation_fraction,
            seed=run.train.seed,
        ),
        metrics={part: found.model_dump(include=set(headline)) for part, found in figures.items() if found is not None},
        versions=result.provenance.versions,
    )
    classifier.remember(fitted.data.x, fitted.data.y, most_values=MAX_EXAMPLE_VALUES)
    if classifier.calibration.how != "none":
        classifier.set_outlier_threshold(fitted.data.x_held)
    classifier.save(folder, overwrite=True)
    for unfinished in folder.parent.glob(f".{folder.name}.*.new"):  # of a process that was killed while saving
        shutil.rmtree(unfinished, ignore_errors=True)


# --- Provenance ------------------------------------------------------------------------------------------------------


def _git_commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None if it was installed or git is absent."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def _reset_peak_memory() -> None:
    """Make Linux forget the peak so far; elsewhere the peak of the whole process is reported."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_memory() -> int | None:
    """Return the largest memory that this process has held, in bytes; None if the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource  # noqa: PLC0415 - absent on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
