"""A classifier as a folder: a sealed config, weights, examples and a model card. Loading it executes nothing.

`config.json` is one pydantic model. It holds the SHA-256 of the other files, so that none of them can be changed or
swapped unnoticed. A folder is replaced by renaming, so that a killed writer leaves the old model or the new one.
"""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import jinja2
import numpy as np
import torch
from pydantic import Field, JsonValue, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import esupcon
from esupcon._console import markdown_text, printable
from esupcon._io import (
    OWNED,
    OwnedFolder,
    check_memory,
    first_error,
    read_sealed_json,
    refuse_link,
    write_bytes,
    write_sealed_json,
)
from esupcon.classifier import MODEL_FOLDER
from esupcon.classifier.classifier import Classifier, Examples
from esupcon.classifier.preprocessing import ImagePreprocessing, TablePreprocessing, Text
from esupcon.data.scenarios import NoiseKind
from esupcon.heads import PrototypeHead
from esupcon.methods import METHODS
from esupcon.models import Network, ProjectionHead, build_encoder, resolve_encoder
from esupcon.models.encoders import CustomEncoder, embedding_dim
from esupcon.models.network import NeckKind, build_head, build_neck, build_projector
from esupcon.probability import Calibration, Mahalanobis
from esupcon.probability.metrics import Record

CONFIG, WEIGHTS, EXAMPLES, CARD = "config.json", "model.safetensors", "examples.safetensors", "README.md"
FILES = (CONFIG, WEIGHTS, EXAMPLES, CARD)
#: The encoder of a model that was trained with a module of the user's, which must be passed again to load it.
CUSTOM = "custom"
SCHEMA = 3
#: Lists and objects inside each other in a config.
MAX_NESTING = 8
VERSIONS = {"esupcon": esupcon.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
#: Rows of a table on the model card; the config has the rest.
MAX_CARD_ROWS = 100
#: Bytes of memory per byte of a file of tensors, which are copied from it.
TENSOR_MEMORY = 2

_RESTORE = "Copy the folder again from where it was saved"


# --- The config ------------------------------------------------------------------------------------------------------

Label = bool | int | float | Annotated[str, Field(max_length=2**16)]  # of an exact type: none is converted
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**63)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]


class TrainingData(Record):
    """How the training data were divided, to draw the held-out part again. Whoever evaluates a model names the data."""

    name: Annotated[str, Field(max_length=200, pattern=r"^[^/\\\\\x00]*$")]  # not a path
    fingerprint: Digest
    split_seed: Seed = 0
    test_fraction: Fraction = 0.2
    n_per_class: Positive | None = None
    n_train: Positive | None = None
    imbalance_rate: Fraction | None = None
    noise_rate: Fraction | None = None
    noise_kind: NoiseKind = "shuffle"
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Seed = 0


class ModelInfo(Record):
    """Where a model comes from; `parameters` and `history` are those of a `ContrastiveClassifier`."""

    encoder: Annotated[str, Field(min_length=1, max_length=200)]  # a name for `build_encoder`, or "custom"
    method: Text
    settings: dict[Text, JsonValue] = Field(default_factory=dict)
    data: TrainingData | None = None
    metrics: dict[Text, JsonValue] = Field(default_factory=dict)
    versions: dict[Text, Text] = VERSIONS
    created: datetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    parameters: dict[Text, JsonValue] | None = None
    history: tuple[dict[Text, JsonValue], ...] = ()


class ModelConfig(Record):
    """Everything about a saved model but its tensors. Class labels keep their type; `files` are SHA-256 digests."""

    schema_version: Literal[3] = 3
    classes: Annotated[tuple[Label, ...], Field(min_length=2, max_length=2**20)]
    head: Literal["linear", "prototype"]
    temperature: Annotated[float, Field(gt=0)]
    projection_dim: Annotated[int, Field(ge=1, le=65_536)] | None
    neck: NeckKind = "none"
    mirror: bool = False
    preprocessing: Annotated[ImagePreprocessing | TablePreprocessing, Field(discriminator="kind")]
    calibration: Calibration
    about: ModelInfo
    files: dict[Literal["model.safetensors", "examples.safetensors"], Digest]

    @model_validator(mode="after")
    def _check(self) -> Self:
        # 1, 1.0 and True are one label to Python, and to whoever compares predictions.
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes: a class is duplicated")
        for name in ("class_counts", "class_weight", "target_priors"):
            values = getattr(self.calibration, name)
            if values is not None and len(values) != len(self.classes):
                raise ValueError(f"calibration.{name} has {len(values)} entries for {len(self.classes)} classes")
        if WEIGHTS not in self.files:
            raise ValueError(f"files: the digest of {WEIGHTS} is missing")
        return self


