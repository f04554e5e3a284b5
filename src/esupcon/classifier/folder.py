"""A classifier as a folder: a sealed config, weights, examples and a model card. Loading it executes nothing.

`config.json` is one pydantic model, written and read by this module. It holds the SHA-256 of the other files, so that
none of them can be changed or swapped unnoticed. A folder is replaced by renaming, so that a killed writer leaves the
old model or the new one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import jinja2
import numpy as np
import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import esupcon
from esupcon._io import (
    OWNED,
    OwnedFolder,
    check_memory,
    file_digest,
    first_error,
    one_line,
    read_sealed_json,
    write_bytes,
    write_sealed_json,
)
from esupcon.classifier import MODEL_FOLDER
from esupcon.classifier.classifier import Classifier, Examples
from esupcon.classifier.preprocessing import ImagePreprocessing, TablePreprocessing, Text
from esupcon.heads import PrototypeHead
from esupcon.methods import METHODS
from esupcon.models import Network, ProjectionHead, build_encoder, resolve_encoder
from esupcon.models.encoders import CustomEncoder, embedding_dim
from esupcon.models.network import build_head, build_projector
from esupcon.probability import Calibration, Mahalanobis

CONFIG, WEIGHTS, EXAMPLES, CARD = "config.json", "model.safetensors", "examples.safetensors", "README.md"
#: The encoder of a model that was trained with a module of the user's, which must be passed again to load it.
CUSTOM = "custom"
FORMAT, SCHEMA = "esupcon model", 2
MAX_CLASSES, MAX_CONFIG_BYTES, MAX_DEPTH = 2**20, 64 * 2**20, 8
#: Rows of a table on the model card; the config has the rest.
MAX_CARD_ROWS = 100

_RESTORE = "Copy the folder again from where it was saved"


# --- The config ------------------------------------------------------------------------------------------------------


def _shallow(value: JsonValue, depth: int = 0) -> JsonValue:
    """Raise if lists and objects are nested deeper than anything that this module writes."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _shallow(inner, depth + 1)
    return value


Label = StrictBool | StrictInt | Annotated[float, Field(strict=True)] | Annotated[str, Field(max_length=2**16)]
Json = Annotated[JsonValue, AfterValidator(_shallow)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=2**63)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TrainingData(_Record):
    """How the training data were divided, so that the held-out part can be drawn again from the same data.

    Nothing here says where the data are: whoever evaluates a model names the data.
    """

    name: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^/\\\\\x00]*$")]  # not a path
    fingerprint: Digest
    split_seed: Seed = 0
    test_fraction: Fraction = 0.2
    n_per_class: Annotated[int, Field(ge=1)] | None = None
    n_train: Annotated[int, Field(ge=1)] | None = None
    imbalance_rate: Fraction | None = None
    noise_rate: Fraction | None = None
    noise_kind: Literal["shuffle", "symmetric", "pair"] = "shuffle"
    scenario_seed: Seed = 0
    validation_fraction: Fraction = 0.0
    validation_seed: Seed = 0


class EstimatorRecord(_Record):
    """What a `ContrastiveClassifier` needs beyond its `Classifier`: constructor parameters and the training history."""

    parameters: dict[Text, Json]
    history: tuple[dict[Text, Json], ...] = ()


class ModelInfo(_Record):
    """Where a model comes from. `encoder` is a name that `build_encoder` knows, or "custom"."""

    encoder: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    method: Text
    settings: dict[Text, Json] = {}
    data: TrainingData | None = None
    metrics: dict[Text, Json] = {}
    versions: dict[Text, Text] = Field(
        default_factory=lambda: {
            "esupcon": esupcon.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }
    )
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"), max_length=40)
    estimator: EstimatorRecord | None = None

    @field_validator("created")
    @classmethod
    def _check_created(cls, created: str) -> str:
        return datetime.fromisoformat(created).isoformat()


