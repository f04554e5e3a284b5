"""Commands for one model: train, evaluate, calibrate, predict, export."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from esupcon._console import count, csv_text, duration, percent, printable
from esupcon.cli import options
from esupcon.cli.options import argument, option, takes
from esupcon.cli.output import (
    INTERVALS,
    OPTIONS,
    answer,
    answer_json,
    classes_table,
    complain,
    figures_table,
    log,
    nats,
    note,
    table,
)
from esupcon.cli.output import with_interval as shown
from esupcon.cli.stopping import PARTIAL, Stopped, Stopper
from esupcon.data import DataOptions
from esupcon.methods import METHODS
from esupcon.spec import RunSpec, TrainSpec

if TYPE_CHECKING:
    from esupcon.classifier import Prediction
    from esupcon.report.run import Images, Picture
    from esupcon.training import Result

_SETTINGS, _SCENARIO, _RUN, _READING = "Training settings", "Harder settings", "Run", "Reading data"
#: Settings that `esupcon.recipes`, which is slow to import, chooses for the data.
RECOMMENDED = (
    *("encoder", "epochs", "batch_size", "lr", "optimizer", "schedule", "warmup", "temperature", "neck"),
    *(
        "prototype_temperature",
        "prototype_share",
        "prototype_average",
        "contrast_weight",
        "label_smoothing",
        "label_noise",
    ),
    *("weight_decay", "train_blocks", "cached_views", "augmentation", "test_time_flip"),
)
_HELD_OUT = "0.1, or 0 and cross-fitting if that is under 100 images"
_SPLIT = ("split_seed", "test_fraction", "n_per_class")
_FILES = ("layout", "image_column", "label_column", "data_dir", "strict", "workers")
_HARDER = ("n_train", "imbalance_rate", "noise_rate", "noise_kind")
_PART = "test, train or all. auto: the test part if the data have one or the model was trained on them, otherwise all."
_UNKNOWN = "Label images that resemble no class as unknown, or as TEXT: --unknown or --unknown=TEXT."
_ON = (
    "Part to fit the temperature on: held-out (from training), train, test (a fifth of it) or all. auto: held-out for "
    "the data the model was trained on, otherwise train."
)


@takes("settings", TrainSpec, _SETTINGS, defaults=dict.fromkeys(RECOMMENDED, ""), spelled={"test_time_flip": "mirror"})
@takes("harder", RunSpec, _SCENARIO, only=_HARDER)
@takes("other", RunSpec, _RUN, only=("validation_fraction", "priors"), defaults={"validation_fraction": _HELD_OUT})
@takes("reading", DataOptions, _READING, only=("image_size", "channels", *_SPLIT, *_FILES))
def train(
    data: options.Data,
    settings: dict[str, Any],
    harder: dict[str, Any],
    other: dict[str, Any],
    reading: dict[str, Any],
    out: Annotated[Path | None, option("Folder of the run.", metavar="DIR", show_default="a new one in runs/")] = None,
    dry_run: Annotated[
        bool, option("Show settings, reasons and the time it will take; train nothing.", "--dry-run")
    ] = False,
    minutes: Annotated[float | None, option("Choose the epochs so that training takes about this time.")] = None,
    no_thumbnails: Annotated[bool, option("Leave images out of report.html.", "--no-thumbnails")] = False,
    devices: Annotated[int, option("Number of processes or accelerators.", panel=_RUN, show_default=True)] = 1,
    accelerator: Annotated[str, option("auto, cpu, cuda or mps.", panel=_RUN, show_default=True)] = "auto",
    checkpoint_seconds: Annotated[
        float, option("Time between checkpoints.", panel=_RUN, show_default=True, min=0)
    ] = 60.0,
    overwrite: Annotated[
        bool, option("Remove an earlier run from the folder and start again.", "--overwrite", panel=_RUN)
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Train a classifier on labelled images, measure and calibrate it, and write a report.

    The same command with --out DIR continues a run that was stopped or killed, and shows the result of a finished one.
    Training settings without a default below are those recommended for the data: --dry-run shows them.
    """
    # Without a held-out part there is nothing to stop early on.
    cross_fit = "validation_fraction" not in other and "patience" not in settings
    run = RunSpec.model_validate(
        {"source": data, "data": reading, "train": settings, "validation_fraction": 0.1, "cross_fit": cross_fit}
        | {**harder, **other}
    )
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"--minutes must be above 0 and finite; got {minutes:g}.")
    if minutes is not None and {"epochs", "steps"} & settings.keys():
        raise ValueError("--minutes chooses the epochs. Omit --epochs and --steps.")
    folder, earlier = _new_folder(data, run.train.method) if out is None else (out, None)
    check_before_reading(run.train, folder, accelerator)
    from esupcon import training  # noqa: PLC0415 - slow to import
    from esupcon.training.devices import n_processes, rank  # noqa: PLC0415

    world = n_processes(devices)
    if dry_run:
        _show_recipe(run, as_json=as_json, minutes=minutes, devices=devices, accelerator=accelerator)
        return
    if out is None:
        if world > 1:
            raise ValueError("--out DIR is needed if several processes train together.")
        note(f"The run will be in {folder}.")
        if earlier is not None:
            note(f"To continue or show the earlier run, add: --out {shlex.quote(str(earlier))}")
    stopper = Stopper()
    try:
        with stopper:
            result = training.train(
                run,
                folder,
                minutes=minutes,
                devices=devices,
                accelerator=accelerator,
                overwrite=overwrite,
                checkpoint_seconds=checkpoint_seconds,
                should_stop=stopper,
                log=log,
            )
    except (training.TrainingInterrupted, Stopped):
        if not any(folder.glob("checkpoint-*.pt")) and not (folder / "result.json").exists():
            raise
        words = [*(word for word in sys.argv[1:] if word != "--overwrite"), *(["--out", str(folder)] * (out is None))]
        complain(f"stopped; the run is saved in {folder}. To continue: {shlex.join(['esupcon', *words])}")
        raise typer.Exit(stopper.exit_code) from None
    if rank() > 0:
        return
    report: Path | None = folder / "report.html"
    if not result.already_finished or no_thumbnails or not (folder / "report.html").exists():
        report = _write_report(run, result, thumbnails=not no_thumbnails)
    if as_json:
        about = {"out": str(folder), "report": report and str(report), "already_finished": result.already_finished}
        answer_json({**about, **result.model_dump(mode="json")})
        return
    if result.already_finished:
        note(f"{folder} holds this run, already finished; nothing was trained. --overwrite trains it again.")
    took = duration(result.provenance.seconds)
    answer(f"\n{METHODS[run.train.method].title} on {result.data.name}, trained and measured in {took}:\n")
    answer(_summary(result, report, ["evaluate", str(folder), data]))
    note(INTERVALS)


