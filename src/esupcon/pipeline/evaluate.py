"""A trained classifier on labelled data: how good it is, and how far its probabilities can be trusted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from esupcon.data import Dataset
from esupcon.data.scenarios import Scenario
from esupcon.pipeline.measures import N_BINS, measure
from esupcon.pipeline.prepare import DataOptions, Log, has_drawn_test_part, prepare
from esupcon.pipeline.trained import TrainedModel, load_trained
from esupcon.probability import (
    CalibrationFigures,
    Predictions,
    bootstrap_intervals,
    calibration_diagram,
    held_out_calibration,
    paper_calibration,
    reliability_bins,
    reliability_diagram,
)

Part = Literal["auto", "test", "train", "all"]
CalibrationPart = Literal["auto", "held-out", "train", "test", "all"]
PARTS: tuple[Part, ...] = get_args(Part)
CALIBRATION_PARTS: tuple[CalibrationPart, ...] = get_args(CalibrationPart)


@dataclass(frozen=True)
class Evaluation:
    """`before` at temperature 1; `after` at the stored calibration temperature, None where none is stored."""

    model: Path
    data: str
    part: str
    before: dict[str, Any]
    after: dict[str, Any] | None
    classes_without_samples: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": str(self.model),
            "data": self.data,
            "part": self.part,
            "uncalibrated": self.before,
            "calibrated": self.after,
            "classes_without_samples": list(self.classes_without_samples),
        }


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` did: the samples that the temperature was fitted on and measured on, and what it changed."""

    model: Path
    data: str
    fitted_on: str
    measured_on: str
    report: CalibrationFigures

    def as_dict(self) -> dict[str, Any]:
        report = self.report
        return {
            "model": str(self.model),
            "data": self.data,
            "fitted_on": self.fitted_on,
            "measured_on": self.measured_on,
            "temperature": report.temperature,
            "n_calibration": report.n_calibration,
            "n_evaluation": report.n_evaluation,
            "ece_before": report.ece_before,
            "ece_before_interval": list(report.ece_before_interval),
            "ece_after": report.ece_after,
            "ece_after_interval": list(report.ece_after_interval),
            "nll_before": report.nll_before,
            "nll_after": report.nll_after,
        }


def evaluate(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    part: Part = "auto",
    reading: Mapping[str, Any] | None = None,
    plot: str | os.PathLike[str] | None = None,
    log: Log = lambda line: None,
) -> Evaluation:
    """Figures of a classifier on the labelled data of a source.

    part: "test", "train" or "all" of it. "auto": the test part, where the source has one of its own or is what the
        classifier was trained on; else everything.
    reading: fields of `DataOptions` that differ from how the classifier's training data were read.
    plot: a file for the reliability diagram, .png, .svg or .pdf.
    """
    _check_choice("part", part, PARTS)
    trained = load_trained(model)
    dataset = _load(trained, source, reading or {}, log)
    x, y, words = _part(trained, dataset, part)
    predictions = Predictions(trained.logits(x), _translated(y, dataset.classes, trained.classes, source))
    temperature = trained.calibration_temperature
    before = measure(predictions, trained.classes)
    after = None if temperature is None else measure(predictions, trained.classes, temperature=temperature)
    if plot is not None:
        _plot(predictions, temperature, plot)
    absent = tuple(row["class"] for row in before["per_class"] if row["n"] == 0)
    return Evaluation(trained.path, dataset.name, words, before, after, absent)


