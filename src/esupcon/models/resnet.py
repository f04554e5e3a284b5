"""ResNet encoders: images in, the globally averaged features of the last stage out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from esupcon.functional import check_choice

__all__ = ["LARGEST_FOR_SMALL_STEM", "MAX_WIDTH", "PUBLISHED_WIDTH", "RESNET_DEPTHS", "ResNet", "Stem"]

Stem = Literal["32x32", "224x224"]

#: Images with no side above this keep their resolution in the stem; larger ones are reduced four times.
LARGEST_FOR_SMALL_STEM = 64
#: Channels of the first stage in the published networks.
PUBLISHED_WIDTH = 64
#: Wider than any network in use: a typing error is named instead of filling the memory.
MAX_WIDTH = 4096


class _BasicBlock(nn.Module):
    """relu(x + bn(conv3x3(relu(bn(conv3x3(x)))))), as wide as its `channels`."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _convolution(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(in_channels, channels, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


class _Bottleneck(nn.Module):
    """1x1 down to `channels`, 3x3, 1x1 up to 4 `channels`; the 3x3 holds the stride, as is now usual."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = self.expansion * channels
        self.conv1 = _convolution(in_channels, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _convolution(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _convolution(channels, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


@dataclass(frozen=True)
class _Layout:
    block: type[_BasicBlock] | type[_Bottleneck]
    blocks: tuple[int, int, int, int]


# 18, 34 and 50 as He et al. published them; 10 and 14 are the usual shorter ones, with basic blocks.
_LAYOUTS = {
    10: _Layout(_BasicBlock, (1, 1, 1, 1)),
    14: _Layout(_BasicBlock, (2, 2, 1, 1)),
    18: _Layout(_BasicBlock, (2, 2, 2, 2)),
    34: _Layout(_BasicBlock, (3, 4, 6, 3)),
    50: _Layout(_Bottleneck, (3, 4, 6, 3)),
}
RESNET_DEPTHS = tuple(_LAYOUTS)


class ResNet(nn.Module):
    """A residual network without its classifier: (n, in_channels, H, W) -> (n, dim).

    The four stages have ``width``, 2, 4 and 8 ``width`` channels, ``dim`` is that of the last: 8 ``width``
    for depths 10, 14, 18 and 34, and 32 ``width`` for 50. Stem ``"32x32"`` is one 3x3 convolution of stride 1;
    ``"224x224"`` the published 7x7 of stride 2 and 3x3 max-pooling of stride 2. With ``zero_init_residual``
    every block starts as its shortcut.
    """

    def __init__(
        self,
        depth: int = 18,
        *,
        width: int = PUBLISHED_WIDTH,
        in_channels: int = 3,
        stem: Stem = "32x32",
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        if depth not in _LAYOUTS:
            raise ValueError(f"depth must be one of {', '.join(map(str, RESNET_DEPTHS))}; got {depth!r}.")
        if not 1 <= width <= MAX_WIDTH:
            raise ValueError(
                f"width must be 1 to {MAX_WIDTH} channels in the first stage; got {width}. "
                f"The published width is {PUBLISHED_WIDTH}."
            )
        check_choice("stem", stem, ("32x32", "224x224"))
        layout = _LAYOUTS[depth]
        self.stem = _small_stem(in_channels, width) if stem == "32x32" else _large_stem(in_channels, width)
        self.stages = nn.Sequential()
        channels = width
        for stage, blocks in enumerate(layout.blocks):
            inner = width * 2**stage
            chain = nn.Sequential()
            for index in range(blocks):
                halves = stage > 0 and index == 0
                chain.append(layout.block(channels, inner, stride=2 if halves else 1))
                channels = inner * layout.block.expansion
            self.stages.append(chain)
        self.dim = channels
        self._initialise(zero_init_residual)

    def _initialise(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(module, _BasicBlock | _Bottleneck):
                nn.init.zeros_(module.last_norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.stages(self.stem(x)).mean(dim=(2, 3))
        return pooled


def _small_stem(in_channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(_convolution(in_channels, width, 3), nn.BatchNorm2d(width), nn.ReLU(inplace=True))


def _large_stem(in_channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        _convolution(in_channels, width, 7, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def _convolution(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    """No bias: the batch norm after it has one."""
    return nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(_convolution(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))