def _check_nesting(value: JsonValue, left: int = MAX_NESTING) -> None:
    """Raise ValueError if lists and objects are nested deeper than our own ever are."""
    if isinstance(value, dict | list):
        if not left:
            raise ValueError(f"lists and objects are nested more than {MAX_NESTING} deep")
        for part in value.values() if isinstance(value, dict) else value:
            _check_nesting(part, left - 1)


# --- Saving ----------------------------------------------------------------------------------------------------------


def save_classifier(
    classifier: Classifier, path: str | os.PathLike[str], *, overwrite: bool = False, examples: bool = True
) -> Path:
    """Write a classifier to a folder, which appears whole or not at all. Weights are stored as float32.

    With `overwrite`, a model that is there is replaced once the new one is complete; any other folder is refused.
    """
    target = Path(path).resolve()
    _check_replaceable(target, overwrite)
    tensors = _state(classifier.network)
    contents = {WEIGHTS: save(tensors)}
    if examples and (known := classifier.examples) is not None:
        arrays: dict[str, Any] = {"embedding": known.embedding, "codes": known.codes, "rows": known.rows}
        arrays["class_means"] = known.class_means
        if known.mahalanobis is not None:
            arrays |= {"means": known.mahalanobis.means, "whitening": known.mahalanobis.whitening}
        contents[EXAMPLES] = save({name: torch.tensor(value) for name, value in arrays.items()})
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    config = _config(classifier, tensors, digests)
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = f".{target.name}.{uuid.uuid4().hex[:8]}"
    new, old = target.with_name(f"{mark}.new"), target.with_name(f"{mark}.old")
    try:
        OwnedFolder(new, FILES).claim()
        for name, content in {**contents, CARD: model_card(config).encode()}.items():
            write_bytes(new / name, content)
        write_sealed_json(new / CONFIG, config.model_dump(mode="json"))
        _flush(new)
        _check_replaceable(target, overwrite)  # another process may have saved a model meanwhile
        if target.exists():  # a folder cannot be renamed onto one with files
            target.rename(old)
        new.rename(target)
        _flush(target.parent)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(new, ignore_errors=True)
    for replaced in _set_aside(target):
        shutil.rmtree(replaced, ignore_errors=True)
    return target


def _config(classifier: Classifier, tensors: Mapping[str, Tensor], files: dict[Any, str]) -> ModelConfig:
    """Return the config of a classifier; raise ValueError if it would not describe its network."""
    network = classifier.network
    head, projector = network.head, network.projector
    if classifier.about is None:
        raise ValueError("a classifier needs `about` to be saved: ModelInfo(encoder=..., method=...).")
    calibration = classifier.calibration
    if EXAMPLES not in files and calibration.outlier_score != "prototype":  # a threshold for a score that cannot be had
        calibration = calibration.model_copy(update={"outlier_score": None, "outlier_threshold": None})
    # By its own name: "auto" may mean another encoder in a later version.
    encoder = resolve_encoder(classifier.about.encoder, classifier.preprocessing.input_shape)
    try:
        config = ModelConfig(
            classes=tuple(classifier.classes_.tolist()),
            head="prototype" if isinstance(head, PrototypeHead) else "linear",
            temperature=head.temperature if isinstance(head, PrototypeHead) else 1.0,
            projection_dim=projector.out_dim if isinstance(projector, ProjectionHead) else None,
            neck="none" if network.neck is None else "norm" if len(network.neck) == 1 else "linear",
            mirror=network.mirror,
            preprocessing=classifier.preprocessing,
            calibration=calibration,
            about=classifier.about.model_copy(update={"encoder": encoder}),
            files=files,
        )
    except ValidationError as error:
        remedy = "Class labels must be text, numbers or booleans"
        raise ValueError(f"this classifier cannot be saved: {first_error(error)}. {remedy}.") from error
    _check_nesting(config.model_dump(mode="json"))
    if encoder != CUSTOM and (difference := _difference(tensors, _architecture(config, None, tensors))):
        raise ValueError(f"the network is not what encoder {encoder!r} builds: {difference}. Set about.encoder.")
    return config


