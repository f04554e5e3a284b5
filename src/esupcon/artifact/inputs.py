"""What a classifier accepts, and how it becomes a batch for its network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from esupcon.artifact.config import ImagePreprocessing, TablePreprocessing
from esupcon.data.augment import normalise

__all__ = ["as_rows", "network_batch"]

Rows = NDArray[Any]


def as_rows(X: ArrayLike | Tensor, expected: ImagePreprocessing | TablePreprocessing) -> Rows:
    """X with channels first, or as a table: a view where it can be one, so that arrays on disk stay there."""
    if isinstance(expected, TablePreprocessing):
        return _table(X, expected)
    return _images(X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X), expected)


def network_batch(rows: Rows, preprocessing: ImagePreprocessing | TablePreprocessing) -> Tensor:
    """Normalised float32, on the CPU."""
    # Copied: torch warns about arrays that it could not write to.
    if isinstance(preprocessing, TablePreprocessing):
        table = torch.from_numpy(np.array(rows, dtype=np.float64, order="C"))
        return normalise(table, preprocessing.mean, preprocessing.scale)
    images = torch.from_numpy(np.array(rows, order="C"))
    return normalise(images, preprocessing.mean, preprocessing.std)


def _images(images: Rows, expected: ImagePreprocessing) -> Rows:
    channels, height, width = expected.input_shape
    first, last = (channels, height, width), (height, width, channels)
    known = f"(n, {channels}, {height}, {width}) or (n, {height}, {width}, {channels})"
    found = f"{images.dtype} of shape {images.shape}"
    if images.dtype != np.uint8:
        remedy = "Pass pixels of 0 to 255: (255 * X).round().astype(np.uint8) if they run from 0 to 1."
        raise ValueError(f"X must be uint8 images {known}; got {found}. {remedy}")
    if images.shape[1:] == first:
        return images
    if images.shape[1:] == last:
        return images.transpose(0, 3, 1, 2)
    if channels == 1 and images.shape[1:] == (height, width):
        return images[:, None]
    if images.shape in (first, last, (height, width)):
        remedy = "That is one image: pass X[None]."
    else:
        remedy = f"Load files with esupcon.data.load_images(paths, ({height}, {width}), {channels})."
    raise ValueError(f"X must be uint8 images {known}; got {found}. {remedy}")


def _table(X: ArrayLike | Tensor, expected: TablePreprocessing) -> Rows:
    features = len(expected.mean)
    names = getattr(X, "columns", None)
    if names is not None and expected.feature_names is not None and list(names) != list(expected.feature_names):
        place = next(
            (i for i, (a, b) in enumerate(zip(names, expected.feature_names, strict=False)) if a != b),
            min(len(names), features),
        )
        given = repr(names[place]) if place < len(names) else "nothing"
        wanted = repr(expected.feature_names[place]) if place < features else "nothing"
        raise ValueError(
            f"the columns of X must be those of training, in their order; column {place} should be {wanted} and is "
            f"{given}. Pass X[classifier.config.preprocessing.feature_names]."
        )
    table = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
    if table.ndim != 2 or table.shape[1] != features:
        remedy = "That is one row: pass it as X.reshape(1, -1)." if table.shape == (features,) else ""
        remedy = remedy or "Pass the features of training, in their order."
        raise ValueError(f"X must be a table (n, {features}); got shape {table.shape}. {remedy}")
    if table.dtype.kind == "O":
        try:
            table = table.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"X must hold numbers ({error}). Encode the rest as numbers, as in training.") from error
    if table.dtype.kind not in "fiub":
        raise ValueError(f"X must hold numbers; got {table.dtype}. Encode the rest as numbers, as in training.")
    broken = ~np.isfinite(table).all(axis=1)
    if broken.any():
        raise ValueError(
            f"X must hold finite numbers; {int(broken.sum())} of {len(table)} rows hold NaN or inf, first row "
            f"{int(broken.argmax())}. Impute them first, as in training."
        )
    return table