def _new_folder(data: str, method: str) -> tuple[Path, Path | None]:
    """Return a folder in runs/ that does not exist, named after data and method, and the newest one that does."""
    path, earlier = Path(data).resolve(), None
    name = re.sub(r"[^\w.-]+", "-", path.stem if path.is_file() else path.name) or "data"
    for i in itertools.count(1):
        folder = Path("runs", f"{name}-{method}" if i == 1 else f"{name}-{method}-{i}")
        if not folder.exists():
            break
        earlier = folder
    return folder, earlier


def _show_recipe(run: RunSpec, *, as_json: bool, **options: Any) -> None:
    """Print every setting that was asked for or chosen, and the time that training will take."""
    from esupcon.training.estimate import LONG_SECONDS, QUICKER  # noqa: PLC0415 - slow to import
    from esupcon.training.pipeline import preview  # noqa: PLC0415

    resolved, recipe, seconds = preview(run, log=log, **options)
    given = [name for name in run.train.model_fields_set if getattr(run.train, name) != "auto"]
    reasons = {**recipe.reasons, **dict.fromkeys(given, "as given")}
    if options["minutes"] is not None:
        reasons["epochs"] = f"what fits into {options['minutes']:g} min"
    values = resolved.train.model_dump()
    if as_json:
        answer_json({"settings": values, "reasons": reasons, "seconds": round(seconds, 1)})
        return
    rows = [[OPTIONS.get(name, name), str(values[name]), reasons[name]] for name in values if name in reasons]
    made = table(["setting", "value", "reason"], rows)
    for column in made.columns[1:]:
        column.justify = "left"
    answer(made)
    cores = count(values["threads"], "core")
    answer(f"Training will take about {duration(seconds)} on {cores}. Nothing was trained.")
    if seconds > LONG_SECONDS:
        note(QUICKER)


