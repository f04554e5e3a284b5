"""What the commands do with a trained classifier: measure it on labelled data, calibrate it, predict image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from esupcon._console import Log, check_choice, count
from esupcon.classifier.classifier import Classifier
from esupcon.classifier.folder import TrainingData, load_classifier, model_folder
from esupcon.classifier.preprocessing import ImagePreprocessing, Rows
from esupcon.data import DataOptions, Dataset, load, load_images
from esupcon.data.dataset import take_rows
from esupcon.data.folders import image_files_below
from esupcon.data.scenarios import Scenario, prepare
from esupcon.probability import (
    Calibration,
    CalibrationFigures,
    Figures,
    Predictions,
    SharesFigures,
    held_out_calibration,
    measure,
    measure_for_shares,
    paper_calibration,
    reliability_bins,
    reliability_diagram,
)
from esupcon.probability.calibration import FEW_SAMPLES
from esupcon.probability.metrics import Record

Part = Literal["auto", "test", "train", "all"]
CalibrationPart = Literal["auto", "held-out", "train", "test", "all"]
_FITTED_ON = {
    "held-out": "the held-out part of the training data",
    "train": "the train part",
    "test": "a stratified fifth of the test part",
    "all": "all",
}
#: How many times as frequent as the rarest class the most frequent one may be, to be called balanced.
UNEQUAL = 2
#: Image files that are decoded and predicted at a time.
BATCH = 128


class Evaluation(Record):
    """Metrics of a model on a part of a data set; `calibrated` is None if the model is not calibrated.

    `priors` are the class shares that the model predicts for, None: those that training gave. `by_shares` has metrics
    for equal class shares and for those of the training samples if these differ by more than a factor of 2; they say
    what the model would do if it predicted for these shares, on data that have them (see `measure_for_shares`).
    """

    model: str
    data: str
    part: str
    uncalibrated: Figures
    calibrated: Figures | None
    calibrated_on: str | None
    classes_without_samples: tuple[str, ...]
    priors: dict[str, float] | None = None
    by_shares: dict[str, SharesFigures] = Field(default_factory=dict)


class CalibrationOutcome(Record):
    """The temperature fitted by `calibrate` and what it changes. `stored` is False if it made probabilities worse."""

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
    check_choice("part", part, get_args(Part))
    data = _LabelledData.load(model, source, reading, log)
    if part == "auto":
        part = "test" if data.record is not None or not data.dataset.test_drawn else "all"
    given, names, calibration = data.predictions(part), data.names, data.classifier.calibration
    corrected, priors = calibration.corrected(given), calibration.target_priors
    temperatures = [1.0, *([] if calibration.how == "none" else [calibration.temperature])]
    figures = [measure(corrected, names, temperature=temperature) for temperature in temperatures]
    if plot is not None:
        bins = [reliability_bins(corrected.probabilities(temperature), given.labels) for temperature in temperatures]
        reliability_diagram(*bins, path=plot)
    present = np.unique(given.labels)
    return Evaluation(
        model=str(model_folder(model)),
        data=data.dataset.name,
        part=part,
        uncalibrated=figures[0],
        calibrated=figures[1] if len(figures) > 1 else None,
        calibrated_on=calibration.fitted_on,
        classes_without_samples=tuple(name for k, name in enumerate(names) if k not in present),
        priors=None if priors is None else dict(zip(names, priors, strict=True)),
        by_shares=_by_shares(calibration, given),
    )


def _by_shares(calibration: Calibration, given: Predictions) -> dict[str, SharesFigures]:
    """Return the metrics for equal class shares and for those of the training samples, if they are far from equal."""
    shares = calibration.sample_priors
    if shares is None or shares.max() <= UNEQUAL * shares[shares > 0].min():
        return {}
    found = {}
    for name, target in (("balanced", (shares > 0) / (shares > 0).sum()), ("training", shares)):
        p = calibration.with_priors(target).probabilities(given.logits)
        found[name] = measure_for_shares(p, given.labels, target)
    return found


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

    A temperature that makes the log likelihood worse is not stored. One that is stored replaces the one before. It is
    fitted and measured for the class shares of the training samples, and holds for any other priors of the model.
    """
    check_choice("on", on, get_args(CalibrationPart))
    data = _LabelledData.load(model, source, reading, log)
    name, classifier = data.dataset.name, data.classifier
    if on == "auto":
        on = "train" if data.record is None else "held-out"
    if on != "all" and len(data.dataset.y_test) < 2:
        raise ValueError(f"{source} has no test part to measure on. Pass on=all to fit and measure on everything.")
    if on == "train" and data.record is not None:
        log("The classifier was trained on these samples, where it is too confident; prefer on=held-out.")
    if on == "all":
        log("The temperature is fitted and measured on the same data: the figures are optimistic.")
    fitted_on = f"{_FITTED_ON[on]} of {name}"
    measured_on = fitted_on if on == "all" else f"{'the rest of ' * (on == 'test')}the test part of {name}"
    given, offset = data.predictions(on), classifier.calibration.offset
    if on == "test":
        figures = paper_calibration(given, offset=offset)
    else:
        figures = held_out_calibration(given, given if on == "all" else data.predictions("test"), offset=offset)
    if figures.n_calibration < FEW_SAMPLES:
        n = count(figures.n_calibration, "sample")
        log(f"The temperature was fitted on {n} only and is uncertain; {FEW_SAMPLES} or more are better.")
    if plot is not None:
        reliability_diagram(figures.bins_before, figures.bins_after, path=plot)
    before, after, replaced = figures.nll_before, figures.nll_after, classifier.calibration
    stored = after is not None and (before is None or after <= before)
    if stored:
        if replaced.how != "none":
            found_on = f"({replaced.how}, {count(replaced.n, 'sample')})"
            log(f"Replacing the temperature {replaced.temperature:.3g} {found_on} by {figures.temperature:.3g}.")
        how = "held-out" if on == "held-out" else "given"
        fitted = {"temperature": figures.temperature, "how": how, "n": figures.n_calibration}
        classifier.calibration = replaced.model_copy(update=fitted)
        if on != "train" or data.record is None:  # samples that were trained on are no measure of outliers
            classifier.set_outlier_threshold(data.part(on)[0])
        classifier.save(model_folder(model), overwrite=True)
    else:
        log(
            f"Not stored: on {measured_on} the temperature {figures.temperature:.3g} makes the log likelihood worse. "
            "Fit it on more samples."
        )
    return CalibrationOutcome(
        model=str(model_folder(model)),
        data=name,
        fitted_on=fitted_on,
        measured_on=measured_on,
        figures=figures,
        stored=stored,
    )


