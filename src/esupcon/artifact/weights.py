"""`model.safetensors`: the weights, and a seal that binds them to their config."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from esupcon.artifact.config import CUSTOM, ArtifactConfig
from esupcon.files import quoted
from esupcon.heads import LinearHead, PrototypeHead
from esupcon.models.encoders import CustomEncoder, build_encoder, embedding_dim
from esupcon.models.network import Network, ProjectionHead, build_head, build_projector

__all__ = ["WEIGHTS", "check_network", "read_network", "write_weights"]

WEIGHTS = "model.safetensors"

FORMAT_VERSION = 1
# One key of metadata: the library writes several in random order, and equal models should be equal files.
SEAL = "esupcon"

Shapes = Mapping[str, tuple[int, ...]]

_AGAIN = "Copy the folder again from where it was saved"


def write_weights(file: Path, network: Network, config_digest: str) -> None:
    """Every tensor of the network, floating-point ones as float32, sealed to the config of this digest."""
    tensors = {}
    for name, value in _tensors(network).items():
        if value.is_complex():
            raise ValueError(f"weights are stored as real numbers; {name} is {value.dtype}. Store its two parts.")
        kept = value.detach().to("cpu", torch.float32 if value.is_floating_point() else value.dtype)
        tensors[name] = kept.contiguous().clone()
    _refuse_broken(tensors, network)
    seal = {
        "format_version": FORMAT_VERSION,
        "config_sha256": config_digest,
        "tensors_sha256": _tensors_digest(tensors),
    }
    try:
        save_file(tensors, file, metadata={SEAL: json.dumps(seal)})
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])  # the library hides what the system said, such as that the disk is full
        raise OSError(number, os.strerror(number), str(file)) from error


def check_network(network: Network, config: ArtifactConfig) -> None:
    """The network is what the config says: what is written can be read again."""
    head, projector = network.head, network.projector
    kind = {LinearHead: "linear", PrototypeHead: "prototype"}.get(type(head), type(head).__name__)
    said: dict[str, object] = {"head": config.head, "projection_dim": config.projection_dim}
    found: dict[str, object] = {"head": kind, "projection_dim": None}
    if projector is not None:
        found["projection_dim"] = projector.out_dim if isinstance(projector, ProjectionHead) else type(projector)
    if isinstance(head, PrototypeHead):
        said["temperature"], found["temperature"] = config.temperature, head.temperature
    if isinstance(head, LinearHead | PrototypeHead):
        said["number of classes"], found["number of classes"] = config.n_classes, len(head.weight)
    for name, value in said.items():
        if value != found[name]:
            raise ValueError(
                f"the config's {name} is {value!r}; the network's is {found[name]!r}. Make the config from the network."
            )
    if config.encoder != CUSTOM:
        shapes = _shapes(network)
        difference = _difference(shapes, _shapes(_architecture(config, None, shapes)))
        if difference:
            raise ValueError(
                f"the network is not what the config's encoder {config.encoder!r} builds: {difference}. "
                f"Give its spec, or {CUSTOM!r} for a module of your own."
            )


def read_network(file: Path, config: ArtifactConfig, config_digest: str, encoder: nn.Module | None) -> Network:
    """The network that `write_weights` stored, in float32. All is checked before anything is kept, and the file's own
    header, which the library holds against the file's size, bounds what is allocated."""
    try:
        with safe_open(file, framework="pt") as opened:
            seal = _open_seal(opened.metadata(), config_digest)
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            network = _architecture(config, encoder, shapes)
            difference = _difference(shapes, _shapes(network))
            if difference:
                raise ValueError(f"{WEIGHTS} does not fit the encoder {config.encoder!r}: {difference}. {_AGAIN}")
            # Copies: a view into the file would change, or crash, with the file.
            tensors = {name: opened.get_tensor(name).clone() for name in shapes}
    except SafetensorError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{WEIGHTS} is damaged or not a safetensors file ({quoted(reason)}). {_AGAIN}") from error
    for name, value in _tensors(network).items():
        wanted = torch.float32 if value.is_floating_point() else value.dtype
        if tensors[name].dtype != wanted:
            raise ValueError(f"{name} in {WEIGHTS} must be {wanted}; it is {tensors[name].dtype}. {_AGAIN}")
    if _tensors_digest(tensors) != seal["tensors_sha256"]:
        raise ValueError(f"the weights in {WEIGHTS} are not those that were saved: their digest differs. {_AGAIN}")
    _refuse_broken(tensors, network)
    for name, part in network.named_children():
        values = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        # What was built without values takes the tensors themselves; the module of a user or of a library keeps
        # its own, to which others may refer.
        keeps = name == "encoder" and (encoder is not None or isinstance(part, CustomEncoder))
        part.load_state_dict(values, assign=not keeps)
    return network.float()


