"""An estimator as a folder: the model of `esupcon.artifact`, and beside it what was remembered of training."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from esupcon.artifact import ArtifactConfig, Classifier, ImagePreprocessing, TablePreprocessing, save_artifact
from esupcon.artifact.config import CUSTOM, in_one_line
from esupcon.artifact.folder import CONFIG, WEIGHTS, read_artifact, surviving
from esupcon.engine import TrainSpec
from esupcon.estimator.inputs import Form, ImageForm, TableForm
from esupcon.estimator.insight import Examples
from esupcon.estimator.labels import class_array
from esupcon.estimator.priors import given_priors, set_priors
from esupcon.files import write_bytes
from esupcon.heads import PrototypeHead

if TYPE_CHECKING:
    from esupcon.estimator.classifier import ContrastiveClassifier

__all__ = ["load", "save_estimator"]

EXAMPLES = "examples.safetensors"
#: Where in the config's record of training the estimator keeps what only it needs.
RECORD = "estimator"


def load(path: str | os.PathLike[str], *, encoder: nn.Module | None = None) -> ContrastiveClassifier | Classifier:
    """A trained classifier from the folder it was saved to, or from the folder of a run.

    What `ContrastiveClassifier.save` wrote comes back as a fitted `ContrastiveClassifier`, what `esupcon train` wrote
    as a `Classifier`; both have `predict`, `predict_proba`, `transform`, `classes_` and `prototypes_`. Nothing in the
    folder is executed. `encoder` is needed where the model was trained with a module of your own: the same module.
    """
    folder = surviving(Path(path))
    inner = surviving(folder / "model")
    if not (folder / CONFIG).is_file() and (inner / CONFIG).is_file():
        folder = inner
    network, config = read_artifact(folder, encoder=encoder)
    record = config.training.get(RECORD)
    if record is None:
        return Classifier(network, config)
    try:
        return _restored(network, config, record, folder, encoder)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{folder / CONFIG} cannot be used: what it says of the estimator is not understood ({reason}). "
            "Save the classifier again."
        ) from error


def save_estimator(
    estimator: ContrastiveClassifier, path: str | os.PathLike[str], *, overwrite: bool, examples: bool
) -> Path:
    target = Path(path)
    config = _config(estimator)
    if overwrite and (target / WEIGHTS).is_file():
        # It belongs to the model that is about to go: without it that one still predicts.
        (target / EXAMPLES).unlink(missing_ok=True)
    folder = save_artifact(target, estimator.network_, config, overwrite=overwrite)
    if examples and estimator.examples_ is not None:
        tensors = {
            "embedding": torch.from_numpy(estimator.examples_.embedding),
            "codes": torch.from_numpy(estimator.examples_.codes),
        }
        arrays = (estimator.examples_.embedding, estimator.examples_.codes)
        metadata = {"model": _digest(folder / WEIGHTS), "content": _digest_of_arrays(*arrays)}
        metadata["marks"] = _digest_of_marks(metadata)
        # One text: the library writes several in random order, and equal models should be equal files.
        write_bytes(folder / EXAMPLES, to_bytes(tensors, metadata={"esupcon": json.dumps(metadata)}))
    return folder


def _config(estimator: ContrastiveClassifier) -> ArtifactConfig:
    form, spec, head = estimator.form_, estimator.spec_, estimator.network_.head
    custom = isinstance(estimator.encoder, nn.Module)
    projector = estimator.network_.projector
    try:
        return ArtifactConfig(
            encoder=CUSTOM if custom else spec.encoder,
            input_shape=form.input_shape,
            classes=tuple(estimator.classes_.tolist()),
            head="prototype" if isinstance(head, PrototypeHead) else "linear",
            temperature=spec.temperature,
            projection_dim=None if projector is None else projector.out_dim,
            preprocessing=_preprocessing(form, estimator),
            method=spec.method,
            training={**spec.model_dump(), "epochs_trained": estimator.n_iter_, RECORD: _record(estimator)},
            calibration_temperature=None if estimator.calibration_ == "none" else estimator.calibration_temperature_,
        )
    except ValidationError as error:
        remedy = "Labels that can be saved are texts, numbers and truth values."
        raise ValueError(f"this classifier cannot be saved: {in_one_line(error)}. {remedy}") from error


def _preprocessing(form: Form, estimator: Any) -> ImagePreprocessing | TablePreprocessing:
    if isinstance(form, ImageForm):
        size = (form.height, form.width)
        assert form.channels in (1, 3)
        return ImagePreprocessing(channels=form.channels, image_size=size, mean=form.mean, std=form.std)  # type: ignore[arg-type]  # mypy does not narrow `in`
    names = getattr(estimator, "feature_names_in_", None)
    return TablePreprocessing(
        mean=tuple(form.centre.tolist()),
        scale=tuple(form.scale.tolist()),
        feature_names=None if names is None else tuple(names.tolist()),
    )


def _record(estimator: Any) -> dict[str, Any]:
    parameters = {name: value for name, value in estimator.get_params(deep=False).items() if _is_plain(value)}
    if isinstance(estimator.class_weight, Mapping):
        parameters["class_weight"] = [[label, float(w)] for label, w in estimator.class_weight.items()]
    form = estimator.form_
    kept = (
        {"low": form.low, "high": form.high}
        if isinstance(form, ImageForm)
        else {"mean": form.mean.tolist(), "variance": form.variance.tolist(), "n_seen": form.n_seen}
    )
    record = {
        "parameters": parameters,
        "form": kept,
        "calibration": estimator.calibration_,
        "class_weight": estimator.class_weight_.tolist(),
        "class_counts": estimator._class_counts.tolist(),
        "target_priors": None if estimator.target_priors_ is None else estimator.target_priors_.tolist(),
        "history": estimator.history_,
    }
    return json.loads(json.dumps(record))  # type: ignore[no-any-return]  # tuples become what JSON has


def _restored(
    network: Any, config: ArtifactConfig, record: Any, folder: Path, encoder: nn.Module | None
) -> ContrastiveClassifier:
    from esupcon.estimator.classifier import ContrastiveClassifier  # noqa: PLC0415 - the class saves by this module

    parameters = dict(record["parameters"])
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = dict(parameters["class_weight"])
    if isinstance(parameters.get("image_size"), list):
        parameters["image_size"] = tuple(parameters["image_size"])
    if encoder is not None:
        parameters["encoder"] = encoder
    estimator = ContrastiveClassifier(**parameters)
    estimator._validate_params()
    form = _form(config, record["form"], standardise=parameters.get("encoder") != "identity")
    table = isinstance(form, TableForm)
    estimator.form_ = form
    estimator.network_ = network.double() if table and config.encoder != CUSTOM else network
    estimator.classes_ = _classes(config)
    estimator.spec_ = TrainSpec.model_validate(
        {k: v for k, v in config.training.items() if k in TrainSpec.model_fields}
    )
    estimator.history_, estimator.findings_ = list(record["history"]), []
    estimator.n_iter_ = len(estimator.history_)
    estimator.calibration_ = str(record["calibration"])
    estimator.calibration_temperature_ = config.calibration_temperature or 1.0
    estimator.class_weight_ = _numbers(record["class_weight"], config.n_classes)
    set_priors(estimator, _numbers(record["class_counts"], config.n_classes).astype(np.int64))
    if record["target_priors"] is not None:
        estimator.target_priors_ = given_priors(record["target_priors"], estimator.classes_)
    if table:
        estimator.n_features_in_ = form.input_shape[0]
        names = config.preprocessing.feature_names if isinstance(config.preprocessing, TablePreprocessing) else None
        if names is not None:
            estimator.feature_names_in_ = np.array(names, dtype=object)
    estimator.examples_ = _read_examples(folder, config.n_classes, estimator._n_features_out)
    return estimator


def _form(config: ArtifactConfig, kept: Any, *, standardise: bool) -> Form:
    given = config.preprocessing
    if isinstance(given, ImagePreprocessing):
        return ImageForm(
            given.channels, *given.image_size, float(kept["low"]), float(kept["high"]), given.mean, given.std
        )
    d = len(given.mean)
    return TableForm(_numbers(kept["mean"], d), _numbers(kept["variance"], d), int(kept["n_seen"]), standardise)


def _classes(config: ArtifactConfig) -> NDArray[Any]:
    classes = class_array(config.classes)
    return classes.astype(str) if {type(label) for label in config.classes} == {str} else classes


def _numbers(values: Any, length: int) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    if array.shape != (length,) or not np.isfinite(array).all():
        raise ValueError(f"expected {length} finite numbers")
    return array


def _read_examples(folder: Path, n_classes: int, dim: int) -> Examples | None:
    """What was remembered of training; None where nothing was saved, or what there is belongs to another model."""
    file = folder / EXAMPLES
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="np") as opened:
            marks = dict(json.loads((opened.metadata() or {})["esupcon"]))
            digest_of_marks = _digest_of_marks(marks)
            embedding, codes = opened.get_tensor("embedding"), opened.get_tensor("codes")
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{EXAMPLES} is damaged: {error}") from error
    # Files of before the marks had a digest of their own are read, too.
    intact = marks.get("marks", digest_of_marks) == digest_of_marks
    if not intact or marks["content"] != _digest_of_arrays(embedding, codes):
        raise ValueError(f"{EXAMPLES} does not hold what was saved: its digest differs")
    if marks["model"] != _digest(folder / WEIGHTS):
        return None
    fits = embedding.ndim == 2 and embedding.shape[1] == dim and codes.shape == (len(embedding),)
    if not fits or embedding.dtype != np.float32 or codes.dtype != np.int64 or not np.isfinite(embedding).all():
        raise ValueError(f"{EXAMPLES} does not hold what it should")
    if len(codes) == 0 or codes.min() < 0 or codes.max() >= n_classes:
        raise ValueError(f"{EXAMPLES} holds labels of other classes")
    return Examples(embedding, codes)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple)


def _digest_of_arrays(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _digest_of_marks(marks: Mapping[str, Any]) -> str:
    """Of whose examples these are and what they are: else a changed digit would make them another model's."""
    return hashlib.sha256(f"{marks['model']} {marks['content']}".encode()).hexdigest()


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
