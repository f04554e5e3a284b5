"""What a source gives: images still to be decoded, or arrays."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from esupcon.data.decode import Encoded
from esupcon.data.split import Indices

Skipped = tuple[str, str]  # path, reason
Split = Callable[[NDArray[np.int64]], tuple[Indices, Indices]]


class EncodedImages(Protocol):
    """Images in files, read one after the other."""

    n_bytes: int

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Encoded]: ...

    def sample(self, n: int) -> Iterator[Encoded]:
        """About n of them, without reading all the others."""

    def name(self, i: int) -> str:
        """How image i is called in a message."""

    def stamp(self) -> list[object]:
        """What changes when the images do: names, sizes and times, fit for JSON."""


class ImageFiles:
    """A list of files, each one image."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - a Path per image is dear
        self._stamps = [(path, *stamp_of(path)) for path in self._paths]
        self.n_bytes = sum(stamp[1] for stamp in self._stamps)

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[Encoded]:
        return iter(self._paths)

    def sample(self, n: int) -> Iterator[Encoded]:
        return iter(self._paths[:: max(1, len(self._paths) // n)])

    def name(self, i: int) -> str:
        return self._paths[i]

    def stamp(self) -> list[object]:
        # Whole paths: two unpackings of like archives agree in all other names, sizes and times.
        return [self._stamps]


def stamp_of(path: str) -> tuple[int, int, int]:
    """Size and times; the time of change is there because tools like to restore the time of modification."""
    try:
        status = os.stat(path)  # noqa: PTH116 - one call per image
    except (OSError, ValueError):
        return (0, 0, 0)
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass
class Listing:
    """Images to decode. The first `n_train` are the training part; None: there is no test part."""

    images: EncodedImages
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    n_train: int | None = None
    skipped: list[Skipped] = field(default_factory=list)
    split: Split | None = None


@dataclass
class Arrays:
    """Images as uint8 (n, C, H, W). Without a test part the two last are None."""

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    classes: tuple[str, ...]
    x_test: NDArray[np.uint8] | None = None
    y_test: NDArray[np.int64] | None = None


def in_class_order(names: set[str]) -> tuple[str, ...]:
    """Sorted by name; by value where every name is a whole number, so that 10 does not follow 1."""
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