def _write_report(run: RunSpec, result: Result, *, thumbnails: bool) -> Path | None:
    """Write report.html with images of the data, which are read again; if that fails, say so and return None."""
    from esupcon.report import run_report  # noqa: PLC0415 - slow to import

    if find_spec("plotly") is None:
        note("report.html will have no plots. For plots: pip install 'esupcon[report]'")
    try:
        images, copies = _thumbnails(run, result) if thumbnails else ({}, [])
        return run_report(result.folder, images, copies=copies)
    except Exception as error:  # whatever it is, the result is complete without a report
        complain(f"report.html was not written ({type(error).__name__}: {error}). The result is not affected.")
        return None


def _thumbnails(run: RunSpec, result: Result) -> tuple[dict[Any, Images], list[tuple[Picture, Picture]]]:
    """Return the images of the test and the held-out part, and training images with their copies in the test part."""
    import numpy as np  # noqa: PLC0415 - slow to import

    from esupcon.data.dataset import take_rows  # noqa: PLC0415
    from esupcon.data.scenarios import Scenario, prepare  # noqa: PLC0415
    from esupcon.report import Images, picture  # noqa: PLC0415
    from esupcon.training.pipeline import load_for  # noqa: PLC0415

    dataset = load_for(run, lambda line: None)
    parts = prepare(dataset, Scenario(**run.scenario), result.preparation.validation_fraction, run.train.seed)
    files, test_files, classes = dataset.train_files, dataset.test_files, dataset.classes
    held = parts.held
    if not len(held):  # cross-fitting has predicted all but the only sample of a class
        held = parts.fit[np.bincount(parts.y_fit)[parts.y_fit] > 1]
    images = {
        "test": Images(dataset.x_test, test_files),
        "held_out": Images(take_rows(dataset.x_train, held), [files[i] for i in held] if files else ()),
    }
    copies = []
    for i, j in (pair for finding in result.findings for pair in finding.pairs):
        row = int(parts.fit[j])
        names = (Path(files[row]).name, Path(test_files[i]).name) if files else (f"image {row:,}", f"image {i:,}")
        ours = picture(dataset.x_train[row], "training", classes[dataset.y_train[row]], names[0])
        copies.append((ours, picture(dataset.x_test[i], "test", classes[dataset.y_test[i]], names[1])))
    return images, copies


def _summary(result: Result, report: Path | None, evaluate: list[str]) -> Table:
    """Return accuracy, calibration, weakest classes, suspicious labels, where the files are, and the next commands."""
    from esupcon.doctor.data import suspect_labels  # noqa: PLC0415 - slow to import
    from esupcon.probability import Predictions  # noqa: PLC0415

    figures, fitted = result.metrics.test or result.metrics.held_out, result.calibration.held_out
    rows: dict[str, str] = {}
    held_out = "held-out" if result.preparation.n_held_out else "cross-fitted"
    if figures is not None:
        n = count(figures.n, f"{'test' if result.metrics.test else held_out} image")
        rows["accuracy"] = f"{shown(figures, 'accuracy')}, {n}"
        rows["ECE"] = f"{shown(figures, 'ece')}, not calibrated"
        if fitted is not None:
            rows["ECE"] = f"{shown(fitted, 'ece_after')}; {percent(fitted.ece_before)} before calibration"
        weak = sorted((one.accuracy, one.name) for one in figures.per_class if one.accuracy is not None)
        weakest = [f"{name} ({percent(accuracy)})" for accuracy, name in weak[:3] if accuracy < 1]
        rows["weakest"] = ", ".join(weakest) or "none: every class is without a mistake"
    with suppress(OSError, ValueError):  # nothing was held out
        held = Predictions.load(result.folder / "held_out.npz")
        suspects = suspect_labels(held.probabilities(fitted.temperature if fitted else 1.0), held.labels)
        if len(suspects):
            rows["labels"] = f"{len(suspects):,} of {len(held):,} {held_out} labels suspicious"
    rows |= {"model": str(result.model), "report": "not written" if report is None else str(report)}
    rows["next"] = "\n".join(
        shlex.join(["esupcon", *words]) for words in (evaluate, ["predict", evaluate[1], "new.jpg"])
    )
    made = Table.grid(padding=(0, 3))
    for name, value in rows.items():
        made.add_row(name, "\n".join(map(printable, value.split("\n"))))
    return made