class ModelConfig(_Record):
    """Everything about a saved model but its tensors. Class labels keep their type; `files` are SHA-256 digests."""

    format: Literal["esupcon model"] = "esupcon model"
    schema_version: Literal[2] = 2
    classes: Annotated[tuple[Label, ...], Field(min_length=2, max_length=MAX_CLASSES)]
    head: Literal["linear", "prototype"]
    temperature: Annotated[float, Field(gt=0)]
    projection_dim: Annotated[int, Field(ge=1, le=65_536)] | None
    preprocessing: Annotated[ImagePreprocessing | TablePreprocessing, Field(discriminator="kind")]
    calibration: Calibration
    about: ModelInfo
    files: dict[Literal["model.safetensors", "examples.safetensors"], Digest]

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen: set[Label] = set()
        for label in self.classes:  # 1, 1.0 and True are one label to Python, and to whoever compares predictions
            if label in seen:
                raise ValueError(f"classes: the class {label!r:.100} is duplicated")
            seen.add(label)
        for name in ("class_counts", "class_weight", "target_priors"):
            values = getattr(self.calibration, name)
            if values is not None and len(values) != len(self.classes):
                raise ValueError(f"calibration.{name} has {len(values)} entries for {len(self.classes)} classes")
        if WEIGHTS not in self.files:
            raise ValueError(f"files: the digest of {WEIGHTS} is missing")
        return self


# --- Saving ----------------------------------------------------------------------------------------------------------


def save_classifier(
    classifier: Classifier, path: str | os.PathLike[str], *, overwrite: bool = False, examples: bool = True
) -> Path:
    """Write a classifier to a folder, which appears whole or not at all. Weights are stored as float32.

    With `overwrite`, replace a model that is there once the new one is complete. A folder that holds anything but a
    model of esupcon is never touched.
    """
    target = Path(path).resolve()
    _check_replaceable(target, overwrite)
    tensors, config = _state(classifier.network), _config(classifier)
    if config.about.encoder != CUSTOM:
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        if difference := _difference(shapes, _architecture(config, None, shapes)):
            name = config.about.encoder
            raise ValueError(f"the network is not what encoder {name!r} builds: {difference}. Correct about.encoder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:8]
    beside, replaced = target.with_name(f".{target.name}.{mark}.new"), target.with_name(f".{target.name}.{mark}.old")
    try:
        OwnedFolder(beside, (CONFIG, WEIGHTS, EXAMPLES, CARD)).claim()
        files = {WEIGHTS: _write_tensors(beside / WEIGHTS, tensors)}
        if examples and classifier.examples is not None:
            files[EXAMPLES] = _write_tensors(beside / EXAMPLES, _example_tensors(classifier.examples))
        write_sealed_json(beside / CONFIG, {**config.model_dump(mode="json"), "files": files})
        write_bytes(beside / CARD, model_card(config).encode())
        _flush(beside)
        _check_replaceable(target, overwrite)  # another process may have saved a model meanwhile
        _put_in_place(beside, target, replaced)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in _set_aside(target):
        shutil.rmtree(old, ignore_errors=True)
    return target


def _config(classifier: Classifier) -> ModelConfig:
    """Return the config of a classifier; digests of files are filled in when they are written."""
    head, projector = classifier.network.head, classifier.network.projector
    if classifier.about is None:
        raise ValueError("a classifier needs `about` to be saved: ModelInfo(encoder=..., method=...).")
    # By its own name: "auto" may mean another encoder in a later version.
    encoder = resolve_encoder(classifier.about.encoder, classifier.preprocessing.input_shape)
    try:
        return ModelConfig.model_validate(
            {
                "classes": tuple(classifier.classes_.tolist()),
                "head": "prototype" if isinstance(head, PrototypeHead) else "linear",
                "temperature": head.temperature if isinstance(head, PrototypeHead) else 1.0,
                "projection_dim": projector.out_dim if isinstance(projector, ProjectionHead) else None,
                "preprocessing": classifier.preprocessing,
                "calibration": classifier.calibration,
                "about": classifier.about.model_copy(update={"encoder": encoder}),
                "files": {WEIGHTS: "0" * 64},
            }
        )
    except ValidationError as error:
        raise ValueError(
            f"this classifier cannot be saved: {first_error(error)}. Class labels must be text, numbers or booleans."
        ) from error


def _write_tensors(file: Path, tensors: dict[str, Tensor]) -> str:
    """Write a safetensors file and return its digest."""
    content = save(tensors)
    write_bytes(file, content)
    return hashlib.sha256(content).hexdigest()


def _state(network: Network) -> dict[str, Tensor]:
    """Return the tensors of a network on the CPU, floating-point ones as float32; raise if they cannot be stored."""
    tensors = {}
    for name, value in network.state_dict().items():
        if not isinstance(value, Tensor) or value.is_complex():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"a model's state must be tensors of real numbers; {name} is {kind}. Make it a buffer.")
        kept = value.detach().to("cpu", torch.float32 if value.is_floating_point() else value.dtype)
        tensors[name] = kept.contiguous().clone()
    _check_finite(tensors, network)
    return tensors


