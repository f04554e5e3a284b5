"""Encoders: ResNets for images, MLPs for tables, precomputed embeddings, modules of the user, and their names."""

from __future__ import annotations

import copy
import difflib
import math
import re
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from esupcon._console import check_choice, explained
from esupcon.models.fast import SMALLEST_SIDE, FastEncoder
from esupcon.models.pretrained import EfficientNetLite0, Pixels, timm_module

Stem = Literal["32x32", "224x224"]

#: Images with no side above this keep their resolution in the stem; larger ones are reduced four times.
LARGEST_FOR_SMALL_STEM = 64
#: Channels of the first stage in the published ResNets.
PUBLISHED_WIDTH = 64
# Far above what is in use: a typing error gives a message instead of filling the memory.
MAX_WIDTH = 4096
MAX_HIDDEN = 65_536
MAX_LAYERS = 64


class _Block(nn.Module):
    """relu(x + layers(x)). The layers are convolutions of these sizes, each with batch norm, and relu between them.

    A basic block is (3, 3). A bottleneck (1, 3, 1) has four times as many channels in its last layer. The stride is
    that of the first 3x3 convolution, as in current versions.
    """

    def __init__(self, in_channels: int, channels: int, sizes: tuple[int, ...], stride: int) -> None:
        super().__init__()
        out_channels = channels * _expansion(sizes)
        widths = [in_channels, *[channels] * (len(sizes) - 1), out_channels]
        self.layers = nn.Sequential()
        for index, size in enumerate(sizes):
            step = stride if index == sizes.index(3) else 1
            self.layers.extend(_normed_convolution(widths[index], widths[index + 1], size, step))
            self.layers.append(nn.ReLU(inplace=True))
        self.relu = self.layers.pop(-1)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same else _normed_convolution(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.layers(x) + self.shortcut(x))
        return out


def _expansion(sizes: tuple[int, ...]) -> int:
    return 4 if len(sizes) == 3 else 1


def _normed_convolution(in_channels: int, out_channels: int, size: int, stride: int) -> nn.Sequential:
    """Return a convolution without bias, which the batch norm after it has."""
    convolution = nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels))