def check_before_reading(train: TrainSpec, out: Path, accelerator: str) -> None:
    """Raise ValueError for mistakes that must not wait until all images are read."""
    file = next((path for path in (out, *out.parents) if path.is_file()), None)
    if file is not None:
        raise ValueError(f"--out must be a folder; {file} is a file. Pass another name.")
    import torch  # noqa: PLC0415 - slow to import

    from esupcon.models import build_encoder, split_encoder  # noqa: PLC0415

    available = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if accelerator not in available:
        raise ValueError(f"--accelerator must be one of {', '.join(available)}; got {accelerator!r}.")
    if not available[accelerator]:
        raise ValueError(f"--accelerator {accelerator} is not available here. Pass --accelerator cpu.")
    if train.encoder not in ("auto", "identity"):
        with torch.device("meta"):  # checks the name without allocating weights
            built = build_encoder(train.encoder, input_shape=(3, 64, 64), pretrained=train.pretrained)
            split_encoder(built, train.train_blocks or 0)


_as_trained = takes(
    "reading", DataOptions, _READING, only=(*_SPLIT, *_FILES), defaults=dict.fromkeys(_SPLIT, "as in training")
)


@_as_trained
def evaluate(
    model: options.Model,
    data: options.Data,
    reading: dict[str, Any],
    part: Annotated[str, option(_PART, show_default=True)] = "auto",
    plot: options.Plot = None,
    as_json: options.Json = False,
) -> None:
    """Measure a classifier on labelled images: accuracy, results per class, calibration.

    Classes are matched by name. After `esupcon calibrate` the results before and after calibration are shown.
    """
    from esupcon.classifier import evaluate as measure  # noqa: PLC0415 - slow to import

    _plain_plots(plot)
    found = measure(model, data, part=part, reading=reading, plot=plot, log=log)  # type: ignore[arg-type]
    if as_json:
        answer_json(found.model_dump(mode="json"))
        return
    before, after = found.uncalibrated, found.calibrated
    where = "all" if found.part == "all" else f"the {found.part} part"
    answer(f"{found.model} on {where} of {found.data}: {before.n:,} samples")
    if after is None:
        answer(figures_table(value=before))
    else:
        answer(figures_table(**{"before calibration": before, f"T = {after.temperature:.3g}": after}))
    if found.by_shares:
        words = {"balanced": "equal class shares", "training": "the class shares of training"}
        rows = [
            [words[name], percent(one.accuracy), percent(one.ece), nats(one.nll)]
            for name, one in found.by_shares.items()
        ]
        answer(table(["predicting for, and measured for", "accuracy", "ECE", "NLL"], rows))
    answer(classes_table(after or before))
    note(INTERVALS)
    if found.priors is not None:
        listed = ", ".join(f"{name} {percent(share)}" for name, share in [*found.priors.items()][:5])
        note(f"Predictions are for the class shares {listed}{', ...' * (len(found.priors) > 5)}.")
    if found.classes_without_samples:
        note(f"No samples of {len(found.classes_without_samples)} of the model's classes.")
    if after is None:
        note(f"Not calibrated yet. To calibrate: {shlex.join(['esupcon', 'calibrate', str(model), data])}")
    else:
        note(f"T was fitted on {found.calibrated_on}.")
    _note_plot(plot)


