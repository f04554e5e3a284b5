"""Shim: moves to esupcon.classifier.preprocessing; to be deleted."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esupcon.data.augment import Numbers, is_table, per_channel
from esupcon.data.augmentations import ImageAugmentation, TableAugmentation


class ChannelStatistics(NamedTuple):
    """Mean and standard deviation of each channel (pixels in [0, 1]) or each feature of a table."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@torch.no_grad()
def normalise(images: Tensor, mean: Numbers | None = None, std: Numbers | None = None) -> Tensor:
    """The un-augmented batch as models see it: ``(x - mean) / std`` in float32, uint8 pixels as x in [0, 1].

    A floating-point table (n, d) is taken as it is. Left out, mean and std are those of the recipes.
    """
    if is_table(images):
        centre, spread = (v.to(images.device) for v in per_channel(images, mean, std, TableAugmentation()))
        return ((images - centre) / spread).to(torch.float32)
    centre, spread = (v.view(-1, 1, 1).to(images.device) for v in per_channel(images, mean, std, ImageAugmentation()))
    return (images * (1 / (255 * spread))).sub_(centre / spread)


def channel_statistics(x: NDArray[np.generic] | Tensor) -> ChannelStatistics:
    """Mean and standard deviation of each channel of a uint8 array (N, C, H, W), or feature of a table (N, d).

    A channel that is constant has deviation 1, so that normalising it gives zeros. Arrays on disk are read
    in pieces.
    """
    values = x.detach().cpu().numpy() if isinstance(x, Tensor) else x
    if values.ndim == 4 and values.dtype == np.uint8 and values.size:
        counts = np.zeros((values.shape[1], 256), dtype=np.int64)
        step = max(1, 2**20 // math.prod(values.shape[2:]))
        for start in range(0, len(values), step):
            block = values[start : start + step]
            for channel in range(values.shape[1]):
                counts[channel] += np.bincount(block[:, channel].reshape(-1), minlength=256)
        levels = np.arange(256) / 255
        share = counts / counts.sum(axis=1, keepdims=True)
        mean = share @ levels
        variance = (share * (levels - mean[:, None]) ** 2).sum(axis=1)
        constant = (counts > 0).sum(axis=1) == 1
    elif values.ndim == 2 and np.issubdtype(values.dtype, np.floating) and values.size:
        table = np.asarray(values, dtype=np.float64)
        mean, variance = table.mean(axis=0), table.var(axis=0)
        constant = np.ptp(table, axis=0) == 0
    else:
        raise ValueError(
            "channel_statistics needs a uint8 array (N, C, H, W) or a floating-point table (N, d), not empty; "
            f"got {values.dtype} of shape {values.shape}."
        )
    std = np.where(constant, 1.0, np.sqrt(variance))
    return ChannelStatistics(tuple(mean.tolist()), tuple(std.tolist()))
