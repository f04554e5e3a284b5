"""Images that are arrays already: resized and given channels by the batch, as the decoder does with files."""

import numpy as np
from numpy.typing import NDArray

_BATCH = 256  # bounds the float32 working copy


def resized(images: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """(n, C, H, W) -> (n, C, height, width): the largest centred box of the target's proportions, through a
    triangle filter widened by the reduction: out = R @ image @ C.T, rounded once."""
    n, channels, rows, columns = images.shape
    if (rows, columns) == (height, width):
        return images
    scale = min(rows / height, columns / width)
    by_row = _triangle_filter(rows, height, scale)
    by_column = _triangle_filter(columns, width, scale)
    out = np.empty((n, channels, height, width), np.uint8)
    for start in range(0, n, _BATCH):
        batch = images[start : start + _BATCH].astype(np.float32)
        out[start : start + _BATCH] = np.clip(np.rint(by_row @ batch @ by_column.T), 0, 255)
    return out


def _triangle_filter(n_in: int, n_out: int, scale: float) -> NDArray[np.float32]:
    """(n_out, n_in) weights, rows summing to one: output j looks at `scale` inputs about its own centre."""
    reach = max(scale, 1.0)
    start = (n_in - n_out * scale) / 2
    centres = start + (np.arange(n_out) + 0.5) * scale
    distance = np.abs(np.arange(n_in) + 0.5 - centres[:, None]) / reach
    weights = np.clip(1 - distance, 0, None)
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised.astype(np.float32)


def with_channels(images: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Grey repeated to three channels, or colour weighed to one: 0.299 R + 0.587 G + 0.114 B."""
    present = images.shape[1]
    if present == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=1)
    out = np.empty((images.shape[0], 1, *images.shape[2:]), np.uint8)
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    for start in range(0, images.shape[0], _BATCH):
        batch = images[start : start + _BATCH].astype(np.float32)
        out[start : start + _BATCH, 0] = np.rint(np.tensordot(batch, weights, axes=(1, 0)))
    return out