def _plain_plots(plot: Path | None) -> None:
    """Undo the settings of a matplotlibrc in the current folder, which may come with the data and can start LaTeX."""
    if plot is not None:
        with suppress(ImportError):
            import matplotlib  # noqa: PLC0415 - an extra, and slow to import

            matplotlib.rcdefaults()


def _note_plot(plot: Path | None) -> None:
    if plot is not None:
        note(f"The reliability diagram is in {plot}.")


@_as_trained
def calibrate(
    model: options.Model,
    data: options.Data,
    reading: dict[str, Any],
    on: Annotated[str, option(_ON, show_default=True)] = "auto",
    plot: options.Plot = None,
    as_json: options.Json = False,
) -> None:
    """Fit the temperature that makes probabilities agree with accuracy, and store it in the model.

    `esupcon predict` and `predict_proba` use it from then on. Predicted labels do not change.
    """
    from esupcon.classifier import calibrate as run  # noqa: PLC0415 - slow to import
    from esupcon.probability.calibration import FEW_SAMPLES  # noqa: PLC0415

    _plain_plots(plot)
    found = run(model, data, on=on, reading=reading, plot=plot, log=log)  # type: ignore[arg-type]
    if as_json:
        answer_json(found.model_dump(mode="json"))
        return
    f = found.figures
    ece = [shown(f, "ece_before"), shown(f, "ece_after")]
    answer(f"{found.model}, measured on {found.measured_on}: {f.n_evaluation:,} samples")
    answer(
        table(
            ["", "before, T = 1", f"after, T = {f.temperature:.3g}"],
            [["ECE", *ece], ["NLL", nats(f.nll_before), nats(f.nll_after)]],
        )
    )
    note(INTERVALS)
    stored = f"is stored in {found.model}" if found.stored else "is not stored"
    rule = " by the smoothed rule for few samples" if f.n_calibration < FEW_SAMPLES else ""
    note(f"T was fitted{rule} on {found.fitted_on} ({f.n_calibration:,} samples) and {stored}.")
    _note_plot(plot)


def predict(
    model: options.Model,
    images: Annotated[
        list[str],
        argument("IMAGES...", "Image files and folders of them; - reads paths from standard input, one per line."),
    ],
    top_k: Annotated[int, option("Number of classes per image, most probable first.", min=1, show_default=True)] = 1,
    unknown: Annotated[str | None, option(_UNKNOWN, metavar="[=TEXT]")] = None,
    output_format: Annotated[str, option("csv or jsonl (JSON lines).", "--format", show_default=True)] = "csv",
    workers: Annotated[int | None, option("Threads that decode images.", min=1, show_default="one per core")] = None,
) -> None:
    """Predict labels, probabilities and outlier scores of image files.

    Probabilities are calibrated if the model is. The higher the outlier score, the less an image resembles the
    training images; with --unknown, the label is TEXT if it is above that of 99 % of the images used for calibration.
    Files that cannot be read are named on standard error and skipped, and the exit code is 1. In CSV, a name that a
    spreadsheet would take for a formula gets a leading '; on a terminal, control characters in names are replaced.
    JSON lines hold every name unchanged.
    """
    if output_format not in ("csv", "jsonl"):
        raise ValueError(f"--format must be csv or jsonl; got {output_format!r}.")
    from esupcon.classifier import load_classifier, predict_files  # noqa: PLC0415 - slow to import

    skipped = 0

    def unreadable(path: str, reason: str) -> None:
        nonlocal skipped
        skipped += 1
        complain(f"skipped: {path} ({reason})")

    classifier = load_classifier(model)
    if top_k > classifier.n_classes:
        complain(f"--top-k {top_k}: the model has {classifier.n_classes} classes; showing all of them.")
        top_k = classifier.n_classes
    if unknown is not None and unknown in map(str, classifier.classes_.tolist()):
        raise ValueError(f"--unknown must not be one of the classes; got {unknown!r}. Pass --unknown=TEXT.")
    if unknown is not None and classifier.calibration.outlier_threshold is None:
        raise ValueError(f"--unknown needs a calibrated model. Run: esupcon calibrate {model} DATA")
    if classifier.calibration.how == "none":
        note(f"The model is not calibrated: probabilities may be too high. Run: esupcon calibrate {model} DATA")
    if hasattr(sys.stdout, "reconfigure"):  # file names need not be valid text; write back the bytes that were read
        sys.stdout.reconfigure(errors="surrogateescape")
    found = predict_files(classifier, _paths(images), top_k=top_k, unreadable=unreadable, workers=workers)
    write = _csv_writer(top_k) if output_format == "csv" else _write_json_line
    n_predicted = 0
    for one in found:
        n_predicted += 1
        write(one if unknown is None or not one.is_outlier else _as_unknown(one, unknown))
    if skipped:
        complain(f"{skipped:,} could not be read, {n_predicted:,} predicted.")
        raise typer.Exit(PARTIAL)