def _example_tensors(examples: Examples) -> dict[str, Tensor]:
    arrays: dict[str, Any] = {"embedding": examples.embedding, "codes": examples.codes, "rows": examples.rows}
    if examples.mahalanobis is not None:
        arrays |= {"means": examples.mahalanobis.means, "whitening": examples.mahalanobis.whitening}
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}


def _check_replaceable(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise FileExistsError(f"a model is saved to a folder; {target} is a file. Choose another name.")
    present = {path.name for path in target.iterdir()}
    others = sorted(present - {WEIGHTS, CONFIG, EXAMPLES, CARD, OWNED})
    if others or (present and not _is_model(target)):
        shown = ", ".join(one_line(name) for name in (others or sorted(present))[:5])
        raise FileExistsError(
            f"{target} holds files that are not a model of esupcon ({shown}), which would be lost. "
            "Choose another folder."
        )
    if present and not overwrite:
        raise FileExistsError(f"{target} holds a model already. Choose another folder, or pass overwrite=True.")


def _is_model(folder: Path) -> bool:
    """Return whether we wrote this folder: it has our manifest, or a config with our seal."""
    if OwnedFolder(folder, ()).is_ours:
        return True
    try:
        return read_sealed_json(folder / CONFIG).get("format") == FORMAT
    except (OSError, ValueError):
        return False


def _put_in_place(beside: Path, target: Path, replaced: Path) -> None:
    """Rename the new folder to its name. A folder cannot be renamed onto one with files: the old one is moved first."""
    if target.exists():
        target.rename(replaced)
    try:
        beside.rename(target)
    except BaseException:
        if replaced.exists():
            replaced.rename(target)
        raise
    _flush(target.parent)


def _flush(path: Path) -> None:
    """Write the entries of a folder to disk. Windows cannot open folders, and does not need it."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- Loading ---------------------------------------------------------------------------------------------------------


def load_classifier(
    path: str | os.PathLike[str], *, encoder: nn.Module | None = None, device: str | torch.device = "cpu"
) -> Classifier:
    """Return the classifier that was saved to a folder, or that of a run from the folder of the run.

    `encoder` is needed if the model was trained with a module of your own: pass the same module; its weights are
    replaced by the stored ones.
    """
    folder = _surviving(model_folder(path))
    if not folder.is_dir():
        raise FileNotFoundError(f"no model at {folder}. Pass the folder that a model was saved to.")
    config = _read_config(folder)
    if config.about.encoder == CUSTOM and encoder is None:
        raise ValueError(
            f"{folder} was trained with an encoder of your own, whose code it does not hold. "
            "Pass the same module: load(folder, encoder=module)."
        )
    if config.about.encoder != CUSTOM and encoder is not None:
        raise ValueError(f"{folder} names its encoder, {config.about.encoder!r}. Load it without encoder=.")
    try:
        network = _read_network(folder, config, encoder)
        examples = _read_examples(folder, config, network)
    except SafetensorError as error:
        reason = one_line(str(error).partition("\n")[0])
        raise ValueError(f"{folder} cannot be loaded: not a safetensors file ({reason}). {_RESTORE}.") from error
    except ValueError as error:
        raise ValueError(f"{folder} cannot be loaded: {error}") from error
    if isinstance(config.preprocessing, TablePreprocessing) and config.about.encoder != CUSTOM:
        network = network.double()  # so that the outputs of a row do not depend on the other rows of its batch
    try:
        network = network.to(torch.device(device)).eval()
    except (RuntimeError, AssertionError) as error:  # the latter from torch without CUDA
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {str(device)!r} cannot be used here ({reason}). Pass 'cpu'.") from error
    return Classifier(
        network,
        config.preprocessing,
        config.classes,
        calibration=config.calibration,
        examples=examples,
        about=config.about,
    )


def model_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder where a model is, or after a killed replacement should be: `path`, or the model of that run."""
    folder, inner = Path(path), Path(path) / MODEL_FOLDER
    is_run = not (_surviving(folder) / CONFIG).is_file() and (_surviving(inner) / CONFIG).is_file()
    return inner if is_run else folder


def _surviving(folder: Path) -> Path:
    """Return `folder`, or the old model that a process moved aside before it was killed."""
    if folder.exists():
        return folder
    return max(_set_aside(folder), key=lambda path: path.stat().st_mtime_ns, default=folder)


def _set_aside(folder: Path) -> list[Path]:
    name = re.compile(re.escape(f".{folder.name}.") + r"[0-9a-f]{8}\.old")
    return [path for path in folder.parent.glob(".*.old") if name.fullmatch(path.name)]


def _read_config(folder: Path) -> ModelConfig:
    file = folder / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"{folder} is not an esupcon model: it has no {CONFIG}. Pass the folder of a model.")
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise ValueError(f"{file} has {file.stat().st_size:,} bytes; a config has at most {MAX_CONFIG_BYTES:,}.")
    values = read_sealed_json(file)
    version = values.get("schema_version")
    if values.get("format") != FORMAT or type(version) is not int:
        raise ValueError(f"{file} is not the config of an esupcon model. Pass the folder that a model was saved to.")
    if version > SCHEMA:
        raise ValueError(
            f"{file} has schema {version}; this esupcon reads {SCHEMA}. Upgrade with: pip install -U esupcon"
        )
    try:
        return ModelConfig.model_validate(values)
    except (ValidationError, RecursionError) as error:
        reason = first_error(error) if isinstance(error, ValidationError) else "nested too deeply"
        raise ValueError(f"{file} is not valid: {reason}. {_RESTORE}.") from error


