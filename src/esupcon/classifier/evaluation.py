"""What the commands do with a trained classifier: measure it on labelled data, calibrate it, predict image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from esupcon._console import Log, count
from esupcon.classifier.classifier import Classifier
from esupcon.classifier.folder import load_classifier, model_folder
from esupcon.classifier.preprocessing import ImagePreprocessing, Rows
from esupcon.data import DataOptions, Dataset, load, load_images
from esupcon.data.dataset import take_rows
from esupcon.data.folders import image_files_below
from esupcon.data.scenarios import Scenario, prepare
from esupcon.probability import (
    CalibrationFigures,
    Figures,
    Predictions,
    calibration_diagram,
    held_out_calibration,
    measure,
    paper_calibration,
    reliability_bins,
    reliability_diagram,
)

Part = Literal["auto", "test", "train", "all"]
CalibrationPart = Literal["auto", "held-out", "train", "test", "all"]
_PARTS = {
    "held-out": "the held-out part of the training data",
    "train": "the train part",
    "test": "a stratified fifth of the test part",
    "all": "all",
}
#: With fewer samples a temperature is uncertain, and a message says so.
FEW_SAMPLES = 100
#: Image files that are decoded and predicted at a time.
BATCH = 128


class Evaluation(BaseModel):
    """Metrics of a model on a part of a data set; `calibrated` is None if the model is not calibrated."""

    model_config = ConfigDict(frozen=True)

    model: str
    data: str
    part: str
    uncalibrated: Figures
    calibrated: Figures | None
    classes_without_samples: tuple[str, ...]


class CalibrationOutcome(BaseModel):
    """The temperature fitted by `calibrate` and what it changes. `stored` is False if it made probabilities worse."""

    model_config = ConfigDict(frozen=True)

    model: str
    data: str
    fitted_on: str
    measured_on: str
    figures: CalibrationFigures
    stored: bool


def evaluate(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    part: Part = "auto",
    reading: Mapping[str, Any] | None = None,
    plot: str | os.PathLike[str] | None = None,
    log: Log = lambda line: None,
) -> Evaluation:
    """Measure a classifier on the labelled data of a source.

    part: "test", "train" or "all" of it. "auto": the test part if the source has its own or the classifier was trained
        on it, else everything.
    reading: fields of `DataOptions` that differ from how the classifier's training data were read.
    plot: file for the reliability diagram, .png, .svg or .pdf.
    """
    _check_choice("part", part, get_args(Part))
    classifier, dataset = _load(model, source, reading, log)
    if part == "auto":
        part = "test" if _trained_on(classifier, dataset) or not dataset.test_drawn else "all"
    x, y = _part(dataset, part)
    if not len(y):
        raise ValueError(f"the {part} part of {dataset.name} holds no samples. Pass another part.")
    predictions = _predictions(classifier, dataset, x, y)
    names, calibration = _class_names(classifier), classifier.calibration
    uncalibrated, calibrated = measure(predictions, names), None
    bins = reliability_bins(predictions.probabilities(), predictions.labels)
    bins_after = None
    if calibration.how != "none":
        bias = calibration.temperature * calibration.bias(classifier.n_classes)
        adjusted = Predictions(predictions.logits + bias, predictions.labels)
        calibrated = measure(adjusted, names, temperature=calibration.temperature)
        bins_after = reliability_bins(adjusted.probabilities(calibration.temperature), adjusted.labels)
    if plot is not None:
        reliability_diagram(
            bins,
            bins_after,
            interval=uncalibrated.ece_interval,
            after_interval=None if calibrated is None else calibrated.ece_interval,
            path=plot,
        )
    present = set(np.unique(predictions.labels).tolist())
    return Evaluation(
        model=str(model_folder(model)),
        data=dataset.name,
        part=part,
        uncalibrated=uncalibrated,
        calibrated=calibrated,
        classes_without_samples=tuple(name for k, name in enumerate(names) if k not in present),
    )


def calibrate(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    on: CalibrationPart = "auto",
    reading: Mapping[str, Any] | None = None,
    plot: str | os.PathLike[str] | None = None,
    log: Log = lambda line: None,
) -> CalibrationOutcome:
    """Fit the temperature of a classifier on labelled data and store it in the model.

    on: what the temperature is fitted on. "held-out": what training held out; "train"; "test": a stratified fifth of
        the test part, as in the paper; each is measured on (the rest of) the test part. "all": fitted and measured on
        everything. "auto": held-out for the data that the classifier was trained on, else train, which is new to it.

    A temperature that makes the log likelihood worse is not stored. One that is stored replaces the one before.
    """
    _check_choice("on", on, get_args(CalibrationPart))
    classifier, dataset = _load(model, source, reading, log)
    known = _trained_on(classifier, dataset)
    if on == "auto":
        on = "held-out" if known else "train"
    if on != "all" and len(dataset.y_test) < 2:
        raise ValueError(f"{source} has no test part to measure on. Pass on=all to fit and measure on everything.")
    fitted_on, measured_on = f"{_PARTS[on]} of {dataset.name}", f"the test part of {dataset.name}"
    if on == "test":
        measured_on = f"the rest of {measured_on}"
        figures = paper_calibration(_predictions(classifier, dataset, *_part(dataset, "test")))
    elif on == "all":
        measured_on = fitted_on
        log("The temperature is fitted and measured on the same data: the figures are optimistic.")
        everything = _predictions(classifier, dataset, *_part(dataset, "all"))
        figures = held_out_calibration(everything, everything)
    else:
        if on == "train" and known:
            log("The classifier was trained on these samples, where it is too confident; prefer on=held-out.")
        rows = _held_out(classifier, dataset) if on == "held-out" else _part(dataset, "train")
        test = _predictions(classifier, dataset, *_part(dataset, "test"))
        figures = held_out_calibration(_predictions(classifier, dataset, *rows), test)
    if figures.n_calibration < FEW_SAMPLES:
        log(
            f"The temperature was fitted on {count(figures.n_calibration, 'sample')} only and is uncertain; "
            f"{FEW_SAMPLES} or more are better."
        )
    if plot is not None:
        calibration_diagram(figures, plot)
    before, after = figures.nll_before, figures.nll_after
    stored = after is not None and (before is None or after <= before)
    replaced = classifier.calibration
    if stored:
        if replaced.how != "none":
            found_on = f"({replaced.how}, {count(replaced.n, 'sample')})"
            log(f"Replacing the temperature {replaced.temperature:.3g} {found_on} by {figures.temperature:.3g}.")
        how = "held-out" if on == "held-out" else "given"
        fitted = {"temperature": figures.temperature, "how": how, "n": figures.n_calibration}
        classifier.calibration = replaced.model_copy(update=fitted)
        classifier.save(model_folder(model), overwrite=True)
    else:
        log(
            f"Not stored: on {measured_on} the temperature {figures.temperature:.3g} makes the log likelihood worse. "
            "Fit it on more samples."
        )
    return CalibrationOutcome(
        model=str(model_folder(model)),
        data=dataset.name,
        fitted_on=fitted_on,
        measured_on=measured_on,
        figures=figures,
        stored=stored,
    )


# --- Labelled data in the form of a classifier -----------------------------------------------------------------------


def _load(
    model: str | os.PathLike[str], source: str | os.PathLike[str], reading: Mapping[str, Any] | None, log: Log
) -> tuple[Classifier, Dataset]:
    """Return a classifier, and the source at its image size, divided as its training data were unless told otherwise.

    The model decides how data are divided and never where they are read: paths come from the caller only.
    """
    classifier = load_classifier(model)
    shape = _image_form(classifier, model)
    fields: dict[str, Any] = {}
    record = None if classifier.about is None else classifier.about.data
    if record is not None:
        fields = {"split_seed": record.split_seed, "test_fraction": record.test_fraction}
        if record.name == os.fspath(source):  # n_per_class is the protocol of one named set
            fields["n_per_class"] = record.n_per_class
    fields |= {**(reading or {}), "image_size": shape.image_size, "channels": shape.channels}
    return classifier, load(source, DataOptions(**fields), log=log)


def _image_form(classifier: Classifier, model: object) -> ImagePreprocessing:
    if not isinstance(classifier.preprocessing, ImagePreprocessing):
        raise ValueError(  # noqa: TRY004 - the model is of the wrong kind, not a Python type
            f"{model} classifies tables; this command takes classifiers of images. Use esupcon.load in Python."
        )
    return classifier.preprocessing


def _trained_on(classifier: Classifier, dataset: Dataset) -> bool:
    record = None if classifier.about is None else classifier.about.data
    return record is not None and record.fingerprint == dataset.fingerprint


def _part(dataset: Dataset, part: str) -> tuple[Rows, NDArray[np.int64]]:
    if part == "all":
        x = np.concatenate([np.asarray(dataset.x_train), np.asarray(dataset.x_test)])
        return x, np.concatenate([dataset.y_train, dataset.y_test])
    return (dataset.x_test, dataset.y_test) if part == "test" else (dataset.x_train, dataset.y_train)


def _held_out(classifier: Classifier, dataset: Dataset) -> tuple[Rows, NDArray[np.int64]]:
    """Return what training held out, drawn again as the model records it, wrong labels included."""
    record = None if classifier.about is None else classifier.about.data
    if record is None or record.fingerprint != dataset.fingerprint:
        raise ValueError(
            f"the classifier was not trained on {dataset.name}, so nothing of it was held out. Use on=train."
        )
    if not record.validation_fraction:
        raise ValueError(
            "the classifier was trained with nothing held out. Train with validation_fraction=0.1, or pass on=test "
            "to use a fifth of the test part for the temperature."
        )
    scenario = Scenario(
        n_train=record.n_train,
        imbalance_rate=record.imbalance_rate,
        noise_rate=record.noise_rate,
        noise_kind=record.noise_kind,
        seed=record.scenario_seed,
    )
    prepared = prepare(dataset, scenario, record.validation_fraction, record.validation_seed)
    return take_rows(dataset.x_train, prepared.held), prepared.y_held


def _predictions(classifier: Classifier, dataset: Dataset, x: Rows, labels: NDArray[np.int64]) -> Predictions:
    """Return logits, and labels as the classifier numbers its classes, matched by name."""
    names = _class_names(classifier)
    place = {name: k for k, name in enumerate(names)}
    unknown = [dataset.classes[k] for k in np.unique(labels) if dataset.classes[k] not in place]
    if unknown:
        raise ValueError(
            f"the classifier does not know {count(len(unknown), 'class')} of {dataset.name}, first "
            f"{unknown[0]!r}; it knows {', '.join(map(repr, names[:5]))}{', ...' if len(names) > 5 else ''}. "
            "Rename or remove them: classes are matched by name."
        )
    column = np.array([place.get(name, -1) for name in dataset.classes], np.int64)
    logits = classifier.outputs(x, ("logits",))["logits"].double().cpu().numpy()
    return Predictions(logits, column[labels])


def _class_names(classifier: Classifier) -> tuple[str, ...]:
    return tuple(str(label) for label in classifier.classes_.tolist())


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")


# --- Image files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """The classes of one image file: `ranked` holds (label, probability), the most probable first."""

    path: str
    ranked: tuple[tuple[str, float], ...]


def predict_files(
    classifier: Classifier,
    paths: Iterable[str],
    *,
    top_k: int = 1,
    unreadable: Callable[[str, str], None],
    workers: int | None = None,
) -> Iterator[Prediction]:
    """Predict image files one after the other, in memory that does not grow with their number.

    A folder stands for the images below it. `unreadable(path, reason)` is called for files without a prediction.
    Arguments are checked at once, before the first prediction is asked for.
    """
    form = _image_form(classifier, "this model")
    if not 1 <= top_k <= classifier.n_classes:
        raise ValueError(f"top_k must be from 1 to the {classifier.n_classes} classes of the model; got {top_k}.")
    return _predict_files(classifier, form, paths, top_k, unreadable, workers)


def _predict_files(
    classifier: Classifier,
    form: ImagePreprocessing,
    paths: Iterable[str],
    top_k: int,
    unreadable: Callable[[str, str], None],
    workers: int | None,
) -> Iterator[Prediction]:
    files, names = _files(paths, unreadable), _class_names(classifier)
    for batch in load_images(files, form.image_size, form.channels, batch_size=BATCH, workers=workers):
        for path, reason in batch.skipped:
            unreadable(str(path), reason)
        if not batch.paths:
            continue
        logits = classifier.outputs(batch.images, ("logits",))["logits"].double().cpu().numpy()
        for path, row in zip(batch.paths, classifier.calibration.probabilities(logits), strict=True):
            best = np.argsort(-row, kind="stable")[:top_k]  # stable: among equals the first class, as with argmax
            yield Prediction(path, tuple((names[k], float(row[k])) for k in best))


def _files(paths: Iterable[str], unreadable: Callable[[str, str], None]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112 - names that are not valid text must pass too
            yield path
            continue
        not_images: list[tuple[str, str]] = []
        found = image_files_below(Path(path), not_images)
        for name, reason in not_images:
            unreadable(str(name), reason)
        if not found:
            unreadable(path, "the folder holds no images")
        yield from found
