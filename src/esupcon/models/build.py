"""From a few words to a network: `resnet18`, `resnet10-w32`, `mlp-256x2`, `identity`, `timm:NAME`, `auto`."""

from __future__ import annotations

import difflib
import math
import re
from typing import Literal

from torch import nn

from esupcon.functional import check_choice
from esupcon.heads import LinearHead, PrototypeHead
from esupcon.models.custom import CustomEncoder, embedding_width
from esupcon.models.mlp import MLP, PrecomputedEmbedding
from esupcon.models.network import Network, ProjectionHead
from esupcon.models.resnet import LARGEST_FOR_SMALL_STEM, PUBLISHED_WIDTH, RESNET_DEPTHS, ResNet, Stem
from esupcon.models.timm_encoder import timm_encoder

__all__ = ["build_encoder", "build_head", "build_network", "build_projector", "embedding_dim", "resolve_spec"]

#: Sides up to this many pixels, such as scikit-learn's digits, are served well by a small network.
SMALLEST_IMAGES = 12

_RESNET = re.compile(r"resnet([0-9]{1,9})(?:-w([0-9]{1,9}))?")
_MLP = re.compile(r"mlp(?:-([0-9]{1,9})x([0-9]{1,9}))?")
_NAMES = ("auto", *(f"resnet{depth}" for depth in RESNET_DEPTHS), "mlp", "identity")


def resolve_spec(spec: str, input_shape: tuple[int, ...]) -> str:
    """`auto` as the encoder it stands for with data of this shape; any other spec as it is.

    A table gets `mlp`; images up to 12 pixels `resnet10-w16`, all others `resnet18`.
    """
    shape = _checked_shape(input_shape)
    if spec != "auto":
        return spec
    if len(shape) == 1:
        return "mlp"
    return "resnet10-w16" if max(shape[1:]) <= SMALLEST_IMAGES else "resnet18"


def build_encoder(spec: str | nn.Module, *, input_shape: tuple[int, ...]) -> nn.Module:
    """An encoder of batches (n, *input_shape) to (n, dim), where `dim` is an attribute of what is returned.

    ``input_shape`` is (C, H, W) of images or (d,) of a table. ``spec`` is one of

    - ``resnet10``, ``resnet14``, ``resnet18``, ``resnet34``, ``resnet50``; with ``-wN`` for N channels in the
      first stage instead of 64. Images up to 64 pixels keep their resolution in the stem (see `ResNet`).
    - ``mlp`` or ``mlp-HxL`` for L layers of width H, 256x2 if left out; ``identity`` for rows that are
      embeddings already;
    - ``timm:NAME``, untrained, where timm is installed;
    - ``auto``: see `resolve_spec`;
    - a module of your own that maps a batch to (n, dim). It is asked for `dim` by a dry run on two rows.
    """
    shape = _checked_shape(input_shape)
    if isinstance(spec, nn.Module):
        dim = embedding_width(spec, shape)
        return (
            spec if isinstance(spec, ResNet | MLP | PrecomputedEmbedding | CustomEncoder) else CustomEncoder(spec, dim)
        )
    if not isinstance(spec, str):
        raise ValueError(  # noqa: TRY004 - every mistake at the public edge is a ValueError
            f"an encoder is a name or an nn.Module; got {type(spec).__name__}. Known names: {_known()}."
        )
    return _from_name(resolve_spec(spec, shape), shape)


def build_network(
    *,
    encoder: str | nn.Module,
    input_shape: tuple[int, ...],
    n_classes: int,
    head: Literal["linear", "prototype"] = "prototype",
    projection_dim: int | None = None,
    temperature: float = 0.1,
) -> Network:
    """Encoder, head and, with a ``projection_dim``, projector. ``temperature`` is the prototype head's."""
    built = build_encoder(encoder, input_shape=input_shape)
    dim = embedding_dim(built)
    # The projector is drawn before the head: what the first stage of SupCon trains starts equal under every head.
    projector = build_projector(dim=dim, projection_dim=projection_dim)
    return Network(built, build_head(head, dim=dim, n_classes=n_classes, temperature=temperature), projector)


def build_head(
    kind: Literal["linear", "prototype"], *, dim: int, n_classes: int, temperature: float = 0.1
) -> LinearHead | PrototypeHead:
    check_choice("head", kind, ("linear", "prototype"))
    if n_classes < 2:
        raise ValueError(f"n_classes must be at least 2; got {n_classes!r}. One class leaves nothing to tell apart.")
    return LinearHead(dim, n_classes) if kind == "linear" else PrototypeHead(dim, n_classes, temperature)


def build_projector(*, dim: int, projection_dim: int | None) -> ProjectionHead | None:
    if projection_dim is None:
        return None
    if projection_dim < 1:
        raise ValueError(f"projection_dim must be at least 1, or None for no projector; got {projection_dim!r}.")
    return ProjectionHead(dim, projection_dim)


def embedding_dim(encoder: nn.Module) -> int:
    """The width of what `build_encoder` built."""
    dim = encoder.dim
    assert isinstance(dim, int)
    return dim


def _from_name(spec: str, shape: tuple[int, ...]) -> nn.Module:
    if spec.startswith("timm:"):
        return timm_encoder(spec.removeprefix("timm:"), _image_shape(spec, shape))
    if match := _RESNET.fullmatch(spec):
        depth, width = match.groups(default=str(PUBLISHED_WIDTH))
        if int(depth) in RESNET_DEPTHS:
            channels, *sides = _image_shape(spec, shape)
            stem: Stem = "32x32" if max(sides) <= LARGEST_FOR_SMALL_STEM else "224x224"
            return ResNet(int(depth), width=int(width), in_channels=channels, stem=stem)
    if match := _MLP.fullmatch(spec):
        hidden, layers = match.groups()
        return (
            MLP(math.prod(shape)) if hidden is None else MLP(math.prod(shape), hidden=int(hidden), layers=int(layers))
        )
    if spec == "identity":
        if len(shape) != 1:
            raise ValueError(
                f"encoder 'identity' takes rows that are embeddings already, of shape (d,); the data has shape "
                f"{shape}. Use 'auto', or compute the embeddings first."
            )
        return PrecomputedEmbedding(shape[0])
    close = difflib.get_close_matches(spec, _NAMES, n=1, cutoff=0.0)[0]
    raise ValueError(f"unknown encoder {spec!r}; the closest known is {close!r}. Known: {_known()}.")


def _known() -> str:
    return f"{', '.join(_NAMES)} (resnets with -wN for another width, mlp-HxL for L layers of H), timm:NAME"


def _image_shape(spec: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(
            f"encoder {spec!r} takes images (C, H, W); the data has shape {shape}. Use 'mlp' or 'identity' for tables."
        )
    return shape[0], shape[1], shape[2]


def _checked_shape(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    shape = tuple(input_shape)
    if len(shape) not in (1, 3) or any(side < 1 for side in shape):
        raise ValueError(f"input_shape is (C, H, W) of images or (d,) of a table, without the batch; got {shape}.")
    return shape
