"""A trained classifier as the commands use it: from a run into its folder, and from the folder to logits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.artifact import ArtifactConfig, Classifier, ImagePreprocessing, load_artifact, save_artifact
from esupcon.artifact.folder import surviving
from esupcon.methods import get_method
from esupcon.models import resolve_encoder
from esupcon.training import Fitted

MODEL_FOLDER = "model"


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A classifier of images with the folder it lies in and the record of its training, where it has one."""

    path: Path
    classifier: Classifier

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(label) for label in self.classifier.config.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.classifier.config.input_shape
        return channels, height, width

    @property
    def calibration_temperature(self) -> float | None:
        return self.classifier.config.calibration_temperature

    @property
    def training(self) -> dict[str, Any]:
        return dict(self.classifier.config.training)

    def was_trained_on(self, fingerprint: str) -> bool:
        return self.classifier.config.data_fingerprint == fingerprint

    def data_options(self, source: str | os.PathLike[str]) -> dict[str, Any]:
        """How the training data were divided, as far as it can be said of this source too."""
        data = self.training.get("data", {})
        options = dict(data.get("options", {}))
        if data.get("name") != os.fspath(source):
            options.pop("n_per_class", None)  # a protocol of one named set
        return options

    def logits(self, x: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.classifier.logits(x).astype(np.float64)

    def probabilities(self, x: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Calibrated, where the classifier is."""
        return self.classifier.predict_proba(x)

    def store_calibration(self, temperature: float) -> None:
        self.classifier.set_calibration(temperature).save(self.path, overwrite=True)


def load_trained(path: str | os.PathLike[str]) -> TrainedModel:
    """The classifier in a folder: its own, or that of the run it came from."""
    folder = Path(path)
    if surviving(folder / MODEL_FOLDER).is_dir() and not (folder / "config.json").exists():
        folder = folder / MODEL_FOLDER
    classifier = load_artifact(folder)
    if len(classifier.config.input_shape) != 3:
        raise ValueError(f"{folder} classifies tables; this command takes classifiers of images. Use esupcon.load.")
    return TrainedModel(folder, classifier)


def save_trained(folder: Path, fitted: Fitted, outcome: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Write the classifier of a run, with the run's record; one that is there is replaced."""
    method, spec, data = get_method(fitted.spec.method), fitted.spec, fitted.data
    seen = data.preprocessing
    assert seen.kind == "image"
    config = ArtifactConfig(
        encoder=resolve_encoder(spec.encoder, seen.input_shape),
        input_shape=seen.input_shape,
        classes=tuple(outcome["data"]["classes"]),
        head=method.head,
        temperature=spec.temperature if method.head == "prototype" else None,
        projection_dim=spec.projection_dim if method.projector else None,
        preprocessing=ImagePreprocessing(
            channels=seen.channels, image_size=seen.image_size, mean=seen.mean, std=seen.std
        ),
        method=method.key,
        training={name: outcome[name] for name in ("key", "spec", "precision", "batch_size", "data", "preparation")},
        metrics={part: _headline(figures) for part, figures in outcome["metrics"].items() if figures is not None},
        versions=provenance["versions"],
        data_fingerprint=outcome["data"]["fingerprint"],
    )
    save_artifact(folder, fitted.network, config, overwrite=True)


def _headline(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: figures[name] for name in ("n", "accuracy", "ece", "nll", "brier")}
