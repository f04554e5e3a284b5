"""Preprocessing: from what a user passes as X to rows, and from rows to the tensor that a network takes.

Rows are uint8 images (n, C, H, W) or float64 tables (n, d). Training, prediction and export all go through here.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, NonNegativeFloat, PositiveFloat, StringConstraints, model_validator
from sklearn.utils import assert_all_finite, check_array
from torch import Tensor, nn

from esupcon.data import load_images, sources
from esupcon.data.decode import SAMPLED_HEADERS, DecodeSpec, choose_side, image_dimensions, picture_pixels
from esupcon.probability.metrics import Record

#: Ranges that bytes and fractions have; others are learnt from the values of the training images.
STANDARD_RANGES = ((0.0, 255.0), (0.0, 1.0))
#: Bounds of what a stored model may claim.
MAX_SIDE, MAX_FEATURES, MAX_TEXT = 4096, 2**20, 4096

Rows = NDArray[Any]
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT)]


class ImagePreprocessing(Record):
    """Images of one size. Values from `low` to `high` become bytes x; the tensor is (x / 255 - mean) / std."""

    kind: Literal["image"] = "image"
    channels: Literal[1, 3]
    image_size: tuple[Side, Side]
    mean: tuple[float, ...]
    std: tuple[PositiveFloat, ...]
    low: float = 0.0
    high: float = 255.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean and std need one entry for each of the {self.channels} channels")
        if self.high < self.low:
            raise ValueError(f"high must not be below low; got {self.low:g} and {self.high:g}")
        return self

    @classmethod
    def fit(
        cls, X: Any, image_size: int | tuple[int, int] | None = None, *, photo_side: int | None = None
    ) -> tuple[Self, NDArray[np.uint8]]:
        """Learn size, range and channel statistics from training images; return them with the images as rows."""
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        channels, low, high = 3, 0.0, 255.0
        if is_files(X):
            height, width = size or _chosen_size(X, photo_side)
        else:
            images = channels_first(_array(X))
            if 0 in images.shape:
                raise ValueError(f"Found array with 0 sample(s) (shape={images.shape}); pass at least one image.")
            if size not in (None, images.shape[2:]):
                raise ValueError(f"image_size is for lists of files; X is {_size(images.shape[1:])}. Resize X itself.")
            (channels, height, width), (low, high) = images.shape[1:], _value_range(images)
        fields = {"channels": channels, "image_size": (height, width), "low": low, "high": high}
        unfitted = cls.model_validate({**fields, "mean": (1.0,) * channels, "std": (1.0,) * channels})
        rows = unfitted.rows(X)
        return unfitted.with_statistics_of(rows), rows

    def with_statistics_of(self, rows: NDArray[np.uint8]) -> Self:
        """Return the preprocessing with the mean and standard deviation of the channels of these rows."""
        mean, std = channel_statistics(rows)
        return self.model_copy(update={"mean": mean, "std": std})

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.channels, *self.image_size)

    def rows(self, X: Any) -> NDArray[np.uint8]:
        """Return X (an array, a tensor, paths of files or PIL images) as uint8 (n, C, H, W), or raise ValueError."""
        if is_files(X):
            if (self.low, self.high) not in STANDARD_RANGES:
                raise ValueError(f"{self._expected}, which image files do not have. Pass arrays scaled as in training.")
            return read_images(list(X), self.image_size, self.channels)
        given = _array(X)
        if given.shape == self.image_size or given.shape == (*self.image_size, 3) != (3, *self.image_size):
            raise ValueError(f"X must hold images; got one image of shape {given.shape}. Pass X[None].")
        images = given if given.shape[1:] == self.input_shape else channels_first(given)
        if images.shape[1:] != self.input_shape:
            raise ValueError(
                f"X has images of {_size(images.shape[1:])}; this classifier takes {_size(self.input_shape)}. "
                "Resize the array, or pass the paths of the files."
            )
        return self._as_bytes(images)

    def tensor(self, rows: NDArray[np.uint8], device: str | torch.device = "cpu") -> Tensor:
        """Return the normalised float32 batch that the network takes."""
        std = torch.tensor(self.std, dtype=torch.float32, device=device).view(-1, 1, 1)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=device).view(-1, 1, 1)
        images = torch.from_numpy(np.array(rows, order="C")).to(device)  # a copy: memory-mapped files may be read-only
        return (images * (1 / (255 * std))).sub_(mean / std)

    def module(self) -> nn.Module:
        """Return the steps of `tensor` as a module for exported graphs: uint8 (n, C, H, W) in."""
        return _Affine(255 * torch.tensor(self.mean).view(-1, 1, 1), 255 * torch.tensor(self.std).view(-1, 1, 1))

    @property
    def _expected(self) -> str:
        return f"this classifier was trained on images with values from {self.low:g} to {self.high:g}"

    def _as_bytes(self, images: Rows) -> NDArray[np.uint8]:
        if not len(images) or (images.dtype == np.uint8 and (self.low, self.high) == (0.0, 255.0)):
            return images.astype(np.uint8, copy=False)
        low, high = float(images.min()) + 0.0, float(images.max()) + 0.0  # + 0.0: no "-0" in messages
        width, beyond = (self.high - self.low) or 1.0, max(self.low - low, high - self.high)
        half_step = width / 510  # rounded to the nearest byte, smaller differences vanish
        # A range that was learnt from the values themselves need not hold all later ones; 0 to 1 and 0 to 255 do.
        margin = half_step if (self.low, self.high) in STANDARD_RANGES else width / 2
        fractions = self.low == 0 and self.high >= 8 and images.dtype != np.uint8 and low >= 0 and 0 < high <= 1
        found = f"X has values from {low:g} to {high:g} ({images.dtype})"
        if fractions or beyond > margin:
            remedy = f": X * {self.high:g}" if fractions else ", or clip it"
            if images.dtype == np.uint8 and self.low == 0:
                remedy = f": X / {255 / self.high:g}"
            raise ValueError(f"{self._expected}; {found}. Scale X as in training{remedy}.")
        if beyond > half_step:
            warnings.warn(f"{self._expected}; {found}. Values beyond the range are clipped.", stacklevel=4)
        share = (images.astype(np.float32) - np.float32(self.low)) / np.float32(width)
        pixels: NDArray[np.uint8] = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
        return pixels


class TablePreprocessing(Record):
    """Tables of numbers: (x - mean) / deviation per column in float64, or x as it is if `standardise` is False."""

    kind: Literal["table"] = "table"
    mean: Annotated[tuple[float, ...], Field(min_length=1, max_length=MAX_FEATURES)]
    variance: tuple[NonNegativeFloat, ...]
    n_seen: Annotated[int, Field(ge=1, le=2**60)] = 1
    standardise: bool = True
    feature_names: tuple[Text, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("variance", "feature_names"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.mean):
                raise ValueError(f"{name} has {len(values)} entries; expected {len(self.mean)}")
        return self

    @classmethod
    def fit(
        cls, X: Any, *, standardise: bool = True, feature_names: Sequence[str] | None = None
    ) -> tuple[Self, NDArray[np.float64]]:
        """Learn mean and variance of each column from a training table; return them with the table as rows."""
        rows = _table(X)
        if feature_names is None and hasattr(X, "columns"):
            feature_names = [str(name) for name in X.columns]
        names = None if feature_names is None else tuple(feature_names)
        mean, variance = (tuple(moment.tolist()) for moment in (rows.mean(axis=0), rows.var(axis=0)))
        return cls(mean=mean, variance=variance, n_seen=len(rows), standardise=standardise, feature_names=names), rows

    def updated(self, rows: NDArray[np.float64]) -> Self:
        """Return the preprocessing with the moments of all rows so far and of these."""
        n, m, mean = self.n_seen, len(rows), np.array(self.mean)
        delta = rows.mean(axis=0) - mean
        variance = (n * np.array(self.variance) + m * rows.var(axis=0) + delta**2 * (n * m / (n + m))) / (n + m)
        moments = {"mean": (mean + delta * (m / (n + m))).tolist(), "variance": variance.tolist(), "n_seen": n + m}
        return type(self).model_validate({**self.model_dump(), **moments})  # not a copy, which would keep old caches

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (len(self.mean),)

    @cached_property
    def centre_and_scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What is subtracted from each column, and what it is then divided by: 1 for columns that hardly vary."""
        mean, deviation = np.array(self.mean), np.sqrt(self.variance)
        if not self.standardise:
            return np.zeros_like(mean), np.ones_like(mean)
        return mean, np.where(deviation <= 10 * np.finfo(np.float64).eps * np.abs(mean), 1.0, deviation)

    def rows(self, X: Any) -> NDArray[np.float64]:
        """Return X (an array, a tensor, a data frame) as float64 (n, d); raise ValueError if it cannot be."""
        names = getattr(X, "columns", None)
        if names is not None and self.feature_names is not None and list(names) != list(self.feature_names):
            expected = ", ".join(self.feature_names[:9]) + ", ..." * (len(self.feature_names) > 9)
            raise ValueError(f"the columns of X must be those of training, in the same order: {expected}.")
        return _table(X, len(self.mean))

    def tensor(self, rows: Rows, device: str | torch.device = "cpu") -> Tensor:
        """Return the standardised float64 batch."""
        centre, scale = self.centre_and_scale
        return torch.from_numpy((rows - centre) / scale).to(device)

    def module(self) -> nn.Module:
        """Return the steps of `tensor` as a module for exported graphs: float32 (n, d) in."""
        # In float64: in float32 a feature far from 0 would lose its digits.
        centre, scale = self.centre_and_scale
        return _Affine(torch.tensor(centre), torch.tensor(scale))