@contextmanager
def _open_tensors(folder: Path, name: str, config: ModelConfig) -> Iterator[Any]:
    """Open a safetensors file of the model after comparing it with its digest and with the memory of the machine.

    The library compares the sizes in the file's header with the size of the file.
    """
    file = folder / name
    if not file.is_file():
        raise ValueError(f"{name} is missing. {_RESTORE}.")
    check_memory(2 * file.stat().st_size, f"{name}")
    if file_digest(file) != config.files[name]:  # type: ignore[index]  # one of the two names
        raise ValueError(f"{name} is not the file that was saved with {CONFIG}: its digest differs. {_RESTORE}.")
    with safe_open(file, framework="pt") as opened:
        yield opened


def _read_network(folder: Path, config: ModelConfig, encoder: nn.Module | None) -> Network:
    """Return the stored network in float32. Everything is checked before tensors are allocated."""
    with _open_tensors(folder, WEIGHTS, config) as opened:
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        network = _architecture(config, encoder, shapes)
        difference = _difference(shapes, network)
        if difference:
            raise ValueError(f"{WEIGHTS} does not fit encoder {config.about.encoder!r}: {difference}. {_RESTORE}.")
        tensors = {name: opened.get_tensor(name).clone() for name in shapes}  # a view would change with the file
    for name, value in network.state_dict().items():
        expected = torch.float32 if value.is_floating_point() else value.dtype
        if tensors[name].dtype != expected:
            raise ValueError(f"{name} in {WEIGHTS} must be {expected}; it is {tensors[name].dtype}. {_RESTORE}.")
    _check_finite(tensors, network)
    for part, module in network.named_children():
        state = {key.removeprefix(f"{part}."): value for key, value in tensors.items() if key.startswith(f"{part}.")}
        # Modules built without values take the stored tensors; a user's or library's module keeps its own, to which
        # others may refer.
        keeps = part == "encoder" and (encoder is not None or isinstance(module, CustomEncoder))
        module.load_state_dict(state, assign=not keeps)
    return network.float()


def _architecture(config: ModelConfig, encoder: nn.Module | None, stored: Mapping[str, tuple[int, ...]]) -> Network:
    """Return the network that the config describes. Memory is allocated only for what the stored tensors confirm."""
    name, shape, n_classes = config.about.encoder, config.preprocessing.input_shape, len(config.classes)
    with torch.random.fork_rng(devices=[]):  # building a network must not advance the user's random state
        if encoder is not None or name.startswith("timm:"):
            built = build_encoder(name if encoder is None else encoder, input_shape=shape)
        else:
            with _without_values():
                built = build_encoder(name, input_shape=shape)
        dim = embedding_dim(built)
        if stored.get("head.weight") != (n_classes, dim):
            raise ValueError(
                f"{n_classes} classes on encoder {name!r} need a head.weight of shape {(n_classes, dim)}; "
                f"found {stored.get('head.weight', 'none')}"
            )
        head = build_head(config.head, dim=dim, n_classes=n_classes, temperature=config.temperature)
        with _without_values():
            projector = build_projector(dim=dim, projection_dim=config.projection_dim)
    return Network(built, head, projector)


