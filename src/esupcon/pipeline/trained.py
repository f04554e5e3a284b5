"""Write the classifier of a run; to be part of training/pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from esupcon.classifier import MODEL_FOLDER
from esupcon.classifier.classifier import Classifier
from esupcon.classifier.folder import ModelInfo, TrainingData
from esupcon.models import resolve_encoder
from esupcon.probability import Calibration
from esupcon.training import Fitted

__all__ = ["MODEL_FOLDER", "save_trained"]

#: Values of training embeddings that the model of a run stores: 32 MB.
MAX_EXAMPLE_VALUES = 2**23


def save_trained(folder: Path, fitted: Fitted, outcome: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Save the classifier of a run with the record of the run; replace one that is there."""
    spec, data, preparation = fitted.spec, fitted.data, outcome["preparation"]
    scenario = dict(preparation["scenario"]["settings"])
    about = ModelInfo(
        encoder=resolve_encoder(spec.encoder, data.preprocessing.input_shape),
        method=spec.method,
        settings={**spec.model_dump(), "precision": outcome["precision"], "key": outcome["key"]},
        data=TrainingData(
            name=Path(outcome["data"]["name"]).name,
            fingerprint=outcome["data"]["fingerprint"],
            **outcome["data"]["options"],
            scenario_seed=scenario.pop("seed"),
            **scenario,
            validation_fraction=preparation["validation_fraction"],
            validation_seed=preparation["validation_seed"],
        ),
        metrics={part: _headline(figures) for part, figures in outcome["metrics"].items() if figures is not None},
        versions=provenance["versions"],
    )
    counts = np.bincount(data.y, minlength=data.n_classes)
    calibration = Calibration(class_counts=tuple(counts.tolist()), balanced=spec.class_weight == "balanced")
    classifier = Classifier(
        fitted.network, data.preprocessing, outcome["data"]["classes"], calibration=calibration, about=about
    )
    classifier.remember(data.x, data.y, most_values=MAX_EXAMPLE_VALUES)
    classifier.save(folder, overwrite=True)


def _headline(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: figures[name] for name in ("n", "accuracy", "ece", "nll", "brier")}
