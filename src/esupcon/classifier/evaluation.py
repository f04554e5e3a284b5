"""What the commands do with a trained classifier: measure it on labelled data, calibrate it, predict image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from esupcon._console import Log, count
from esupcon.classifier.classifier import Classifier
from esupcon.classifier.folder import TrainingData, load_classifier, model_folder
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
_FITTED_ON = {
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
    calibrated_on: str | None
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
    if part not in get_args(Part):
        raise ValueError(f"part must be one of {', '.join(get_args(Part))}; got {part!r}.")
    classifier, dataset, record = _load(model, source, reading, log)
    if part == "auto":
        part = "test" if record is not None or not dataset.test_drawn else "all"
    predictions = _predictions(classifier, dataset, record, part)
    names, calibration = _class_names(classifier), classifier.calibration
    figures = [measure(predictions, names)]
    bins = [reliability_bins(predictions.probabilities(), predictions.labels)]
    if calibration.how != "none":
        bias = calibration.temperature * calibration.bias(classifier.n_classes)
        adjusted = Predictions(predictions.logits + bias, predictions.labels)
        figures.append(measure(adjusted, names, temperature=calibration.temperature))
        bins.append(reliability_bins(adjusted.probabilities(calibration.temperature), adjusted.labels))
    calibrated = figures[1] if len(figures) > 1 else None
    if plot is not None:
        reliability_diagram(
            *bins,
            interval=figures[0].ece_interval,
            after_interval=None if calibrated is None else calibrated.ece_interval,
            path=plot,
        )
    present = np.unique(predictions.labels)
    return Evaluation(
        model=str(model_folder(model)),
        data=dataset.name,
        part=part,
        uncalibrated=figures[0],
        calibrated=calibrated,
        calibrated_on=calibration.fitted_on,
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
    if on not in get_args(CalibrationPart):
        raise ValueError(f"on must be one of {', '.join(get_args(CalibrationPart))}; got {on!r}.")
    classifier, dataset, record = _load(model, source, reading, log)
    if on == "auto":
        on = "train" if record is None else "held-out"
    if on != "all" and len(dataset.y_test) < 2:
        raise ValueError(f"{source} has no test part to measure on. Pass on=all to fit and measure on everything.")
    if on == "train" and record is not None:
        log("The classifier was trained on these samples, where it is too confident; prefer on=held-out.")
    if on == "all":
        log("The temperature is fitted and measured on the same data: the figures are optimistic.")
    fitted_on = f"{_FITTED_ON[on]} of {dataset.name}"
    measured_on = f"{'the rest of ' * (on == 'test')}the test part of {dataset.name}" if on != "all" else fitted_on
    given = _predictions(classifier, dataset, record, on)
    if on == "test":
        figures = paper_calibration(given)
    else:
        test = given if on == "all" else _predictions(classifier, dataset, record, "test")
        figures = held_out_calibration(given, test)
    if figures.n_calibration < FEW_SAMPLES:
        n = count(figures.n_calibration, "sample")
        log(f"The temperature was fitted on {n} only and is uncertain; {FEW_SAMPLES} or more are better.")
    if plot is not None:
        calibration_diagram(figures, plot)
    before, after, replaced = figures.nll_before, figures.nll_after, classifier.calibration
    stored = after is not None and (before is None or after <= before)
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
) -> tuple[Classifier, Dataset, TrainingData | None]:
    """Return a classifier, the source at its image size, and how training divided it, if these are its training data.

    The model decides how data are divided and never where they are read: paths come from the caller only.
    """
    classifier = load_classifier(model)
    form = _image_form(classifier, model)
    fields: dict[str, Any] = {}
    record = None if classifier.about is None else classifier.about.data
    if record is not None:
        fields = {"split_seed": record.split_seed, "test_fraction": record.test_fraction}
        if record.name == os.fspath(source):  # n_per_class is the protocol of one named set
            fields["n_per_class"] = record.n_per_class
    fields |= {**(reading or {}), "image_size": form.image_size, "channels": form.channels}
    dataset = load(source, DataOptions(**fields), log=log)
    return classifier, dataset, record if record and record.fingerprint == dataset.fingerprint else None


def _image_form(classifier: Classifier, model: object) -> ImagePreprocessing:
    if not isinstance(classifier.preprocessing, ImagePreprocessing):
        raise ValueError(  # noqa: TRY004 - the model is of the wrong kind, not a Python type
            f"{model} classifies tables; this command takes classifiers of images. Use esupcon.load in Python."
        )
    return classifier.preprocessing


def _predictions(classifier: Classifier, dataset: Dataset, record: TrainingData | None, part: str) -> Predictions:
    """Return logits of a part, and labels as the classifier numbers its classes, matched by name."""
    x, labels = _part(dataset, record, part)
    if not len(labels):
        raise ValueError(f"the {part} part of {dataset.name} holds no samples. Pass another part.")
    place = {name: k for k, name in enumerate(_class_names(classifier))}
    unknown = [dataset.classes[k] for k in np.unique(labels) if dataset.classes[k] not in place]
    if unknown:
        raise ValueError(
            f"the classifier does not know {count(len(unknown), 'class')} of {dataset.name}, first "
            f"{unknown[0]!r}; it knows {', '.join(map(repr, [*place][:5]))}{', ...' if len(place) > 5 else ''}. "
            "Rename or remove them: classes are matched by name."
        )
    column = np.array([place.get(name, -1) for name in dataset.classes], np.int64)
    return Predictions(classifier.array(x, "logits"), column[labels])


def _part(dataset: Dataset, record: TrainingData | None, part: str) -> tuple[Rows, NDArray[np.int64]]:
    """Return a part of a data set; the held-out one is drawn again as the model records it, wrong labels included."""
    if part == "all":
        x = np.concatenate([np.asarray(dataset.x_train), np.asarray(dataset.x_test)])
        return x, np.concatenate([dataset.y_train, dataset.y_test])
    if part != "held-out":
        return (dataset.x_test, dataset.y_test) if part == "test" else (dataset.x_train, dataset.y_train)
    if record is None or not record.validation_fraction:
        reason = f"was not trained on {dataset.name}" if record is None else "was trained with nothing held out"
        remedy = "on=train" if record is None else "on=test, or train with validation_fraction=0.1"
        raise ValueError(f"the classifier {reason}, so it has no held-out part of it. Use {remedy}.")
    scenario = Scenario(
        n_train=record.n_train,
        imbalance_rate=record.imbalance_rate,
        noise_rate=record.noise_rate,
        noise_kind=record.noise_kind,
        seed=record.scenario_seed,
    )
    prepared = prepare(dataset, scenario, record.validation_fraction, record.validation_seed)
    return take_rows(dataset.x_train, prepared.held), prepared.y_held


def _class_names(classifier: Classifier) -> tuple[str, ...]:
    return tuple(str(label) for label in classifier.classes_.tolist())


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
    form, names = _image_form(classifier, "this model"), _class_names(classifier)
    if not 1 <= top_k <= len(names):
        raise ValueError(f"top_k must be from 1 to the {len(names)} classes of the model; got {top_k}.")

    def predictions() -> Iterator[Prediction]:
        files = _files(paths, unreadable)
        for batch in load_images(files, form.image_size, form.channels, batch_size=BATCH, workers=workers):
            for path, reason in batch.skipped:
                unreadable(str(path), reason)
            if not batch.paths:
                continue
            probabilities = classifier.calibration.probabilities(classifier.array(batch.images, "logits"))
            for path, row in zip(batch.paths, probabilities, strict=True):
                best = np.argsort(-row, kind="stable")[:top_k]  # stable: among equals the first class, as with argmax
                yield Prediction(path, tuple((names[k], float(row[k])) for k in best))

    return predictions()


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