def _state(network: Network) -> dict[str, Tensor]:
    """Return the tensors of a network on the CPU, floating-point ones as float32; raise if they cannot be stored."""
    tensors = {}
    for name, value in network.state_dict().items():
        if not isinstance(value, Tensor):  # extra state
            raise TypeError(f"the state of a model must be tensors; {name} is not one. Make it a buffer.")
        tensors[name] = value.detach().to("cpu", _stored_type(value)).contiguous().clone()
    _check_finite(tensors, network)
    return tensors


def _stored_type(value: Tensor) -> torch.dtype:
    return torch.float32 if value.is_floating_point() else value.dtype


def _check_replaceable(target: Path, overwrite: bool) -> None:
    if target.is_file():
        raise FileExistsError(f"a model is saved to a folder; {target} is a file. Choose another name.")
    present = sorted(path.name for path in target.iterdir()) if target.exists() else []
    others = [name for name in present if name not in (*FILES, OWNED)]
    if others or (present and not _is_model(target)):
        names = ", ".join(printable(name) for name in (others or present)[:5])
        lost = f"{target} holds files that are not a model of esupcon ({names}), which would be lost"
        raise FileExistsError(f"{lost}. Choose another folder.")
    if present and not overwrite:
        raise FileExistsError(f"{target} holds a model already. Choose another folder, or pass overwrite=True.")


def _is_model(folder: Path) -> bool:
    """Return whether we wrote this folder: it has our manifest, or a config with our seal."""
    try:
        return OwnedFolder(folder, ()).is_ours or "schema_version" in read_sealed_json(folder / CONFIG)
    except (OSError, ValueError):
        return False


def _flush(folder: Path) -> None:
    """Write the entries of a folder to disk. Windows cannot open folders, and does not need it."""
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- Loading ---------------------------------------------------------------------------------------------------------


def load_classifier(path: str | os.PathLike[str], *, encoder: nn.Module | None = None) -> Classifier:
    """Return the classifier that was saved to a folder, or that of a run from the folder of the run.

    A model that was trained with a module of your own needs it again as `encoder`, whose weights are replaced.
    """
    folder = _surviving(model_folder(path))
    config = _read_config(folder)
    custom = config.about.encoder == CUSTOM
    if custom and encoder is None:
        remedy = "Pass the same module: load(folder, encoder=module)"
        raise ValueError(f"{folder} was trained with an encoder of your own, whose code it does not hold. {remedy}.")
    if not custom and encoder is not None:
        raise ValueError(f"{folder} names its encoder, {config.about.encoder!r}. Load it without encoder=.")
    try:
        network = _read_network(folder, config, encoder)
        examples = _read_examples(folder, config, embedding_dim(network.encoder))
    except (ValueError, SafetensorError) as error:
        remedy = f". {_RESTORE}." if isinstance(error, SafetensorError) else ""
        raise ValueError(f"{folder} cannot be loaded: {printable(error)}{remedy}") from error
    if isinstance(config.preprocessing, TablePreprocessing) and not custom:
        network = network.double()  # so that the outputs of a row do not depend on the other rows of its batch
    return Classifier(
        network.eval(),
        config.preprocessing,
        config.classes,
        calibration=config.calibration,
        examples=examples,
        about=config.about,
    )


