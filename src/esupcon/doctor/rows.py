"""One pass over the rows of an array: which are equal, constant, or not finite."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from esupcon.probability.validation import BoolArray, IntArray

# Rows are read so many bytes at a time, in order: a memory-mapped array is never in memory as a whole.
CHUNK_BYTES = 16 * 2**20
# 128 bits: among a billion rows, the chance that any two different ones share a digest is below 1e-20.
DIGEST_BYTES = 16


@dataclass(frozen=True, eq=False)
class Scan:
    digests: NDArray[np.bytes_]
    constant: BoolArray  # images alone: every channel is of one value
    not_finite: BoolArray


def scan(x: NDArray[Any], dtype: DTypeLike) -> Scan:
    """Reads every row once. Equal values in `dtype` have equal digests."""
    n = len(x)
    digests: list[bytes] = []
    constant, not_finite = np.zeros(n, bool), np.zeros(n, bool)
    height = max(1, CHUNK_BYTES // max(1, x[:1].nbytes))
    for start in range(0, n, height):
        rows = slice(start, min(start + height, n))
        chunk = np.ascontiguousarray(x[rows], dtype=dtype)
        if chunk.dtype.kind == "f":
            chunk = chunk + chunk.dtype.type(0)  # -0.0 becomes 0.0, which it equals
            not_finite[rows] = ~np.isfinite(chunk.reshape(len(chunk), -1)).all(1)
        if chunk.ndim > 2:
            constant[rows] = _constant(chunk)
        as_bytes = chunk.reshape(len(chunk), -1).view(np.uint8)
        digests += [hashlib.blake2b(row.data, digest_size=DIGEST_BYTES).digest() for row in as_bytes]
    return Scan(np.array(digests, dtype=f"S{DIGEST_BYTES}"), constant, not_finite)


def group_ids(*digests: NDArray[np.bytes_]) -> tuple[IntArray, ...]:
    """For each array, a number for every row that is the same exactly where rows are, across arrays too."""
    _, ids = np.unique(np.concatenate(digests), return_inverse=True)
    ends = np.cumsum([len(part) for part in digests])[:-1]
    return tuple(part.astype(np.int64) for part in np.split(ids, ends))


def _constant(images: NDArray[Any]) -> BoolArray:
    pixels = images.reshape(len(images), images.shape[1] if images.ndim > 3 else 1, -1)
    first, middle, last = (pixels[:, :, i] for i in (0, pixels.shape[2] // 2, -1))
    constant: BoolArray = ((first == middle) & (first == last)).all(1)
    maybe = np.flatnonzero(constant)  # few: three equal pixels rule out nearly every real image
    constant[maybe] = (pixels[maybe] == pixels[maybe, :, :1]).all((1, 2))
    return constant