class _SkipRandomness(TorchFunctionMode):
    """Skip drawing initial values, which nobody will see."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **(kwargs or {}))


@contextmanager
def _without_values() -> Iterator[None]:
    """Build modules that have shapes and take no memory."""
    with torch.device("meta"), _SkipRandomness():
        yield


def _difference(found: Mapping[str, tuple[int, ...]], network: Network) -> str:
    """Return the first tensor that is missing, unexpected or of another shape; empty if all agree."""
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    for name in sorted({*found, *expected}):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"unexpected tensor {one_line(name):.100}"
        if found[name] != expected[name]:
            return f"{name} should have shape {expected[name]} and has {found[name]}"
    return ""


def _check_finite(tensors: Mapping[str, Tensor], network: Network) -> None:
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    for name, value in tensors.items():
        # A buffer may hold infinities, as the masks of attention do.
        if not value.isfinite().all() if name in parameters else value.isnan().any():
            raise ValueError(f"{name} holds NaN or infinity: training has diverged. Lower the learning rate.")


def _read_examples(folder: Path, config: ModelConfig, network: Network) -> Examples | None:
    if EXAMPLES not in config.files:
        return None
    with _open_tensors(folder, EXAMPLES, config) as opened:
        arrays = {name: opened.get_tensor(name).clone().numpy() for name in opened.keys()}  # noqa: SIM118
    assert isinstance(network.head.weight, Tensor)
    dim = network.head.weight.shape[1]
    columns = len(config.preprocessing.mean) if isinstance(config.preprocessing, TablePreprocessing) else 0
    embedding, codes, rows = (arrays.get(name, np.empty(0)) for name in ("embedding", "codes", "rows"))
    n, width = len(embedding), dim + columns
    expected: dict[str, tuple[type, tuple[int, ...]]] = {
        "embedding": (np.float32, (n, dim)),
        "codes": (np.int64, (n,)),
        "rows": (np.int64, (n,)),
    }
    if "means" in arrays or "whitening" in arrays:
        means = arrays.get("means", np.empty(0))
        expected |= {"means": (np.float64, (len(means), width)), "whitening": (np.float64, (width, width))}
    found = {name: (array.dtype.type, array.shape) for name, array in arrays.items()}
    if found != expected or n == 0 or not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError(f"{EXAMPLES} does not hold the examples of this model. {_RESTORE}.")
    if codes.min() < 0 or codes.max() >= len(config.classes) or rows.min() < 0:
        raise ValueError(f"{EXAMPLES} holds labels of other classes. {_RESTORE}.")
    mahalanobis = Mahalanobis(arrays["means"], arrays["whitening"], 0.0) if "means" in arrays else None
    return Examples(embedding, codes, rows, mahalanobis)


# --- The model card --------------------------------------------------------------------------------------------------

# Characters with a meaning inside a line of Markdown or HTML: all punctuation but a few; the dot of a web address; an
# underscore at the edge of a word, where emphasis may begin or end.
_MARKUP = re.compile(r"""[^\w\s\-,'/()%=+;?!".]|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])""", re.ASCII | re.IGNORECASE)


def escape_markdown(text: object) -> str:
    """Return text that Markdown and HTML show unchanged: no markup, links or table cells, nothing invisible."""
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};" if found[0].isascii() else found[0], visible)


def model_card(config: ModelConfig) -> str:
    """Return the model card, Markdown for people; the program never reads it."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("esupcon.classifier", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"text": escape_markdown, "cell": _cell}
    method = METHODS.get(config.about.method)
    return environment.get_template("card.md.jinja").render(
        config=config,
        about=config.about,
        classes=list(enumerate(config.classes)),
        method=f"{method.title}. {method.summary}" if method else config.about.method,
        settings=_flat(config.about.settings),
        metrics=_flat(config.about.metrics),
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
    return escape_markdown(f"{value:.6g}" if isinstance(value, float) else value)