Preprocessing = ImagePreprocessing | TablePreprocessing


def fit_preprocessing(rows: Rows) -> Preprocessing:
    """Return the preprocessing of data that are rows already: uint8 images (n, C, H, W), or a table used as it is."""
    if rows.ndim == 4:
        _, channels, height, width = rows.shape
        mean, std = channel_statistics(rows)
        return ImagePreprocessing(channels=channels, image_size=(height, width), mean=mean, std=std)
    d = rows.shape[1]
    return TablePreprocessing(mean=(0.0,) * d, variance=(1.0,) * d, standardise=False)


def channel_statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 (n, C, H, W), pixels as 0 to 1; 1 if constant."""
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    step = max(1, 2**20 // math.prod(images.shape[2:]))
    for start in range(0, len(images), step):
        for channel, values in enumerate(images[start : start + step].swapaxes(0, 1)):
            counts[channel] += np.bincount(values.reshape(-1), minlength=256)
    levels, share = np.arange(256) / 255, counts / counts.sum(axis=1, keepdims=True)
    mean = share @ levels
    variance = (share * (levels - mean[:, None]) ** 2).sum(axis=1)
    std = np.where((counts > 0).sum(axis=1) == 1, 1.0, np.sqrt(variance))
    return tuple(mean.tolist()), tuple(std.tolist())


def is_files(X: Any) -> bool:
    """Return whether X is a list, array or series of paths, or of PIL images; raise ValueError for a single path."""
    if isinstance(X, str | os.PathLike):
        raise ValueError(f"X must be a list; got the single path {str(X)!r}. Pass a list of paths.")  # noqa: TRY004
    values = X.tolist() if getattr(X, "ndim", 0) == 1 else X
    if not isinstance(values, Sequence) or not len(values):
        return False
    return any(all(isinstance(value, kind) for value in values) for kind in (str | os.PathLike, Image.Image))


def _chosen_size(X: Sequence[Any], photo_side: int | None) -> tuple[int, int]:
    some = [X[i] for i in np.linspace(0, len(X) - 1, min(len(X), SAMPLED_HEADERS)).astype(int)]
    sizes = [one.size if isinstance(one, Image.Image) else image_dimensions(os.fspath(one)) for one in some]
    side, _ = choose_side([size for size in sizes if size is not None], photo_side)
    return side, side


def holds_images(X: Any) -> bool:
    """Return whether X is images and not a table: file names, PIL images, or an array of three or four dimensions."""
    if is_files(X):
        return True
    try:
        ndim = X.ndim if hasattr(X, "ndim") else np.ndim(X[0]) + 1
    except (ValueError, TypeError, LookupError):  # scikit-learn's own message for tables fits
        return False
    return ndim in (3, 4)


def channels_first(X: Rows) -> Rows:
    """Return (n, H, W), (n, H, W, C) or (n, C, H, W) as (n, C, H, W); prefer (n, H, W, C) if both are possible."""
    last = X.ndim == 4 and X.shape[3] in (1, 3)
    return sources.channels_first(X, "NHWC" if last else "NCHW", "images")


class _Affine(nn.Module):
    """(x - centre) / scale, computed in the type of `centre`, returned in float32."""

    centre: Tensor
    scale: Tensor

    def __init__(self, centre: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return ((x.to(self.centre.dtype) - self.centre) / self.scale).float()


def _numpy(X: Any) -> Rows:
    return X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)


def _array(X: Any) -> Rows:
    values = _numpy(X)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"images must be arrays of real numbers; got dtype {values.dtype}. Convert them first.")
    assert_all_finite(values, input_name="X")
    return values


def _table(X: Any, n_features: int | None = None) -> NDArray[np.float64]:
    table = _numpy(X)
    if table.ndim != 2 or table.shape[1] != (n_features or table.shape[1]):
        found = f"X must be a table (n, {n_features or 'd'}); got shape {table.shape}"
        raise ValueError(f"{found}. Pass the features of training, in their order, one row as X.reshape(1, -1).")
    numbers: NDArray[np.float64] = check_array(table, dtype=np.float64, ensure_min_samples=0, input_name="X")
    return numbers


def read_images(X: list[Any], size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Return every file or PIL image as a row; one that cannot be read is an error, since its row would be missing."""
    if isinstance(X[0], Image.Image):
        spec = DecodeSpec(*size, channels)
        return np.stack([picture_pixels(image, spec) for image in X])
    batches = list(load_images(X, size, channels))
    if unreadable := [f"{name} ({reason})" for batch in batches for name, reason in batch.skipped]:
        n = f"{len(unreadable)} of {len(X)} are not, first {unreadable[0]}"
        raise ValueError(f"every path in X must be a readable image; {n}. Leave them out of X and y.")
    return np.concatenate([batch.images for batch in batches])


def _value_range(images: Rows) -> tuple[float, float]:
    """Return 0 to 255 for bytes, 0 to 1 for fractions; otherwise the range found, or 0 to 255 if that is close."""
    low, high = float(images.min()), float(images.max())
    if images.dtype == np.uint8 or (low >= 0 and 128 <= high <= 255):
        return 0.0, 255.0
    return (0.0, 1.0) if low >= 0 and high <= 1 else (min(low, 0.0), high)


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{height}x{width} pixels and {channels} channel{'s' * (channels > 1)}"
