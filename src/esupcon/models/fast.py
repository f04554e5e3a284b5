"""The encoder `fast`: a wide, shallow convolutional network on whitened patches, after Keller Jordan's airbench.

Wide layers keep the matrix units of ordinary processors busy, which narrow residual networks do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Smaller images would be pooled to nothing.
SMALLEST_SIDE = 8
#: Images with a longer side above this are whitened by 3x3 filters with stride 2, others by 2x2 filters.
LARGEST_FOR_SMALL_FILTERS = 64
#: Training images that whitening is computed from, at most.
WHITENING_IMAGES = 5_000
MAX_WIDTH_FACTOR = 16
# Added to eigenvalues, so that directions in which patches hardly vary are not amplified without bound.
_WHITENING_EPSILON = 5e-4
# Of the largest eigenvalue: patches do not vary in directions below it.
_NEGLIGIBLE = 1e-9
_IMAGES_AT_ONCE = 256


class Whitening(nn.Module):
    """A convolution whose filters make patches of the training images uncorrelated; then GELU.

    The filters are a buffer: computed by `fit`, saved with the model, never trained. Each direction has two filters, of
    opposite signs, so that GELU loses nothing. Before `fit` they select single pixels.
    """

    filters: Tensor
    fitted: Tensor
    #: Its bias is trained in the first steps only, in this share of them.
    trained_share = 0.375

    def __init__(self, in_channels: int, size: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        dim = in_channels * size * size
        self.register_buffer("filters", _with_both_signs(torch.eye(dim)).view(-1, in_channels, size, size))
        self.register_buffer("fitted", torch.tensor(False))
        self.bias = nn.Parameter(torch.zeros(2 * dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(F.conv2d(x, self.filters, self.bias, self.stride))

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Set the filters to the eigenvectors of the uncentred covariance of patches, by 1 / sqrt(eigenvalue).

        `images` (n, C, H, W) are normalised. Images without variance give finite filters, of length 1 / sqrt(5e-4).
        """
        size, dim = self.filters.shape[-1], len(self.filters) // 2
        covariance, n_patches = torch.zeros(dim, dim, dtype=torch.float64), 0
        for some in images.split(_IMAGES_AT_ONCE):
            patches = F.unfold(some.cpu().double(), size).transpose(1, 2).reshape(-1, dim)
            covariance += patches.T @ patches
            n_patches += len(patches)
        values, vectors = torch.linalg.eigh(covariance / n_patches)
        directions = (vectors / (values.clamp_min(0) + _WHITENING_EPSILON).sqrt()).T.flip(0)
        # Grey images stored in colour vary in a third of the directions. The others would give constant channels,
        # whose noise batch norm amplifies; they are replaced by repetitions.
        n_varying = max(1, int((values > _NEGLIGIBLE * values.max()).sum()))
        directions = directions[torch.arange(dim) % n_varying]
        self.filters.copy_(_with_both_signs(directions).view_as(self.filters))
        self.fitted.fill_(True)


def _with_both_signs(directions: Tensor) -> Tensor:
    return torch.cat([directions, -directions])


class _BatchNorm(nn.BatchNorm2d):
    """Batch norm with a trained bias, a fixed scale of 1 and fast statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-5, momentum=0.4)
        del self.weight
        self.register_buffer("weight", torch.ones(channels))


class FastEncoder(nn.Module):
    """Whitened patches, then groups of [conv, max pooling, norm, GELU, conv, norm, GELU]: (n, C, H, W) -> (n, dim).

    The groups have 64, 256, 256, ... channels times ``width``; ``dim`` is that of the last. Their number depends on the
    shorter side, so that the last map has a shorter side of 1 to 5 pixels: two groups for 8 pixels, three for 32, five
    for 224. The embedding is the maximum over the last map.

    Call `whitening.fit` with training images before the first step. Train convolutions with Muon.
    """

    def __init__(self, input_shape: tuple[int, int, int], *, width: int = 1) -> None:
        super().__init__()
        in_channels, *sides = input_shape
        if min(sides) < SMALLEST_SIDE:
            raise ValueError(
                f"encoder 'fast' needs images of at least {SMALLEST_SIDE} x {SMALLEST_SIDE} pixels; "
                f"got {sides[0]} x {sides[1]}. Resize the images, or use 'mlp'."
            )
        if not 1 <= width <= MAX_WIDTH_FACTOR:
            raise ValueError(f"the width of 'fast' is a factor from 1 to {MAX_WIDTH_FACTOR}; got {width}.")
        large = max(sides) > LARGEST_FOR_SMALL_FILTERS and min(sides) >= 2 * SMALLEST_SIDE
        self.whitening = Whitening(in_channels, size=3 if large else 2, stride=2 if large else 1)
        map_side = min(sides) / (2 if large else 1)
        map_sides = [(side - 3) // 2 + 1 if large else side - 1 for side in sides]
        self.groups = nn.Sequential()
        channels = len(self.whitening.bias)
        for index in range(max(2, round(math.log2(map_side / 4)))):
            out_channels = width * (64 if index == 0 else 256)
            map_sides = [side // 2 for side in map_sides]
            self.groups.append(_group(channels, out_channels, map_sides))
            channels = out_channels
        self.dim = channels

    def forward(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.groups(self.whitening(x)).amax(dim=(2, 3))
        return embedding


def _group(in_channels: int, channels: int, pooled: list[int]) -> nn.Sequential:
    """Return a group whose maps have the sides `pooled` after pooling; along a side of 1 a filter needs one row."""
    return nn.Sequential(
        _convolution(in_channels, channels),
        nn.MaxPool2d(2),
        _BatchNorm(channels),
        nn.GELU(),
        _convolution(channels, channels, [1 if side == 1 else 3 for side in pooled]),
        _BatchNorm(channels),
        nn.GELU(),
    )


def _convolution(in_channels: int, out_channels: int, size: Sequence[int] = (3, 3)) -> nn.Conv2d:
    """Return a convolution that copies its input to its first channels."""
    height, width = size
    padding = (height // 2, width // 2)
    convolution = nn.Conv2d(in_channels, out_channels, (height, width), padding=padding, bias=False)
    with torch.no_grad():
        nn.init.dirac_(convolution.weight[:in_channels])
    return convolution