def calibrate(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    on: CalibrationPart = "auto",
    reading: Mapping[str, Any] | None = None,
    plot: str | os.PathLike[str] | None = None,
    log: Log = lambda line: None,
) -> Calibration:
    """Fit the calibration temperature on a part of the source, measure it elsewhere, and store it in the model.

    on: "held-out", what training kept aside of its data, measured on the test part; "train", measured on the test
        part; "test", the published protocol: fitted on a stratified fifth of the test part, measured on the rest;
        "all", fitted and measured on everything. "auto": held-out for the data the classifier was trained on, else
        train, which is new to it.
    """
    _check_choice("on", on, CALIBRATION_PARTS)
    trained = load_trained(model)
    dataset = _load(trained, source, reading or {}, log)
    chosen = on
    if chosen == "auto":
        chosen = "held-out" if trained.was_trained_on(dataset.fingerprint) else "train"

    def predictions(x: NDArray[np.uint8], y: NDArray[np.int64]) -> Predictions:
        return Predictions(trained.logits(x), _translated(y, dataset.classes, trained.classes, source))

    test = f"the test part of {dataset.name}"
    if chosen in ("held-out", "train", "test") and len(dataset.y_test) < 2:
        raise ValueError(f"{source} has no test part to measure on. Pass --on all to fit and measure on everything.")
    if chosen == "test":
        report = paper_calibration(predictions(dataset.x_test, dataset.y_test))
        fitted_on, measured_on = f"a stratified fifth of {test}", f"the rest of {test}"
    elif chosen == "all":
        everything = predictions(*_everything(dataset))
        report = held_out_calibration(everything, everything)
        fitted_on = measured_on = f"all of {dataset.name}"
        log("The temperature is measured on the samples it was fitted on: its figures flatter it a little.")
    else:
        x, y = _held_out(trained, dataset) if chosen == "held-out" else (dataset.x_train, dataset.y_train)
        if chosen == "train" and trained.was_trained_on(dataset.fingerprint):
            log("The classifier was trained on these samples, where it is surer than elsewhere; prefer --on held-out.")
        report = held_out_calibration(predictions(x, y), predictions(dataset.x_test, dataset.y_test))
        fitted_on = f"the {'held-out part of the training data' if chosen == 'held-out' else 'train part'} of " + (
            dataset.name
        )
        measured_on = test
    if plot is not None:
        calibration_diagram(report, plot)
    trained.store_calibration(report.temperature)
    return Calibration(trained.path, dataset.name, fitted_on, measured_on, report)


def _load(trained: TrainedModel, source: str | os.PathLike[str], reading: Mapping[str, Any], log: Log) -> Dataset:
    """The source in the form the classifier takes, divided as it was for training unless told otherwise."""
    channels, height, width = trained.image_shape
    options = {**trained.data_options(source), **reading, "image_size": (height, width), "channels": channels}
    return DataOptions(**options).load(source, log)


def _part(trained: TrainedModel, dataset: Dataset, part: Part) -> tuple[NDArray[np.uint8], NDArray[np.int64], str]:
    if part == "auto":
        same = trained.was_trained_on(dataset.fingerprint)
        part = "test" if same or not has_drawn_test_part(dataset) else "all"
    x, y = {
        "test": lambda: (dataset.x_test, dataset.y_test),
        "train": lambda: (dataset.x_train, dataset.y_train),
        "all": lambda: _everything(dataset),
    }[part]()
    if not len(y):
        raise ValueError(f"the {part} part of {dataset.name} holds no samples. Pass another part.")
    return x, y, part


def _everything(dataset: Dataset) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return np.concatenate([dataset.x_train, dataset.x_test]), np.concatenate([dataset.y_train, dataset.y_test])


def _held_out(trained: TrainedModel, dataset: Dataset) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """What training held out, drawn again as its record says, wrong labels included."""
    if not trained.was_trained_on(dataset.fingerprint):
        raise ValueError(
            f"{trained.path} was not trained on {dataset.name}, so nothing of it was held out. Use --on train."
        )
    record = trained.training["preparation"]
    again = prepare(
        dataset, Scenario(**record["scenario"]["settings"]), record["validation_fraction"], record["validation_seed"]
    )
    if again.record != record or not len(again.y_held):
        raise ValueError(
            f"{trained.path} was trained with nothing held out. Train with --validation-fraction 0.1, or pass "
            "--on test to spend a fifth of the test part on the temperature."
        )
    return again.x_held, again.y_held


def _translated(
    labels: NDArray[np.int64], data_classes: Sequence[str], model_classes: Sequence[str], source: object
) -> NDArray[np.int64]:
    """Labels as the classifier numbers its classes, matched by name."""
    place = {name: k for k, name in enumerate(model_classes)}
    unknown = [data_classes[k] for k in np.unique(labels) if data_classes[k] not in place]
    if unknown:
        raise ValueError(
            f"the classifier does not know {len(unknown)} of the classes in {source}, {unknown[0]!r} the first; it "
            f"knows {', '.join(map(repr, model_classes[:5]))}{', ...' if len(model_classes) > 5 else ''}. "
            "Rename or remove them: classes are matched by name."
        )
    table = np.array([place.get(name, -1) for name in data_classes], np.int64)
    translated: NDArray[np.int64] = table[labels]
    return translated


def _plot(predictions: Predictions, temperature: float | None, path: str | os.PathLike[str]) -> None:
    sides: list[Any] = []
    for one in (1.0,) if temperature is None else (1.0, temperature):
        p = predictions.probabilities(one)
        sides.append(reliability_bins(p, predictions.labels, N_BINS))
        sides.append(bootstrap_intervals(p, predictions.labels, n_bins=N_BINS)["ece"].bounds)
    after, after_interval = (None, None) if temperature is None else sides[2:]
    reliability_diagram(sides[0], after, interval=sides[1], after_interval=after_interval, path=path)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