@dataclass(frozen=True)
class _LabelledData:
    """A classifier, a source at its image size, and how training divided it, if these are its training data."""

    classifier: Classifier
    dataset: Dataset
    record: TrainingData | None

    @classmethod
    def load(
        cls, model: str | os.PathLike[str], source: str | os.PathLike[str], reading: Mapping[str, Any] | None, log: Log
    ) -> _LabelledData:
        """Load both. The model decides how data are divided and never where they are read: the caller names them."""
        classifier = load_classifier(model)
        form = _image_form(classifier, model)
        record = None if classifier.about is None else classifier.about.data
        given = {**(reading or {}), "image_size": form.image_size, "channels": form.channels}
        split = record.model_dump(include={"split_seed", "test_fraction", "n_per_class"}) if record else {}
        dataset = load(source, DataOptions(**{**split, **given}), log=log, lenient=split.keys() - given.keys())
        return cls(classifier, dataset, record if record and record.fingerprint == dataset.fingerprint else None)

    @property
    def names(self) -> list[str]:
        return _class_names(self.classifier)

    def predictions(self, part: str) -> Predictions:
        """Return logits of a part, and labels as the classifier numbers its classes, matched by name."""
        (x, labels), classes, place = self.part(part), self.dataset.classes, {n: k for k, n in enumerate(self.names)}
        if not len(labels):
            raise ValueError(f"the {part} part of {self.dataset.name} holds no samples. Pass another part.")
        unknown = [classes[k] for k in np.unique(labels) if classes[k] not in place]
        if unknown:
            raise ValueError(
                f"the classifier does not know {count(len(unknown), 'class')} of {self.dataset.name}, first "
                f"{unknown[0]!r}; it knows {', '.join(map(repr, [*place][:5]))}{', ...' if len(place) > 5 else ''}. "
                "Rename or remove them: classes are matched by name."
            )
        column = np.array([place.get(name, -1) for name in classes], np.int64)
        return Predictions(self.classifier.arrays(x, "logits")[0], column[labels])

    def part(self, part: str) -> tuple[Rows, NDArray[np.int64]]:
        """Return a part of the data; the held-out one is drawn again as the model records it, wrong labels included."""
        dataset, record = self.dataset, self.record
        if part == "all":
            x = np.concatenate([np.asarray(dataset.x_train), np.asarray(dataset.x_test)])
            return x, np.concatenate([dataset.y_train, dataset.y_test])
        if part != "held-out":
            return (dataset.x_test, dataset.y_test) if part == "test" else (dataset.x_train, dataset.y_train)
        if record is None or not record.validation_fraction:
            reason = f"was not trained on {dataset.name}" if record is None else "was trained with nothing held out"
            remedy = "on=train" if record is None else "on=test, or train with validation_fraction=0.1"
            raise ValueError(f"the classifier {reason}, so it has no held-out part of it. Use {remedy}.")
        drawn = record.model_dump(include={"n_train", "imbalance_rate", "noise_rate", "noise_kind", "seed"})
        prepared = prepare(dataset, Scenario(**drawn), record.validation_fraction, record.seed)
        return take_rows(dataset.x_train, prepared.held), prepared.y_held


def _image_form(classifier: Classifier, model: object) -> ImagePreprocessing:
    if not isinstance(classifier.preprocessing, ImagePreprocessing):
        raise ValueError(  # noqa: TRY004 - the model is of the wrong kind, not a Python type
            f"{model} classifies tables; this command takes classifiers of images. Use esupcon.load in Python."
        )
    return classifier.preprocessing


def _class_names(classifier: Classifier) -> list[str]:
    return [str(label) for label in classifier.classes_.tolist()]


# --- Image files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """The classes of one image file: `ranked` holds (label, probability), the most probable first.

    `outlier_score` is that of `Classifier.ood_score`, None if the classifier has nothing to compare with; `is_outlier`
    if it is above the threshold that calibration found.
    """

    path: str
    ranked: tuple[tuple[str, float], ...]
    outlier_score: float | None = None
    is_outlier: bool = False


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

    threshold = classifier.calibration.outlier_threshold

    def predictions() -> Iterator[Prediction]:
        files = _files(paths, unreadable)
        for batch in load_images(files, form.image_size, form.channels, batch_size=BATCH, workers=workers):
            for path, reason in batch.skipped:
                unreadable(str(path), reason)
            if not batch.paths:
                continue
            scores, logits = classifier.scores_and_logits(batch.images)
            for path, row, score in zip(batch.paths, classifier.probabilities(logits), scores, strict=True):
                best = np.argsort(-row, kind="stable")[:top_k]  # stable: among equals the first class, as with argmax
                ranked = tuple((names[k], float(row[k])) for k in best)
                is_outlier = threshold is not None and score > threshold
                yield Prediction(path, ranked, None if np.isnan(score) else float(score), bool(is_outlier))

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
