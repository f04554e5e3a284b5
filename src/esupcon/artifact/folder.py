"""A trained classifier as a folder: weights, config and a model card, written whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path

from torch import nn

from esupcon.artifact.card import model_card
from esupcon.artifact.config import CUSTOM, ArtifactConfig, config_text, parse_config, text_digest
from esupcon.artifact.weights import WEIGHTS, check_network, read_network, write_weights
from esupcon.models import Network, resolve_encoder

__all__ = ["CARD", "CONFIG", "WEIGHTS", "read_artifact", "save_artifact", "surviving"]

CONFIG, CARD = "config.json", "README.md"
#: A config names classes and features; what is larger is not one.
LARGEST_CONFIG = 64 * 2**20


def save_artifact(
    folder: str | os.PathLike[str], network: Network, config: ArtifactConfig, *, overwrite: bool = False
) -> Path:
    """Write ``model.safetensors``, ``config.json`` and ``README.md`` to ``folder``, which comes to be in one step.

    Floating-point weights are stored as float32. With ``overwrite`` a model that is there is replaced once the
    new one is complete; a folder that holds anything else is never touched.
    """
    target = Path(folder).resolve()
    if target.exists():
        _refuse_to_replace(target, overwrite)
    # By its own name, so that a later esupcon, whose "auto" may mean another encoder, still builds this one.
    config = config.model_copy(update={"encoder": resolve_encoder(config.encoder, config.input_shape)})
    check_network(network, config)
    text = config_text(config)
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:8]
    beside = target.with_name(f".{target.name}.{mark}.new")
    replaced = target.with_name(f".{target.name}.{mark}.old")
    try:
        beside.mkdir()
        write_weights(beside / WEIGHTS, network, text_digest(text))
        (beside / CONFIG).write_text(text, encoding="utf-8", newline="\n")
        (beside / CARD).write_text(model_card(config), encoding="utf-8", newline="\n")
        # The library makes its file readable for its owner alone; a model is as public as its folder.
        shutil.copymode(beside / CONFIG, beside / WEIGHTS)
        for path in (*beside.iterdir(), beside):
            _flush(path)
        if target.exists():  # it may have come to be in the meantime
            _refuse_to_replace(target, overwrite)
        _put_in_place(beside, target, replaced)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in _put_aside(target):
        shutil.rmtree(old, ignore_errors=True)
    return target


def read_artifact(
    folder: str | os.PathLike[str], *, encoder: nn.Module | None = None
) -> tuple[Network, ArtifactConfig]:
    """What `save_artifact` wrote. Nothing in the folder is executed; what is not understood is refused."""
    source = surviving(Path(folder))
    if not source.is_dir():
        raise FileNotFoundError(f"no model at {source}. Pass the folder that a model was saved to.")
    for name in (CONFIG, WEIGHTS):
        if not (source / name).is_file():
            raise FileNotFoundError(
                f"{source} is not a model of esupcon: it has no {name}. Pass the folder that a model was saved to."
            )
    config, digest = _read_config(source / CONFIG)
    if config.encoder == CUSTOM and encoder is None:
        raise ValueError(
            f"{source} was trained with an encoder of your own, whose code it does not hold. "
            "Pass the same module: load(folder, encoder=module)."
        )
    if config.encoder != CUSTOM and encoder is not None:
        raise ValueError(f"{source} brings its encoder, {config.encoder!r}, with it. Load it without encoder=.")
    try:
        return read_network(source / WEIGHTS, config, digest, encoder), config
    except ValueError as error:
        raise ValueError(f"{source} cannot be loaded: {error}") from error


def surviving(folder: Path) -> Path:
    """`folder`; or, where a process was killed just when it put a new model in its place, the old one put aside."""
    if folder.exists():
        return folder
    return max(_put_aside(folder), key=lambda path: path.stat().st_mtime_ns, default=folder)


def _put_aside(folder: Path) -> list[Path]:
    name = re.compile(re.escape(f".{folder.name}.") + r"[0-9a-f]{8}\.old")
    return [path for path in folder.parent.glob(".*.old") if name.fullmatch(path.name)]


def _read_config(file: Path) -> tuple[ArtifactConfig, str]:
    """The config and the digest of its text."""
    size = file.stat().st_size
    if size > LARGEST_CONFIG:
        raise ValueError(f"{file} cannot be read: a config has at most {LARGEST_CONFIG} bytes, and it has {size}.")
    try:
        text = file.read_text(encoding="utf-8")
        return parse_config(text), text_digest(text)
    except ValueError as error:  # which bytes that are not UTF-8 are too
        raise ValueError(f"{file} cannot be read: {error}.") from error


def _refuse_to_replace(target: Path, overwrite: bool) -> None:
    if not target.is_dir():
        raise FileExistsError(f"a model is saved to a folder; {target} is a file. Choose another name.")
    present = {path.name for path in target.iterdir()}
    others = sorted(present - {WEIGHTS, CONFIG, CARD})
    if others or (present and not {WEIGHTS, CONFIG} & present):
        raise FileExistsError(
            f"{target} holds more than a model ({', '.join(map(repr, others or present))}), which would be lost. "
            "Choose another folder."
        )
    if present and not overwrite:
        raise FileExistsError(f"{target} holds a model already. Choose another folder, or pass overwrite=True.")


def _put_in_place(beside: Path, target: Path, replaced: Path) -> None:
    """A folder cannot be renamed onto one that holds files: the old one steps aside first."""
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
    """Onto the disk before the rename says it is there. Windows knows no folder handles and needs none."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
