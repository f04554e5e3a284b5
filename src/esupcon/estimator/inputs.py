"""What X may be, and how it becomes the arrays a network trains on: uint8 images (n, C, H, W) or rows of numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esupcon.data import load_images
from esupcon.data.augment import channel_statistics, normalise

__all__ = ["Form", "ImageForm", "TableForm", "holds_images", "images_form", "is_paths"]

#: Files of unknown sizes become squares of this side: what a small network sees whole, and quick without a GPU.
DEFAULT_SIDE = 32
Floats = NDArray[np.float64]


@dataclass
class TableForm:
    """Rows of d numbers, standardised: (x - mean) / scale, with scale 1 for a constant column."""

    mean: Floats
    variance: Floats
    n_seen: int
    standardise: bool = True

    @classmethod
    def of(cls, X: Floats, *, standardise: bool) -> TableForm:
        return cls(X.mean(axis=0), X.var(axis=0), len(X), standardise)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.mean.shape

    @property
    def centre(self) -> Floats:
        return self.mean if self.standardise else np.zeros_like(self.mean)

    @property
    def scale(self) -> Floats:
        """The deviation of each column; what is within rounding of constant is left at its own scale."""
        rounding = 10 * np.finfo(np.float64).eps * np.abs(self.mean)
        deviation = np.sqrt(self.variance)
        return np.where((deviation <= rounding) | (not self.standardise), 1.0, deviation)

    def update(self, X: Floats) -> None:
        """Moments of the rows so far and of these: for learning by instalments."""
        n, m = self.n_seen, len(X)
        delta = X.mean(axis=0) - self.mean
        self.variance = (n * self.variance + m * X.var(axis=0) + delta**2 * (n * m / (n + m))) / (n + m)
        self.mean = self.mean + delta * (m / (n + m))
        self.n_seen = n + m

    def to_network(self, rows: NDArray[Any]) -> Tensor:
        return torch.from_numpy((rows - self.centre) / self.scale)

    def for_training(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        return self.to_network(rows).numpy().astype(np.float32)


@dataclass
class ImageForm:
    """Images of one size. Values from `low` to `high` become 0 to 255; `mean` and `std` are of each channel."""

    channels: int
    height: int
    width: int
    low: float = 0.0
    high: float = 255.0
    mean: tuple[float, ...] = field(default=(0.5,))
    std: tuple[float, ...] = field(default=(0.25,))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.channels, self.height, self.width

    def learn_statistics(self, images: NDArray[np.uint8]) -> None:
        found = channel_statistics(images)
        self.mean, self.std = found.mean, found.std

    def arrays(self, X: Any) -> NDArray[np.uint8]:
        """X, an array or a list of files, as uint8 (n, C, H, W)."""
        if is_paths(X):
            return read_files(X, (self.height, self.width), self.channels)
        images = channels_first(_array(X))
        if images.shape[1:] != self.input_shape:
            raise ValueError(
                f"X has images of {_size(images.shape[1:])}, but ContrastiveClassifier is expecting "
                f"{_size(self.input_shape)} as input."
            )
        return self._as_bytes(images)

    def to_network(self, images: NDArray[Any]) -> Tensor:
        return normalise(torch.from_numpy(np.array(images, order="C")), self.mean, self.std)

    def for_training(self, images: NDArray[Any]) -> NDArray[Any]:
        return images

    def _as_bytes(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        if images.dtype == np.uint8 and (self.low, self.high) == (0.0, 255.0):
            return images
        share = (images.astype(np.float32) - np.float32(self.low)) / np.float32((self.high - self.low) or 1.0)
        pixels: NDArray[np.uint8] = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
        return pixels


Form = TableForm | ImageForm


def is_paths(X: Any) -> bool:
    """A list, array or series of file names."""
    if isinstance(X, str | os.PathLike):
        raise ValueError(  # noqa: TRY004 - a mistake of value to the user, who passed a path
            f"X must hold one sample or more; got the single path {str(X)!r}. Pass a list of paths."
        )
    if hasattr(X, "ndim"):
        values = np.asarray(X) if X.ndim == 1 else np.empty(0)
        if values.dtype.kind not in "OUT":
            return False
        X = values.tolist()
    return isinstance(X, Sequence) and len(X) > 0 and all(isinstance(name, str | os.PathLike) for name in X)


def holds_images(X: Any) -> bool:
    """Whether X is pictures rather than a table: file names, or an array of three or four dimensions."""
    if is_paths(X):
        return True
    if hasattr(X, "ndim"):
        return X.ndim in (3, 4)
    try:
        return isinstance(X, Sequence) and np.ndim(X[0] if len(X) else 0) in (2, 3)
    except ValueError:  # rows of unequal length: scikit-learn's own message is for tables
        return False


def images_form(X: Any, image_size: int | tuple[int, int] | None) -> tuple[ImageForm, NDArray[np.uint8]]:
    """The form of training images, and they in that form."""
    if is_paths(X):
        height, width = _sides(DEFAULT_SIDE if image_size is None else image_size)
        form = ImageForm(3, height, width)
        images = form.arrays(X)
    else:
        given = channels_first(_array(X))
        if image_size is not None and _sides(image_size) != given.shape[2:]:
            raise ValueError(
                f"image_size is for lists of files; X is an array of {given.shape[2]}x{given.shape[3]} pixels. "
                "Resize it before, or leave image_size at None."
            )
        low, high = _value_range(given)
        form = ImageForm(given.shape[1], given.shape[2], given.shape[3], low, high)
        images = form.arrays(X)
    form.learn_statistics(images)
    return form, images


def channels_first(X: NDArray[Any]) -> NDArray[Any]:
    """(n, H, W), (n, H, W, C) or (n, C, H, W) as (n, C, H, W). Where both could be meant, channels are last."""
    if 0 in X.shape:
        raise ValueError(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
    if X.ndim == 3:
        return X[:, None]
    if X.ndim == 4 and X.shape[3] in (1, 3):
        return X.transpose(0, 3, 1, 2)
    if X.ndim == 4 and X.shape[1] in (1, 3):
        return X
    remedy = " Drop the alpha channel: X[..., :3]." if X.ndim == 4 and 4 in (X.shape[1], X.shape[3]) else ""
    raise ValueError(
        f"images are (n, H, W), (n, H, W, C) or (n, C, H, W) with 1 or 3 channels; got shape {X.shape}.{remedy}"
    )


def read_files(paths: Any, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Every file as an image; one that cannot be read is an error, since its row would be missing."""
    names = [os.fspath(path) for path in paths]
    parts, unreadable = [], []
    for batch in load_images(names, size, channels):
        parts.append(batch.images)
        unreadable += batch.skipped
    if unreadable:
        name, reason = unreadable[0]
        raise ValueError(
            f"every path in X must be a readable image; {len(unreadable)} of {len(names)} are not, first {name} "
            f"({reason}). Leave them out of X and y."
        )
    return np.concatenate(parts)


def _array(X: Any) -> NDArray[Any]:
    values = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"images must be arrays of real numbers; got dtype {values.dtype}. Convert them first.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        kind = "NaN" if np.isnan(values).any() else "infinity"
        raise ValueError(f"Input X contains {kind}. Images must be finite: repair or leave out these samples.")
    return values


def _value_range(images: NDArray[Any]) -> tuple[float, float]:
    """0 to 255 for bytes, 0 to 1 for fractions; else the range found, stretched to bytes where it nearly is theirs."""
    if images.dtype == np.uint8:
        return 0.0, 255.0
    low, high = float(images.min()), float(images.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    if low >= 0 and 128 <= high <= 255:
        return 0.0, 255.0
    return min(low, 0.0), high


def _sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return int(height), int(width)


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{height}x{width} pixels and {channels} channel{'s' * (channels > 1)}"
