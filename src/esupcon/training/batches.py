"""Training data, how they are cut into batches, and how a batch becomes two views. All seeds derive from here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esupcon.classifier.preprocessing import ImagePreprocessing, Preprocessing, Rows, fit_preprocessing
from esupcon.data.augment import two_views
from esupcon.models import split_encoder

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def derive_seed(seed: int, *place: int | str) -> int:
    """Return a 63-bit seed for one place of a run, for example (stage, epoch, step).

    All randomness is derived this way, so a checkpoint holds no random state.
    """
    text = "/".join(str(part) for part in (seed, *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def seed_layers(seed: int, device: torch.device) -> None:
    """Seed layers that draw from torch's own generator, such as dropout.

    `torch.manual_seed` would format a stack trace for every kind of device that is absent: three per step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@dataclass(frozen=True, eq=False)
class TrainData:
    """Training samples, and optionally held-out ones on which progress is measured.

    `x` holds rows as `preprocessing` returns them: uint8 images (n, C, H, W) or a floating-point table (n, d). `y` are
    class numbers below `n_classes`. By default the channel statistics of images are those of `x`, and tables are used
    as they are. `x_test` is only compared with the other parts, to report copies; `classes` names them in messages.
    """

    x: Rows
    y: NDArray[np.int64]
    n_classes: int
    x_held: Rows | None = None
    y_held: NDArray[np.int64] | None = None
    preprocessing: Preprocessing = None  # type: ignore[assignment]  # set below
    x_test: Rows | None = None
    classes: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        images = self.x.ndim == 4 and self.x.dtype == np.uint8 and self.x.shape[1] in (1, 3)
        table = self.x.ndim == 2 and np.issubdtype(self.x.dtype, np.floating)
        if not (images or table):
            raise ValueError(
                "training data must be uint8 images (n, C, H, W) with 1 or 3 channels, or a floating-point table "
                f"(n, d); got {self.x.dtype} {self.x.shape}."
            )
        if len(self.x) < 2 or len(self.x) != len(self.y):
            raise ValueError(
                f"training needs two samples or more, each with a label; got {len(self.x)} and {len(self.y)}."
            )
        if self.y.min() < 0 or self.y.max() >= self.n_classes:
            raise ValueError(
                f"labels must lie in 0..{self.n_classes - 1}; they range from {self.y.min()} to {self.y.max()}."
            )
        if self.preprocessing is None:
            object.__setattr__(self, "preprocessing", fit_preprocessing(self.x))

    def normalised_by(self, mean: tuple[float, ...], std: tuple[float, ...]) -> TrainData:
        """Return the same images with another normalisation, as a pretrained encoder expects it; grey ones by means."""
        assert isinstance(self.preprocessing, ImagePreprocessing)
        if self.preprocessing.channels == 1:
            mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
        update = {"mean": mean, "std": std}
        return replace(self, preprocessing=self.preprocessing.model_copy(update=update))

    @property
    def is_table(self) -> bool:
        """Whether the samples are rows of a table and not images."""
        return self.x.ndim == 2

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of every value of all parts and of the preprocessing."""
        digest = hashlib.sha256(f"{self.n_classes} {self.preprocessing.model_dump_json()}".encode())
        for array in (self.x, self.y, self.x_held, self.y_held, self.x_test):
            digest.update(b"none" if array is None else f"{array.shape} {array.dtype}".encode())
            for start in range(0, 0 if array is None else len(array), 4096):
                digest.update(np.ascontiguousarray(array[start : start + 4096]).tobytes())  # type: ignore[index]
        return digest.hexdigest()

    def augmentation(self, name: str) -> str:
        """Return what `auto` stands for: `digits` for small or grey images, whose meaning a flip or a change of colour
        may alter, `simclr` for other images, `table` for tables."""
        if name != "auto":
            return name
        if self.is_table:
            return "table"
        channels, height, width = self.x.shape[1:]
        return "digits" if channels == 1 or min(height, width) <= 12 else "simclr"


@dataclass(frozen=True)
class BatchPlan:
    """Batches of equal size for n samples, none larger than asked for, with nearly every sample used."""

    n: int
    batch_size: int
    steps_per_epoch: int

    @classmethod
    def of(cls, n: int, batch_size: int, world_size: int = 1) -> BatchPlan:
        """Return the plan for `world_size` processes, each of which encodes the same number of samples."""
        steps = math.ceil(n / batch_size)
        size = n // steps
        size -= size % world_size
        if size < max(2, world_size):
            raise ValueError(f"a batch needs two samples or more for each process; got {n} samples for {world_size}.")
        return cls(n, size, steps)

    def order(
        self,
        seed: int,
        stage: int,
        epoch: int,
        balance: NDArray[np.int64] | None = None,
        groups: tuple[NDArray[np.int64], int] | None = None,
    ) -> NDArray[np.int64]:
        """Return the samples of one epoch in the order they are drawn.

        With labels in `balance` every class fills the same share: its samples are repeated in rounds, each round in
        another order, so that none is drawn twice before all were drawn once. With labels and a number in `groups`,
        that number of samples of a class follow each other; what is left of a class forms a smaller group.
        """
        rng = np.random.default_rng(derive_seed(seed, "order", stage, epoch))
        if groups is not None:
            labels, size = groups
            classes = [rng.permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)]
            parts = [rows[start : start + size] for rows in classes for start in range(0, len(rows), size)]
            return np.concatenate([parts[place] for place in rng.permutation(len(parts))])
        if balance is None:
            return rng.permutation(self.n)
        present = np.unique(balance)
        share = math.ceil(self.n / len(present))
        drawn = []
        for k in present:
            members = np.flatnonzero(balance == k)
            rounds = [rng.permutation(members) for _ in range(math.ceil(share / len(members)))]
            drawn.append(np.concatenate(rounds)[:share])
        return rng.permutation(np.concatenate(drawn))[: self.n]

    def indices(self, order: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        """Return the samples of one step, sorted: neighbours in a memory-mapped file are read together."""
        return np.sort(order[step * self.batch_size : (step + 1) * self.batch_size])


def two_views_of(data: TrainData, rows: Rows, augmentation: str, seed: int, device: torch.device) -> Tensor:
    """Return two views of some rows of the data, view one of all before view two of all."""
    preprocessing, generator = data.preprocessing, torch.Generator().manual_seed(seed)
    if isinstance(preprocessing, ImagePreprocessing):
        images = torch.from_numpy(np.ascontiguousarray(rows)).to(device)
        views = two_views(images, generator, augmentation, mean=preprocessing.mean, std=preprocessing.std)
        return views.contiguous(memory_format=torch.channels_last)  # the faster layout for convolutions
    return two_views(preprocessing.tensor(rows, device).float(), generator, augmentation)


#: Images whose views are made at once for frozen blocks, and values that pass through these at once on CPUs: memory for
#: more is returned to the system each time. Four images of 192 pixels take three quarters of the time of 32.
FROZEN_BATCH, FROZEN_VALUES = 16, 2**19


class FrozenBlocks:
    """The first blocks of an encoder, which are not trained, and what they return for a few views of every image.

    Their outputs are computed once, so that a step costs no more than the blocks that are trained: `rest`.
    """

    def __init__(self, encoder: nn.Module, n_trained: int, *, mirror: bool = False) -> None:
        self.blocks, self.rest = split_encoder(encoder, n_trained)
        self.dtype = next((value.dtype for value in encoder.parameters()), torch.float32)
        self.views: list[Tensor] = []
        self.mirror = mirror
        self._plain: dict[int, tuple[Rows, list[Tensor]]] = {}  # with the array, so that no other gets its id

    @torch.no_grad()
    def compute_views(
        self,
        data: TrainData,
        augmentation: str,
        n_views: int,
        seed: int,
        fabric: Fabric,
        check: Callable[[], None],
    ) -> None:
        """Compute `n_views` views of every training image; `check` is called between batches and may raise.

        Views are computed in pairs. Several processes take turns and send each other what they computed.
        """
        self.blocks.eval()
        pairs: list[list[Tensor]] = [[] for _ in range(math.ceil(n_views / 2))]
        for pair in range(fabric.global_rank, len(pairs), fabric.world_size):
            parts = []
            for start in range(0, len(data.x), FROZEN_BATCH):
                check()
                rows, place = data.x[start : start + FROZEN_BATCH], derive_seed(seed, "cached", pair, start)
                views = two_views_of(data, rows, augmentation, place, fabric.device).to(self.dtype)
                parts.append(self._through_blocks(views).chunk(2))
            pairs[pair] = [torch.cat(view) for view in zip(*parts, strict=True)]
        for pair, computed in enumerate(pairs):
            self.views += fabric.broadcast(computed, src=pair % fabric.world_size)

    def _through_blocks(self, x: Tensor) -> Tensor:
        most = max(1, FROZEN_VALUES // x[0].numel()) if x.device.type == "cpu" else len(x)
        return torch.cat([self.blocks(part) for part in x.split(most)])

    def two_views_of(self, indices: NDArray[np.int64], seed: int) -> Tensor:
        """Return two different views of the chosen samples, drawn from those that were computed."""
        drawn = np.random.default_rng(seed).permuted(np.tile(np.arange(len(self.views)), (len(indices), 1)), axis=1)
        pairs = zip(indices.tolist(), drawn.tolist(), strict=True)
        chosen = [(self.views[order[0]][row], self.views[order[1]][row]) for row, order in pairs]
        return torch.stack([first for first, _ in chosen] + [second for _, second in chosen])

    @torch.no_grad()
    def plain(self, rows: Rows, data: TrainData, device: torch.device) -> list[Tensor]:
        """Return the output for un-augmented rows, and with `mirror` for their mirror images.

        The outputs for the same array are computed once.
        """
        if id(rows) not in self._plain:
            self.blocks.eval()
            parts = [rows[start : start + FROZEN_BATCH] for start in range(0, len(rows), FROZEN_BATCH)]
            found = []
            for part in parts:
                x = data.preprocessing.tensor(part, device).to(self.dtype)
                found.append([self._through_blocks(one) for one in ([x, x.flip(-1)] if self.mirror else [x])])
            self._plain[id(rows)] = rows, [torch.cat(outputs) for outputs in zip(*found, strict=True)]
        return self._plain[id(rows)][1]