# Sizes of the convolutions of a block, and blocks per stage. 18, 34 and 50 as published by He et al.; 10 and 14 are the
# usual shorter ones.
_LAYOUTS = {
    10: ((3, 3), (1, 1, 1, 1)),
    14: ((3, 3), (2, 2, 1, 1)),
    18: ((3, 3), (2, 2, 2, 2)),
    34: ((3, 3), (3, 4, 6, 3)),
    50: ((1, 3, 1), (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A residual network without its classifier: (n, in_channels, H, W) -> (n, dim).

    The four stages have ``width``, 2, 4 and 8 ``width`` channels, and ``dim`` is that of the last: 8 ``width`` for
    depths 10, 14, 18 and 34, and 32 ``width`` for 50. Stem ``"32x32"`` is one 3x3 convolution of stride 1;
    ``"224x224"`` is the published 7x7 of stride 2 and 3x3 max-pooling of stride 2.
    """

    def __init__(
        self, depth: int = 18, *, width: int = PUBLISHED_WIDTH, in_channels: int = 3, stem: Stem = "32x32"
    ) -> None:
        super().__init__()
        check_choice("depth", depth, _LAYOUTS)
        _check_size("width", width, MAX_WIDTH, PUBLISHED_WIDTH)
        check_choice("stem", stem, ("32x32", "224x224"))
        size, stride = (3, 1) if stem == "32x32" else (7, 2)
        self.stem = _normed_convolution(in_channels, width, size, stride).append(nn.ReLU(inplace=True))
        if stem == "224x224":
            self.stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        sizes, blocks = _LAYOUTS[depth]
        self.stages = nn.Sequential()
        channels = width
        for stage, n_blocks in enumerate(blocks):
            chain = nn.Sequential()
            for index in range(n_blocks):
                halves = stage > 0 and index == 0
                chain.append(_Block(channels, width * 2**stage, sizes, stride=2 if halves else 1))
                channels = width * 2**stage * _expansion(sizes)
            self.stages.append(chain)
        self.dim = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.stages(self.stem(x)).mean(dim=(2, 3))
        return pooled


def _check_size(name: str, value: int, most: int, usual: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be 1 to {most}; got {value}. Use {usual}, the usual one.")


class MLP(nn.Module):
    """`layers` times relu(norm(W x + b)), each `hidden` wide: (n, in_features) -> (n, hidden).

    It uses layer norm, over the features of one row: tables are small, and batch statistics of a few rows are noisy.
    Inputs of more dimensions are flattened.
    """

    def __init__(self, in_features: int, *, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        _check_size("hidden", hidden, MAX_HIDDEN, 256)
        _check_size("layers", layers, MAX_LAYERS, 2)
        self.dim = hidden
        self.layers = nn.Sequential()
        for index in range(layers):
            # Linear's default random biases matter: with zero biases only the direction of a row would pass the
            # norm, and a class at the centre of the data could not be separated.
            linear = nn.Linear(hidden if index else in_features, hidden)
            self.layers.extend([linear, nn.LayerNorm(hidden), nn.ReLU(inplace=True)])

    def forward(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.layers(x.flatten(1))
        return embedding


class PrecomputedEmbedding(nn.Identity):
    """Return rows unchanged, (n, dim) -> (n, dim): only the head is trained."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim


class CustomEncoder(nn.Module):
    """A module of the user with the width `dim` of its output. The module itself is trained, not a copy."""

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...], pixels: Pixels | None = None) -> None:
        super().__init__()
        self.module, self.pixels = module, pixels
        self.dim = embedding_width(module, input_shape)

    def forward(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.module(x)
        return embedding


def embedding_width(module: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return d of (2, *input_shape) -> (2, d), found by a dry run of a copy in evaluation mode."""
    name = type(module).__name__
    tensors = [*module.parameters(), *module.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        raise ValueError(
            f"encoder {name} has lazy layers whose shapes are not known yet. Run it once on a batch of shape "
            f"{(2, *input_shape)} before passing it."
        )
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))
    batch = torch.zeros(2, *input_shape, device=like.device, dtype=like.dtype)
    expected = f"encoder {name} must map a batch of shape {tuple(batch.shape)} to (2, dim)"
    devices = [like.device] if like.device.type == "cuda" else []
    with (
        explained(expected, "Check it against your data."),
        torch.random.fork_rng(devices=devices),
        torch.no_grad(),
    ):
        out = copy.deepcopy(module).eval()(batch)
    found = f"{out.dtype} of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
    if not isinstance(out, Tensor) or not out.is_floating_point() or out.shape[:-1] != (2,) or out.numel() == 0:
        remedy = "Pool and flatten its output, as in nn.Sequential(module, nn.AdaptiveAvgPool2d(1), nn.Flatten())."
        raise ValueError(f"{expected}; it returned {found}. {remedy}")
    return int(out.shape[1])


_NUMBER = r"([0-9]{1,9})"
_MLP = rf"mlp(?:-{_NUMBER}x{_NUMBER})?"
_FAST = rf"fast(?:-w{_NUMBER})?"
_RESNET = rf"resnet({'|'.join(map(str, _LAYOUTS))})(?:-w{_NUMBER})?"
_LITE0 = "efficientnet-lite0"
_NAMES = ("auto", "fast", *(f"resnet{depth}" for depth in _LAYOUTS), _LITE0, "mlp", "identity")
_KNOWN = f"{', '.join(_NAMES)} (fast-wN and resnetD-wN for other widths, mlp-HxL for L layers of H), timm:NAME"


def resolve_encoder(spec: str, input_shape: tuple[int, ...]) -> str:
    """Return the encoder that `auto` means for data of this shape; any other spec unchanged.

    A table gets `mlp`, and so do images that are too small for `fast`, which all others get.
    """
    _, *sides = _checked_shape(input_shape)
    if spec != "auto":
        return spec
    return "fast" if sides and min(sides) >= SMALLEST_SIDE else "mlp"


def build_encoder(spec: str | nn.Module, *, input_shape: tuple[int, ...], pretrained: bool = True) -> nn.Module:
    """Return an encoder of batches (n, *input_shape) to (n, dim), with the attribute `dim`.

    ``input_shape`` is (C, H, W) of images or (d,) of a table. ``spec`` is one of

    - ``fast``, a wide shallow network (see `FastEncoder`); with ``-wN`` N times as wide;
    - ``resnet10``, ``resnet14``, ``resnet18``, ``resnet34``, ``resnet50``; with ``-wN`` for N channels in the
      first stage instead of 64. Images up to 64 pixels keep their resolution in the stem (see `ResNet`).
    - ``efficientnet-lite0``, with ImageNet weights (extra ``pretrained``);
    - ``mlp`` or ``mlp-HxL`` for L layers of width H, by default 256x2; ``identity`` for rows that are
      embeddings already;
    - ``timm:NAME``, with the weights of timm, if timm is installed (extra ``timm``). They are downloaded once;
    - ``auto``: see `resolve_encoder`;
    - a module of your own that maps a batch to (n, dim). `dim` is found by a dry run on two rows.

    With ``pretrained=False`` all weights are random, which is enough to load a saved model into.
    """
    shape = _checked_shape(input_shape)
    if isinstance(spec, FastEncoder | ResNet | EfficientNetLite0 | MLP | PrecomputedEmbedding | CustomEncoder):
        embedding_width(spec, shape)  # raises if the data do not fit
        return spec
    if isinstance(spec, nn.Module):
        return CustomEncoder(spec, shape)
    if not isinstance(spec, str):
        raise ValueError(  # noqa: TRY004 - every mistake at the public edge is a ValueError
            f"an encoder is a name or an nn.Module; got {type(spec).__name__}. Known names: {_KNOWN}."
        )
    return _encoder_by_name(resolve_encoder(spec, shape), shape, pretrained)


def _encoder_by_name(name: str, shape: tuple[int, ...], pretrained: bool) -> nn.Module:
    if mlp := re.fullmatch(_MLP, name):
        hidden, layers = mlp.groups(default="")
        return MLP(math.prod(shape), hidden=int(hidden or 256), layers=int(layers or 2))
    fast, resnet = re.fullmatch(_FAST, name), re.fullmatch(_RESNET, name)
    if not (fast or resnet or name in (_LITE0, "identity") or name.startswith("timm:")):
        close = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown encoder {name!r}; the closest known is {close!r}. Known: {_KNOWN}.")
    if len(shape) != (1 if name == "identity" else 3):
        takes = "embeddings (d,)" if name == "identity" else "images (C, H, W)"
        raise ValueError(
            f"encoder {name!r} takes {takes}; the data has shape {shape}. Use 'auto', or 'identity' for embeddings."
        )
    if name == "identity":
        return PrecomputedEmbedding(shape[0])
    channels, height, width = shape
    if fast:
        return FastEncoder((channels, height, width), width=int(fast[1] or 1))
    if resnet:
        stem: Stem = "32x32" if max(height, width) <= LARGEST_FOR_SMALL_STEM else "224x224"
        return ResNet(int(resnet[1]), width=int(resnet[2] or PUBLISHED_WIDTH), in_channels=channels, stem=stem)
    if name != _LITE0:
        module, pixels = timm_module(name.removeprefix("timm:"), shape, pretrained=pretrained)
        return CustomEncoder(module, shape, pixels)
    if channels not in (1, 3):
        raise ValueError(f"encoder {name!r} takes images with 1 or 3 channels; got {channels}. Use 'fast'.")
    encoder = EfficientNetLite0()
    if pretrained:
        encoder.load_imagenet_weights()
    return encoder


def split_encoder(encoder: nn.Module, n_last: int) -> tuple[nn.Module, nn.Module]:
    """Return the first blocks of an encoder and its last ``n_last`` as two modules with the same weights."""
    most = len(encoder.layers) - 1 if isinstance(encoder, EfficientNetLite0) else 0
    if n_last > most:
        raise ValueError(
            f"train_blocks must be at most {most} for encoder {type(encoder).__name__}; got {n_last}. "
            "Leave it out to train the whole encoder."
        )
    if not isinstance(encoder, EfficientNetLite0) or n_last == 0:
        return encoder, nn.Identity()
    return encoder.split(n_last)


def embedding_dim(encoder: nn.Module) -> int:
    """Return the width of the output of an encoder from `build_encoder`."""
    dim = encoder.dim
    assert isinstance(dim, int)
    return dim


def _checked_shape(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    shape = tuple(input_shape)
    if len(shape) not in (1, 3) or any(side < 1 for side in shape):
        raise ValueError(f"input_shape is (C, H, W) of images or (d,) of a table, without the batch; got {shape}.")
    return shape