def model_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder where a model is, or after a killed replacement should be: `path`, or the model of that run."""
    folder, inner = Path(path), Path(path) / MODEL_FOLDER
    if (_surviving(folder) / CONFIG).is_file() or not (_surviving(inner) / CONFIG).is_file():
        return folder
    refuse_link(inner)  # a run from elsewhere must not make us write to another model
    return inner


def _surviving(folder: Path) -> Path:
    """Return `folder`, or the old model that a process moved aside before it was killed."""
    if folder.exists():
        return folder
    return max(_set_aside(folder), key=lambda path: path.stat().st_mtime_ns, default=folder)


def _set_aside(folder: Path) -> list[Path]:
    return list(folder.parent.glob(f".{glob.escape(folder.name)}.{'[0-9a-f]' * 8}.old"))


def _read_config(folder: Path) -> ModelConfig:
    file = folder / CONFIG
    if not file.is_file():
        remedy = "Pass the folder that a model was saved to"
        raise FileNotFoundError(f"no model at {folder}: {CONFIG} is missing. {remedy}.")
    values = read_sealed_json(file)
    if (version := values.get("schema_version")) != SCHEMA:
        remedy = "Load it with the esupcon that wrote it"
        raise ValueError(f"{file} has schema {version!r:.40}; expected {SCHEMA}. {remedy}.")
    try:
        _check_nesting(values)
        return ModelConfig.model_validate(values)
    except ValueError as error:
        reason = first_error(error) if isinstance(error, ValidationError) else error
        raise ValueError(f"{file} is not valid: {reason}. {_RESTORE}.") from error


def _read_tensors(folder: Path, name: str, config: ModelConfig) -> dict[str, Tensor]:
    """Return the tensors of a file of the model, after a check of its size and digest; safetensors checks the rest."""
    file = folder / name
    if not file.is_file():
        raise ValueError(f"{name} is missing. {_RESTORE}.")
    check_memory(TENSOR_MEMORY * file.stat().st_size, name)
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != config.files[name]:  # type: ignore[index]  # one of the two names
        raise ValueError(f"{name} is not the file that was saved with {CONFIG}: its digest differs. {_RESTORE}.")
    return {key: value.clone() for key, value in load(content).items()}  # cloned: aligned as torch aligns memory


def _read_network(folder: Path, config: ModelConfig, encoder: nn.Module | None) -> Network:
    """Return the stored network in float32."""
    tensors = _read_tensors(folder, WEIGHTS, config)
    network = _architecture(config, encoder, tensors)
    if difference := _difference(tensors, network):
        raise ValueError(f"{WEIGHTS} does not fit encoder {config.about.encoder!r}: {difference}. {_RESTORE}.")
    _check_finite(tensors, network)
    for part, module in network.named_children():
        state = {key.removeprefix(f"{part}."): value for key, value in tensors.items() if key.startswith(f"{part}.")}
        # Modules built without values take the stored tensors; a user's or library's module keeps its own, to which
        # others may refer.
        keeps = part == "encoder" and (encoder is not None or isinstance(module, CustomEncoder))
        module.load_state_dict(state, assign=not keeps)
    return network.float()


def _architecture(config: ModelConfig, encoder: nn.Module | None, stored: Mapping[str, Tensor]) -> Network:
    """Return the network that the config describes. Memory is allocated only for what the stored tensors confirm."""
    name, n_classes = config.about.encoder, len(config.classes)
    with torch.random.fork_rng(devices=[]):  # building a network must not advance the user's random state
        # A module of a library may compute values while it is built; ours only need their shapes.
        with nullcontext() if encoder is not None or name.startswith("timm:") else _without_values():
            spec = name if encoder is None else encoder
            built = build_encoder(spec, input_shape=config.preprocessing.input_shape, pretrained=False)
        expected = (n_classes, embedding_dim(built))
        found = tuple(stored["head.weight"].shape) if "head.weight" in stored else "none"
        if found != expected:
            raise ValueError(f"{n_classes} classes on {name!r} need a head.weight of shape {expected}; found {found}")
        head = build_head(config.head, dim=expected[1], n_classes=n_classes, temperature=config.temperature)
        with _without_values():
            projector = build_projector(dim=expected[1], projection_dim=config.projection_dim)
            neck = build_neck(config.neck, expected[1])
    return Network(built, head, projector, neck=neck, mirror=config.mirror)


class _SkipRandomness(TorchFunctionMode):
    """Skip drawing initial values, which are overwritten: drawing without memory imports a second of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **(kwargs or {}))


