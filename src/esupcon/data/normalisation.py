"""From stored values to what a model sees: the batch's kind, its statistics, its normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esupcon.data.recipes import ImageRecipe, Recipe, TableRecipe

__all__ = ["ChannelStatistics", "Numbers", "channel_statistics", "is_table", "normalise", "per_channel"]

#: One number for all channels (or features), or one for each.
Numbers = float | Sequence[float] | NDArray[np.floating] | Tensor


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
        centre, spread = (v.to(images.device) for v in per_channel(images, mean, std, TableRecipe()))
        return ((images - centre) / spread).to(torch.float32)
    centre, spread = (v.view(-1, 1, 1).to(images.device) for v in per_channel(images, mean, std, ImageRecipe()))
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


def is_table(batch: Tensor) -> bool:
    """True for a floating-point table (n, d), False for uint8 images (n, C, H, W); all else is refused."""
    if not isinstance(batch, Tensor):
        raise ValueError(  # noqa: TRY004 - every mistake at the public edge is a ValueError
            f"a batch is a torch tensor; got {type(batch).__name__}. Pass torch.from_numpy(array)."
        )
    shape = tuple(batch.shape)
    if batch.ndim == 2 and batch.is_floating_point():
        if not torch.isfinite(batch).all():
            raise ValueError(
                f"a table must hold finite numbers; this one of shape {shape} has NaN or inf. Impute it first."
            )
        return True
    if batch.ndim != 4 or batch.dtype != torch.uint8 or shape[1] not in (1, 3) or 0 in shape[2:]:
        raise ValueError(
            "a batch is uint8 images (n, C, H, W) with 1 or 3 channels, or a floating-point table (n, d); "
            f"got {batch.dtype} of shape {shape}."
        )
    return False


def per_channel(batch: Tensor, mean: Numbers | None, std: Numbers | None, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel of the batch, on the CPU; the recipe's where None is given."""
    channels = batch.shape[1]
    dtype = torch.promote_types(batch.dtype, torch.float32)
    found = []
    for name, given in (("mean", recipe.mean if mean is None else mean), ("std", recipe.std if std is None else std)):
        values = torch.as_tensor(given, dtype=dtype, device="cpu").flatten()
        if len(values) not in (1, channels):
            raise ValueError(f"{name} is one number or one for each of {channels} channels; got {len(values)}.")
        if not torch.isfinite(values).all() or (name == "std" and (values <= 0).any()):
            raise ValueError(f"{name} must be finite{', and above 0' * (name == 'std')}; got {values.tolist()}.")
        found.append(values.expand(channels))
    return found[0], found[1]
