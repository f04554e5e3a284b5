"""What the loop reads: arrays, how they are cut into batches, and how a batch becomes two views."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esupcon.data.augment import ChannelStatistics, channel_statistics, normalise, two_views
from esupcon.engine.seeding import derive_seed, generator


@dataclass(frozen=True, eq=False)
class TrainData:
    """Training samples, and optionally held-out ones on which progress is measured.

    `x` is uint8 (n, C, H, W) for images or float32 (n, d) for tables already scaled; `y` int64 below `n_classes`.
    """

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    n_classes: int
    x_held: NDArray[np.generic] | None = None
    y_held: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        images = self.x.ndim == 4 and self.x.dtype == np.uint8
        table = self.x.ndim == 2 and self.x.dtype == np.float32
        if not (images or table):
            raise ValueError(
                "training data must be uint8 images (n, C, H, W) or a float32 table (n, d); "
                f"got {self.x.dtype} {self.x.shape}."
            )
        if len(self.x) < 2 or len(self.x) != len(self.y):
            raise ValueError(
                f"training needs two samples or more, each with a label; got {len(self.x)} and {len(self.y)}."
            )
        if self.y.min() < 0 or self.y.max() >= self.n_classes:
            raise ValueError(
                f"labels must lie in 0..{self.n_classes - 1}; they range from {self.y.min()} to {self.y.max()}."
            )

    @property
    def is_table(self) -> bool:
        return self.x.ndim == 2

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @cached_property
    def statistics(self) -> ChannelStatistics | None:
        """Mean and deviation of every channel; None for tables, which come scaled."""
        return None if self.is_table else channel_statistics(self.x)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any value of the training samples and labels."""
        digest = hashlib.sha256(f"{self.x.shape} {self.x.dtype} {self.n_classes}".encode())
        for start in range(0, len(self.x), 4096):
            digest.update(np.ascontiguousarray(self.x[start : start + 4096]).tobytes())
        digest.update(np.ascontiguousarray(self.y).tobytes())
        return digest.hexdigest()[:16]

    def recipe(self, augmentation: str) -> str:
        """`auto` by kind: tables; small or grey pictures, which a flip or a colour would spoil; everything else."""
        if augmentation != "auto":
            return augmentation
        if self.is_table:
            return "table"
        channels, height, width = self.x.shape[1:]
        return "digits" if channels == 1 or min(height, width) <= 12 else "simclr"

    def to_input(self, x: NDArray[np.generic], device: torch.device) -> Tensor:
        """Samples as the network takes them, un-augmented."""
        batch = torch.from_numpy(np.array(x)).to(device)  # a copy: mapped files may be read-only
        return batch if self.statistics is None else normalise(batch, self.statistics.mean, self.statistics.std)


@dataclass(frozen=True)
class BatchPlan:
    """How n samples are cut into batches: all of one size, none larger than asked for, nearly every sample used."""

    n: int
    batch_size: int
    steps_per_epoch: int

    @classmethod
    def of(cls, n: int, batch_size: int, world_size: int = 1) -> BatchPlan:
        steps = math.ceil(n / batch_size)
        size = n // steps
        size -= size % world_size
        if size < max(2, world_size):
            raise ValueError(f"a batch needs two samples or more for each process; got {n} samples for {world_size}.")
        return cls(n, size, steps)

    def order(self, seed: int, stage: int, epoch: int, balance: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The samples of one epoch in the order they are drawn.

        With labels in `balance` every class fills the same share: its samples are gone through as often as it takes,
        each time in another order, so that none is drawn twice before all were drawn once.
        """
        rng = np.random.default_rng(derive_seed(seed, "order", stage, epoch))
        if balance is None:
            return rng.permutation(self.n)
        present = np.unique(balance)
        share = math.ceil(self.n / len(present))
        drawn = [_rounds(np.flatnonzero(balance == k), share, rng) for k in present]
        return rng.permutation(np.concatenate(drawn))[: self.n]

    def indices(self, order: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        # Sorted, because neighbours on disk are read together where the array is memory-mapped.
        return np.sort(order[step * self.batch_size : (step + 1) * self.batch_size])


def _rounds(members: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    rounds = [rng.permutation(members) for _ in range(math.ceil(count / len(members)))]
    return np.concatenate(rounds)[:count]


def batch_of_views(
    data: TrainData,
    indices: NDArray[np.int64],
    recipe: str,
    seed: int,
    place: tuple[int, int, int],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Both views of the chosen samples, view one of all before view two of all, and their labels."""
    batch = torch.from_numpy(data.x[indices]).to(device)
    statistics = data.statistics
    views = two_views(
        batch,
        generator(seed, "views", *place),
        recipe,
        mean=None if statistics is None else statistics.mean,
        std=None if statistics is None else statistics.std,
    )
    return views, torch.from_numpy(data.y[indices]).to(device).repeat(2)
