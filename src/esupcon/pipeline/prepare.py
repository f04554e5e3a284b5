"""From a source to what a run trains on, is watched on and is tested on; and how that came about, on record."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.data import Dataset, load
from esupcon.data.scenarios import Scenario
from esupcon.data.scenarios import prepare as prepare_rows
from esupcon.training import TrainData

Log = Callable[[str], None]
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

# About so many images are seen in all, within sensible numbers of passes: small sets need many, large ones few.
_IMAGES_SEEN = 200_000
_FEWEST_EPOCHS, _MOST_EPOCHS = 20, 200


@dataclass(frozen=True)
class DataOptions:
    """How a source is read; every one means what it means to `esupcon.data.load`."""

    data_dir: str | None = None
    image_size: int | tuple[int, int] | None = None
    channels: int | None = None
    split_seed: int = 0
    test_fraction: float = 0.2
    n_per_class: int | None = None
    layout: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    strict: bool = False
    workers: int | None = None

    def load(self, source: str | os.PathLike[str], log: Log) -> Dataset:
        return load(source, log=log, **asdict(self))

    def record(self) -> dict[str, Any]:
        """What the test part depends on, where one is drawn."""
        return {"split_seed": self.split_seed, "test_fraction": self.test_fraction, "n_per_class": self.n_per_class}


@dataclass(frozen=True, eq=False)
class Prepared:
    dataset: Dataset
    train: TrainData
    x_held: Images
    y_held: Labels
    record: dict[str, Any] = field(repr=False)


def prepare(dataset: Dataset, scenario: Scenario, validation_fraction: float, seed: int) -> Prepared:
    """The scenario on the training part, then a stratified share of what it leaves held out.

    The held-out part is drawn after the scenario and carries the same wrong labels: whoever has noisy labels has
    no clean ones to watch a run by either. `n_train` counts both.
    """
    rows = prepare_rows(dataset, scenario, validation_fraction, seed)
    x_held, y_held = np.asarray(dataset.x_train[rows.held]), rows.y_held
    train = TrainData(
        np.asarray(dataset.x_train[rows.fit]),
        rows.y_fit,
        dataset.n_classes,
        x_held if len(y_held) else None,
        y_held if len(y_held) else None,
    )
    return Prepared(dataset, train, x_held, y_held, rows.record)


def default_epochs(n_train: int) -> int:
    """200,000 images' worth of passes, at least 20 and at most 200 of them."""
    return min(max(round(_IMAGES_SEEN / max(1, n_train)), _FEWEST_EPOCHS), _MOST_EPOCHS)


def has_drawn_test_part(dataset: Dataset) -> bool:
    """Whether the source came without a test part, so that `load` drew one from its images and said so."""
    return dataset.test_drawn
