"""Commands for one model: train, evaluate, calibrate, predict, export."""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esupcon._console import percent, printable
from esupcon.cli import options
from esupcon.cli.options import option, takes
from esupcon.cli.output import INTERVALS, answer, answer_json, classes_table, complain, figures_table, note, table
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
_as_trained = takes(
    "reading", DataOptions, _READING, only=(*_SPLIT, *_FILES), defaults=dict.fromkeys(_SPLIT, "as in training")
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
    devices: Annotated[int, option("Number of processes or accelerators.", _RUN, show_default=True)] = 1,
    accelerator: Annotated[str, option("auto, cpu, cuda or mps.", _RUN, show_default=True)] = "auto",
    checkpoint_seconds: Annotated[float, option("Time between checkpoints.", _RUN, show_default=True)] = 60.0,
    overwrite: Annotated[
        bool, option("Remove an earlier run from the folder and start again.", _RUN, "--overwrite")
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
                choose_epochs="epochs" not in settings,
                devices=devices,
                accelerator=accelerator,
                overwrite=overwrite,
                checkpoint_seconds=checkpoint_seconds,
                should_stop=stopper,
                log=note,
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
    for part, name in (("test", "test"), ("held_out", "held-out")):
        figures = getattr(result.metrics, part)
        if figures is not None:
            title = METHODS[run.train.method].title
            answer(f"{title} on {result.data.name}: {figures.n:,} {name} samples")
            answer(figures_table([("value", figures.model_dump())]))
            note(INTERVALS)
            break
    answer(f"Model:  {result.model}\nNext:   {shlex.join(['esupcon', 'evaluate', str(result.model), data])}")


def check_before_reading(encoder: str, out: Path, accelerator: str, devices: int) -> None:
    """Raise ValueError for mistakes that must not wait until all images are read."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder; {out} is a file.")
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


@_as_trained
def evaluate(
    model: options.Model,
    data: options.Data,
    reading: dict[str, Any],
    part: Annotated[
        str,
        typer.Option(
            help="test, train or all. auto: the test part if the data have one or the model was trained on them, "
            "otherwise all."
        ),
    ] = "auto",
    plot: options.Plot = None,
    as_json: options.Json = False,
) -> None:
    """Measure a classifier on labelled images: accuracy, results per class, calibration.

    Classes are matched by name. After `esupcon calibrate` the results before and after calibration are shown.
    """
    from esupcon.classifier import evaluate as measure  # noqa: PLC0415 - slow to import

    found = measure(model, data, part=part, reading=reading, plot=plot, log=note)  # type: ignore[arg-type]
    if as_json:
        answer_json(found.model_dump(mode="json"))
        return
    before, after = found.uncalibrated, found.calibrated
    sides = [("value", before.model_dump())]
    if after is not None:
        sides = [("before calibration", before.model_dump()), (f"T = {after.temperature:.3g}", after.model_dump())]
    where = "all" if found.part == "all" else f"the {found.part} part"
    answer(f"{found.model} on {where} of {found.data}: {before.n:,} samples")
    answer(figures_table(sides))
    answer(classes_table((after or before).model_dump()))
    note(INTERVALS)
    if found.classes_without_samples:
        note(f"No samples of {len(found.classes_without_samples)} of the model's classes.")
    if after is None:
        note(f"Not calibrated yet. To calibrate: {shlex.join(['esupcon', 'calibrate', str(model), data])}")
    if plot is not None:
        note(f"The reliability diagram is in {plot}.")


@_as_trained
def calibrate(
    model: options.Model,
    data: options.Data,
    reading: dict[str, Any],
    on: Annotated[
        str,
        typer.Option(
            help="Part to fit the temperature on: held-out (from training), train, test (a fifth of it) or all. "
            "auto: held-out for the data the model was trained on, otherwise train."
        ),
    ] = "auto",
    plot: options.Plot = None,
    as_json: options.Json = False,
) -> None:
    """Fit the temperature that makes probabilities agree with accuracy, and store it in the model.

    `esupcon predict` and `predict_proba` use it from then on. Predicted labels do not change.
    """
    from esupcon.classifier import calibrate as run  # noqa: PLC0415 - slow to import

    found = run(model, data, on=on, reading=reading, plot=plot, log=note)  # type: ignore[arg-type]
    if as_json:
        answer_json(found.model_dump(mode="json"))
        return
    figures = found.figures
    ece = ((figures.ece_before, figures.ece_before_interval), (figures.ece_after, figures.ece_after_interval))
    nll = (figures.nll_before, figures.nll_after)
    rows = [
        [
            "ECE",
            *(f"{percent(value)} ({100 * (low or 0):.1f} to {100 * (high or 0):.1f})" for value, (low, high) in ece),
        ],
        ["NLL", *("infinite" if value is None else f"{value:.3f}" for value in nll)],
    ]
    answer(f"{found.model}, measured on {found.measured_on}: {figures.n_evaluation:,} samples")
    answer(table(["", "before, T = 1", f"after, T = {figures.temperature:.3g}"], rows))
    note(INTERVALS)
    stored = f"is stored in {found.model}" if found.stored else "is not stored"
    note(f"T was fitted on {found.fitted_on} ({figures.n_calibration:,} samples) and {stored}.")
    if plot is not None:
        note(f"The reliability diagram is in {plot}.")


def predict(
    model: options.Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Image files and folders of them; - reads paths from standard input, one per line.",
            show_default=False,
        ),
    ],
    top_k: Annotated[int, typer.Option(min=1, help="Number of classes per image, most probable first.")] = 1,
    output_format: Annotated[str, typer.Option("--format", help="csv or jsonl (JSON lines).")] = "csv",
    workers: options.Workers = None,
) -> None:
    """Predict labels and probabilities of image files.

    Probabilities are calibrated if the model is. Files that cannot be read are named on standard error and skipped, and
    the exit code is 1. In CSV, a name that a spreadsheet would take for a formula gets a leading ' (a path gets ./);
    on a terminal, control characters in names are replaced. JSON lines hold every name unchanged.
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
    if classifier.calibration.how == "none":
        note(f"The model is not calibrated: probabilities may be too high. Run: esupcon calibrate {model} DATA")
    if hasattr(sys.stdout, "reconfigure"):  # file names need not be valid text; write back the bytes that were read
        sys.stdout.reconfigure(errors="surrogateescape")
    found = predict_files(classifier, _paths(images), top_k=top_k, unreadable=unreadable, workers=workers)
    n_predicted = (_write_csv if output_format == "csv" else _write_json_lines)(found, top_k)
    if skipped:
        complain(f"{skipped:,} could not be read, {n_predicted:,} predicted.")
        raise typer.Exit(PARTIAL)


def _paths(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if word != "-":
            yield word
            continue
        for line in sys.stdin.buffer:
            name = os.fsdecode(line.rstrip(b"\r\n"))
            if name:
                yield name


def _write_csv(found: Iterable[Prediction], top_k: int) -> int:
    shown = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    ranks = ["" if k == 1 else f"_{k}" for k in range(1, top_k + 1)]
    writer.writerow(["path", *(f"{name}{rank}" for rank in ranks for name in ("label", "probability"))])
    n_written = 0
    for one in found:
        row = [f"./{one.path}" if one.path.startswith(_FORMULA) else one.path]
        for label, probability in one.ranked:
            row += [f"'{label}" if label.startswith(_FORMULA) else label, f"{probability:.6f}"]
        writer.writerow([shown(cell) for cell in row])
        n_written += 1
    return n_written


def _write_json_lines(found: Iterable[Prediction], top_k: int) -> int:
    n_written = 0
    for one in found:
        label, probability = one.ranked[0]
        value: dict[str, object] = {"path": one.path, "label": label, "probability": probability}
        if top_k > 1:
            value["top"] = [{"label": name, "probability": p} for name, p in one.ranked]
        print(json.dumps(value))  # JSON escapes control characters itself
        n_written += 1
    return n_written


def export(
    model: options.Model,
    out: Annotated[Path, option("Ends in .onnx or .pt2; overwritten if it exists.", metavar="FILE")],
    output_format: Annotated[
        str, typer.Option("--format", help="onnx for ONNX Runtime, torch for torch.export.load.")
    ] = "onnx",
    opset: Annotated[int | None, typer.Option(help="ONNX opset.", show_default="18")] = None,
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
        exported = export_onnx(classifier, out) if opset is None else export_onnx(classifier, out, opset=opset)
    if as_json:
        answer_json({"format": output_format, **asdict(exported), "path": str(exported.path)})
    else:
        answer(f"{exported.path}: {exported.n_bytes:,} bytes, {classifier.n_classes} classes")
        if exported.difference is not None:
            answer(f"largest difference from the model: {exported.difference:.1e} on {exported.n_checked} inputs")
    if exported.difference is None:
        complain('the file was not checked: onnxruntime is missing. Install it with: pip install "esupcon[onnx]"')
