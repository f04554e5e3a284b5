"""Labels and probabilities for image files, as they come: in memory that does not grow with their number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from esupcon.data import load_images
from esupcon.data.folders import image_files_below
from esupcon.pipeline.trained import TrainedModel

BATCH = 128
Report = Callable[[str, str], None]


@dataclass(frozen=True)
class Prediction:
    """`ranked` holds (label, probability), likeliest first."""

    path: str
    ranked: tuple[tuple[str, float], ...]


def predict_files(
    model: TrainedModel, paths: Iterable[str], *, top_k: int = 1, unreadable: Report, workers: int | None = None
) -> Iterator[Prediction]:
    """One prediction for every image file, in order; a folder stands for the images below it.

    `unreadable(path, reason)` is called for what gave none. Probabilities are calibrated where the model is.
    """
    if not 1 <= top_k <= len(model.classes):
        raise ValueError(f"top_k must be from 1 to the {len(model.classes)} classes of the model; got {top_k}.")
    channels, height, width = model.image_shape
    batches = load_images(_files(paths, unreadable), (height, width), channels, batch_size=BATCH, workers=workers)
    for batch in batches:
        for path, reason in batch.skipped:
            unreadable(str(path), reason)
        if not batch.paths:
            continue
        probabilities = model.probabilities(batch.images)
        for path, row in zip(batch.paths, probabilities, strict=True):
            # A stable sort: among equals the first class wins, as in argmax.
            best = np.argsort(-row, kind="stable")[:top_k]
            yield Prediction(path, tuple((model.classes[k], float(row[k])) for k in best))


def _files(paths: Iterable[str], unreadable: Report) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112 - names that are no valid text must pass too
            yield path
            continue
        no_files: list[tuple[str, str]] = []
        found = image_files_below(Path(path), no_files)
        for name, reason in no_files:
            unreadable(str(name), reason)
        if not found:
            unreadable(path, "the folder holds no images")
        yield from found