def _architecture(config: ArtifactConfig, encoder: nn.Module | None, stored: Shapes) -> Network:
    """The config's network before its weights. Only what the stored tensors have the size of is allocated."""
    with torch.random.fork_rng(devices=[]):  # random weights that are replaced must not move a user's seed
        return _unseeded_architecture(config, encoder, stored)


def _unseeded_architecture(config: ArtifactConfig, encoder: nn.Module | None, stored: Shapes) -> Network:
    if encoder is not None or config.encoder.startswith("timm:"):
        built = build_encoder(config.encoder if encoder is None else encoder, input_shape=config.input_shape)
    else:
        with _without_values():
            built = build_encoder(config.encoder, input_shape=config.input_shape)
    dim = embedding_dim(built)
    if stored.get("head.weight") != (config.n_classes, dim):
        raise ValueError(
            f"{config.n_classes} classes on the encoder {config.encoder!r} need a head.weight of shape "
            f"{(config.n_classes, dim)}; the weights have {stored.get('head.weight', 'none')}"
        )
    head = build_head(config.head, dim=dim, n_classes=config.n_classes, temperature=config.temperature or 1.0)
    with _without_values():
        projector = build_projector(dim=dim, projection_dim=config.projection_dim)
    return Network(built, head, projector)


class _SkipRandomness(TorchFunctionMode):
    """Values that are never seen need not be drawn."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def _without_values() -> Iterator[None]:
    """Modules made inside have shapes and take no memory."""
    with torch.device("meta"), _SkipRandomness():
        yield


def _open_seal(metadata: Mapping[str, str] | None, config_digest: str) -> dict[str, Any]:
    try:
        seal = json.loads((metadata or {})[SEAL])
        version, config_sha256 = seal["format_version"], seal["config_sha256"]
        seal["tensors_sha256"]  # looked up here, so that what is missing is named here
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{WEIGHTS} does not carry the mark of a model of esupcon") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"the format of {WEIGHTS} is {version!r:.100} and this esupcon reads {FORMAT_VERSION}; "
            "upgrade with: pip install -U esupcon"
        )
    if config_sha256 != config_digest:
        raise ValueError(f"config.json is not the one that {WEIGHTS} was saved with, or was edited. {_AGAIN}")
    return dict(seal)


def _tensors(network: Network) -> dict[str, Tensor]:
    state = network.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(  # noqa: TRY004 - every mistake at the public edge is a ValueError
                f"a model's state must be tensors; {name} is {type(value).__name__}. "
                "Keep it out of the encoder's state, or as a buffer."
            )
    return dict(state)


def _shapes(network: Network) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in _tensors(network).items()}


def _difference(found: Shapes, expected: Shapes) -> str:
    """The first tensor that is missing, too much or of another shape; empty if none is."""
    for name in sorted({*found, *expected}):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name!r:.100} is too much"
        if found[name] != expected[name]:
            return f"{name} should have shape {expected[name]} and has {found[name]}"
    return ""


def _refuse_broken(tensors: Mapping[str, Tensor], network: Network) -> None:
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    for name, value in tensors.items():
        # A buffer may hold infinities, as the masks of attention do.
        broken = not value.isfinite().all() if name in parameters else value.isnan().any()
        if broken:
            raise ValueError(f"{name} holds NaN or infinite numbers; the training it comes from has diverged")


def _tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).numpy().data)
    return digest.hexdigest()
