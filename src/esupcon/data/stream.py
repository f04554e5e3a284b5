"""A list of image files in batches, in memory that does not grow with the list."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esupcon.data.decode import DEFAULT_MAX_PIXELS, DecodeSpec
from esupcon.data.decode_pool import DecodePool, helpers_for
from esupcon.data.listing import Skipped, stamp_of


class ImageBatch(NamedTuple):
    """`images[i]` is the picture in `paths[i]`; `skipped` are the files between them that gave none."""

    paths: list[str]
    images: NDArray[np.uint8]
    skipped: list[Skipped]


def load_images(
    paths: Iterable[str | os.PathLike[str]],
    image_size: int | tuple[int, int],
    channels: int = 3,
    *,
    batch_size: int = 256,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    workers: int | None = None,
) -> Iterator[ImageBatch]:
    """Decode files as `load` does, `batch_size` at a time and in order: uint8 (n, channels, height, width).

    Files that cannot be read are reported in the batch they belong to, which may so be empty.
    """
    height, width = image_size if isinstance(image_size, tuple) else (image_size, image_size)
    if batch_size < 1 or height < 1 or width < 1 or channels not in (1, 3):
        raise ValueError(
            "load_images needs a batch_size and an image_size of at least 1, and 1 or 3 channels; "
            f"got {batch_size}, {image_size} and {channels}"
        )
    return _batches(iter(paths), DecodeSpec(height, width, channels, max_pixels), batch_size, workers)


def _batches(
    paths: Iterator[str | os.PathLike[str]], spec: DecodeSpec, batch_size: int, workers: int | None
) -> Iterator[ImageBatch]:
    batch = [os.fspath(path) for path in islice(paths, batch_size)]
    if not batch:
        return
    # The whole list's length is unknown; a full first batch promises more.
    repeats = 8 if len(batch) == batch_size else 1
    helpers = helpers_for(repeats * len(batch), repeats * sum(stamp_of(path)[0] for path in batch), workers)
    with tempfile.TemporaryDirectory(prefix="esupcon-") as folder, DecodePool(helpers) as pool:
        file = Path(folder) / "batch.u8"
        file.write_bytes(bytes(len(batch) * int(np.prod(spec.shape))))
        rows = np.memmap(file, np.uint8, mode="r+", shape=(len(batch), *spec.shape))
        try:
            while batch:
                lost = pool.decode(batch, file, rows, spec, lambda n: None).unreadable
                kept = [i for i in range(len(batch)) if i not in lost]
                yield ImageBatch(
                    [batch[i] for i in kept],
                    np.asarray(rows)[kept],
                    [(batch[i], lost[i]) for i in sorted(lost)],
                )
                batch = [os.fspath(path) for path in islice(paths, batch_size)]
        finally:
            del rows