@contextmanager
def _without_values() -> Iterator[None]:
    """Build modules that have shapes and take no memory."""
    with torch.device("meta"), _SkipRandomness():
        yield


def _difference(found: Mapping[str, Tensor], network: Network) -> str:
    """Return the first stored tensor that is missing, unexpected or of another form; empty if all agree."""
    expected = network.state_dict()
    for name in sorted({*found, *expected}):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"unexpected tensor {printable(name):.100}"
        wanted = (tuple(expected[name].shape), _stored_type(expected[name]))
        if (form := (tuple(found[name].shape), found[name].dtype)) != wanted:
            return f"{name} should be {wanted} and is {form}"
    return ""


def _check_finite(tensors: Mapping[str, Tensor], network: Network) -> None:
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    for name, value in tensors.items():
        # A buffer may hold infinities, as the masks of attention do.
        if not value.isfinite().all() if name in parameters else value.isnan().any():
            raise ValueError(f"{name} holds NaN or infinity: training has diverged. Lower the learning rate.")


def _read_examples(folder: Path, config: ModelConfig, dim: int) -> Examples | None:
    if EXAMPLES not in config.files:
        return None
    arrays = {name: value.numpy() for name, value in _read_tensors(folder, EXAMPLES, config).items()}
    width = dim + (len(config.preprocessing.mean) if isinstance(config.preprocessing, TablePreprocessing) else 0)
    n, n_means, n_classes = (len(arrays.get(name, ())) for name in ("embedding", "means", "class_means"))
    expected = {"embedding": ("float32", (n, dim)), "codes": ("int64", (n,)), "rows": ("int64", (n,))}
    expected["class_means"] = ("float32", (n_classes, dim))
    if "means" in arrays:
        expected |= {"means": ("float64", (n_means, width)), "whitening": ("float64", (width, width))}
    valid = (
        min(n, n_classes) > 0 and {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == expected
    )
    if valid:
        codes, finite = arrays["codes"], all(np.isfinite(array).all() for array in arrays.values())
        valid = finite and min(codes.min(), arrays["rows"].min()) >= 0 and codes.max() < len(config.classes)
    if not valid:
        raise ValueError(f"{EXAMPLES} does not hold the examples of this model. {_RESTORE}.")
    mahalanobis = Mahalanobis(arrays["means"], arrays["whitening"]) if n_means else None
    return Examples(arrays["embedding"], arrays["codes"], arrays["rows"], arrays["class_means"], mahalanobis)


# --- The model card --------------------------------------------------------------------------------------------------


def model_card(config: ModelConfig) -> str:
    """Return the model card, Markdown for people; the program never reads it."""
    templates, undefined = jinja2.PackageLoader("esupcon.classifier", "."), jinja2.StrictUndefined
    environment = jinja2.Environment(loader=templates, trim_blocks=True, lstrip_blocks=True, undefined=undefined)
    environment.filters |= {"text": markdown_text, "cell": _cell}
    method = METHODS.get(config.about.method)
    return environment.get_template("card.md.jinja").render(
        config=config,
        about=config.about,
        classes=list(enumerate(config.classes)),
        method=f"{method.title}. {method.summary}" if method else config.about.method,
        settings=_flat(config.about.settings),
        metrics=_flat(config.about.metrics),
        shares=list(zip(config.classes, config.calibration.target_priors or (), strict=False)),
        max_rows=MAX_CARD_ROWS,
    )


def _flat(values: Mapping[str, JsonValue], prefix: str = "") -> list[tuple[str, JsonValue]]:
    """Return nested values as one list, such as ("optimiser.lr", 0.1) for {"optimiser": {"lr": 0.1}}."""
    rows: list[tuple[str, JsonValue]] = []
    for key, value in values.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return rows


def _cell(value: JsonValue) -> str:
    if isinstance(value, list) and len(value) > 20:
        return f"{len(value)} values"
    return markdown_text(f"{value:.6g}" if isinstance(value, float) else value)
