"""Commands for one model: train, evaluate, calibrate, predict, export."""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esupcon._console import printable
from esupcon.cli import options
from esupcon.cli.options import argument, option, takes
from esupcon.cli.output import INTERVALS, answer, answer_json, classes_table, complain, figures_table, log, note, table
from esupcon.cli.output import with_interval as shown
from esupcon.cli.stopping import PARTIAL, Stopped, Stopper
from esupcon.data import DataOptions
from esupcon.methods import METHODS
from esupcon.spec import RunSpec, TrainSpec

if TYPE_CHECKING:
    from esupcon.classifier import Prediction

_SETTINGS, _SCENARIO, _RUN, _READING = "Training settings", "Harder settings", "Run", "Reading data"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a cell that starts like this for a formula
_SPLIT = ("split_seed", "test_fraction", "n_per_class")
_FILES = ("layout", "image_column", "label_column", "data_dir", "strict", "workers")
_HARDER = ("n_train", "imbalance_rate", "noise_rate", "noise_kind")
_PART = "test, train or all. auto: the test part if the data have one or the model was trained on them, otherwise all."
_UNKNOWN = "Label images that resemble no class as unknown, or as TEXT: --unknown or --unknown=TEXT."
_ON = (
    "Part to fit the temperature on: held-out (from training), train, test (a fifth of it) or all. auto: held-out for "
    "the data the model was trained on, otherwise train."
)


@takes("settings", TrainSpec, _SETTINGS, defaults={"epochs": "chosen from the number of images"})
@takes("harder", RunSpec, _SCENARIO, only=_HARDER)
@takes("held_out", RunSpec, _RUN, only=("validation_fraction",), defaults={"validation_fraction": "0.1"})
@takes("reading", DataOptions, _READING, only=("image_size", "channels", *_SPLIT, *_FILES))
def train(
    data: options.Data,
    settings: dict[str, Any],
    harder: dict[str, Any],
    held_out: dict[str, Any],
    reading: dict[str, Any],
    out: Annotated[Path, option("Folder of the run.", metavar="DIR")],
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
    """Train a classifier on labelled images.

    The same command continues a run that was stopped or killed, and shows the result of a finished one.
    """
    run = RunSpec.model_validate(
        {"source": data, "data": reading, "train": settings, "validation_fraction": 0.1, **held_out, **harder}
    )
    check_before_reading(run.train.encoder, out, accelerator, devices)
    from esupcon import training  # noqa: PLC0415 - slow to import
    from esupcon.training.devices import rank  # noqa: PLC0415

    stopper = Stopper()
    try:
        with stopper:
            result = training.train(
                run,
                out,
                devices=devices,
                accelerator=accelerator,
                overwrite=overwrite,
                checkpoint_seconds=checkpoint_seconds,
                should_stop=stopper,
                log=log,
            )
    except (training.TrainingInterrupted, Stopped):
        if not (out / "checkpoint.json").exists() and not (out / "result.json").exists():
            raise
        again = shlex.join(["esupcon", *(word for word in sys.argv[1:] if word != "--overwrite")])
        complain(f"stopped; the run is saved in {out}. To continue: {again}")
        raise typer.Exit(stopper.exit_code) from None
    if rank() > 0:
        return
    if as_json:
        done = result.already_finished
        answer_json({"out": str(out), "already_finished": done, **result.model_dump(mode="json")})
        return
    if result.already_finished:
        note(f"{out} holds this run, already finished; nothing was trained. --overwrite trains it again.")
    figures, part = result.metrics.test or result.metrics.held_out, "test" if result.metrics.test else "held-out"
    if figures is not None:
        answer(f"{METHODS[run.train.method].title} on {result.data.name}: {figures.n:,} {part} samples")
        answer(figures_table(value=figures))
        note(INTERVALS)
    answer(f"Model:  {result.model}\nNext:   {shlex.join(['esupcon', 'evaluate', str(result.model), data])}")


def check_before_reading(encoder: str, out: Path, accelerator: str, devices: int) -> None:
    """Raise ValueError for mistakes that must not wait until all images are read."""
    file = next((path for path in (out, *out.parents) if path.is_file()), None)
    if file is not None:
        raise ValueError(f"--out must be a folder; {file} is a file. Pass another name.")
    if devices < 1:
        raise ValueError(f"--devices must be at least 1; got {devices}.")
    import torch  # noqa: PLC0415 - slow to import

    from esupcon.models import build_encoder  # noqa: PLC0415

    available = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if accelerator not in available:
        raise ValueError(f"--accelerator must be one of {', '.join(available)}; got {accelerator!r}.")
    if not available[accelerator]:
        raise ValueError(f"--accelerator {accelerator} is not available here. Pass --accelerator cpu.")
    if encoder not in ("auto", "identity"):
        with torch.device("meta"):  # checks the name without allocating weights
            build_encoder(encoder, input_shape=(3, 64, 64))


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
    answer(classes_table(after or before))
    note(INTERVALS)
    if found.classes_without_samples:
        note(f"No samples of {len(found.classes_without_samples)} of the model's classes.")
    if after is None:
        note(f"Not calibrated yet. To calibrate: {shlex.join(['esupcon', 'calibrate', str(model), data])}")
    else:
        note(f"T was fitted on {found.calibrated_on}.")
    _note_plot(plot)


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

    found = run(model, data, on=on, reading=reading, plot=plot, log=log)  # type: ignore[arg-type]
    if as_json:
        answer_json(found.model_dump(mode="json"))
        return
    f = found.figures
    ece = [shown(f.ece_before, f.ece_before_interval, share=True), shown(f.ece_after, f.ece_after_interval, share=True)]
    nll = ["infinite" if value is None else f"{value:.3f}" for value in (f.nll_before, f.nll_after)]
    answer(f"{found.model}, measured on {found.measured_on}: {f.n_evaluation:,} samples")
    answer(table(["", "before, T = 1", f"after, T = {f.temperature:.3g}"], [["ECE", *ece], ["NLL", *nll]]))
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
    spreadsheet would take for a formula gets a leading ' (a path gets ./); on a terminal, control characters in names
    are replaced. JSON lines hold every name unchanged.
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
        row = [f"./{one.path}" if one.path.startswith(_FORMULA) else one.path]
        for label, probability in one.ranked:
            row += [f"'{label}" if label.startswith(_FORMULA) else label, f"{probability:.6f}"]
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