def _paths(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if word == "-":
            lines = (os.fsdecode(line.rstrip(b"\r\n")) for line in sys.stdin.buffer)
            yield from filter(None, lines)
        else:
            yield word


def _as_unknown(one: Prediction, text: str) -> Prediction:
    """Return the prediction with another label in the first place; the probability stays that of its class."""
    return replace(one, ranked=((text, one.ranked[0][1]), *one.ranked[1:]))


def _csv_writer(top_k: int) -> Callable[[Prediction], None]:
    """Write the header, and return what writes a row."""
    legible = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    ranks = ["", *(f"_{k}" for k in range(2, top_k + 1))]
    writer.writerow(
        ["path", *(f"{name}{rank}" for rank in ranks for name in ("label", "probability")), "outlier_score"]
    )

    def write(one: Prediction) -> None:
        row = [csv_text(one.path)]
        for label, probability in one.ranked:
            row += [csv_text(label), f"{probability:.6f}"]
        row.append("" if one.outlier_score is None else f"{one.outlier_score:.6g}")
        writer.writerow([legible(cell) for cell in row])

    return write


def _write_json_line(one: Prediction) -> None:
    ranked = [{"label": label, "probability": probability} for label, probability in one.ranked]
    more = {"outlier_score": one.outlier_score} | ({"top": ranked} if len(ranked) > 1 else {})
    print(json.dumps({"path": one.path, **ranked[0], **more}))  # JSON escapes control characters itself


def export(
    model: options.Model,
    out: Annotated[Path, option("Ends in .onnx or .pt2; overwritten if it exists.", metavar="FILE")],
    output_format: Annotated[
        str, option("onnx for ONNX Runtime, torch for torch.export.load.", "--format", show_default=True)
    ] = "onnx",
    opset: Annotated[int | None, option("ONNX opset.", show_default="18")] = None,
    as_json: options.Json = False,
) -> None:
    """Write a classifier as one file that runs without esupcon.

    The input is a batch of uint8 images (n, C, H, W), or of float32 rows of a table. Preprocessing and calibration are
    part of the file; the classes are in its metadata. The file is compared with the model before it is kept.
    """
    if output_format not in ("onnx", "torch"):
        raise ValueError(f"--format must be onnx or torch; got {output_format!r}.")
    if opset is not None and output_format != "onnx":
        raise ValueError("--opset applies to --format onnx only. Omit it.")
    from esupcon.classifier import export_onnx, export_torch, load_classifier  # noqa: PLC0415 - slow to import

    classifier = load_classifier(model)
    if output_format == "torch":
        exported = export_torch(classifier, out)
    else:
        exported = export_onnx(classifier, out, **({} if opset is None else {"opset": opset}))
    if as_json:
        answer_json({"format": output_format, **asdict(exported), "path": str(exported.path)})
    else:
        answer(f"{exported.path}: {exported.n_bytes:,} bytes, {classifier.n_classes} classes")
        if exported.difference is not None:
            answer(f"largest difference from the model: {exported.difference:.1e} on {exported.n_checked} inputs")
    if exported.difference is None:
        complain('the file was not checked: onnxruntime is missing. Install it with: pip install "esupcon[onnx]"')
