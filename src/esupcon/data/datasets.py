"""`load`: whatever the source, one uint8 array of images, integer labels and class names, for train and test."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esupcon.data.array_images import resized, with_channels
from esupcon.data.assemble import decoded, divided, stratified, usual_size
from esupcon.data.decode import DEFAULT_MAX_PIXELS, DecodeSpec
from esupcon.data.listing import Arrays, Listing, Skipped
from esupcon.data.places import data_root, decoded_root
from esupcon.data.progress import Notes, Say, say
from esupcon.data.sources import NAMES, Options, identified, read

_DEFAULT_SIZES = {"tiny_imagenet": (32, 32), "caltech256": (64, 64)}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images uint8 (n, C, H, W), in memory or memory-mapped; labels int64, indices into `classes`.

    `notes` are the lines that were said while loading, `skipped` the files left out, each with its reason.
    """

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    name: str = ""
    notes: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if x.dtype != np.uint8 or x.ndim != 4:
                raise ValueError(f"x_{part} must be uint8 (n, C, H, W); got {x.dtype} {x.shape}")
            if y.dtype != np.int64 or y.shape != (len(x),):
                raise ValueError(f"y_{part} must be int64 ({len(x)},); got {y.dtype} {y.shape}")
            if len(y) and not (y.min() >= 0 and y.max() < len(self.classes)):
                raise ValueError(f"y_{part} must lie in 0..{len(self.classes) - 1}; it has {y.min()} to {y.max()}")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise ValueError(
                f"train and test images must be alike; got {self.x_train.shape[1:]} and {self.x_test.shape[1:]}"
            )

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.x_train.shape[1:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of images, labels and class names: equal where the data are, wherever they came from."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            for start in range(0, len(array), 4096):
                digest.update(np.ascontiguousarray(array[start : start + 4096]).data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.image_shape))
        return (
            f"Dataset({self.name!r}, {len(self.x_train):,} train and {len(self.x_test):,} test images of {shape}, "
            f"{self.n_classes} classes)"
        )


_REGISTERED: dict[str, Callable[[], Dataset]] = {}


def register_dataset(name: str, loader: Callable[[], Dataset]) -> None:
    """Make an own set known to `load`, and so to tables and commands of this process; `loader` gives it, whole.

    Names of the built-in sets cannot be taken.
    """
    if name in NAMES or not name.isidentifier():
        raise ValueError(f"the name of a set must be a word of its own, none of {', '.join(NAMES)}; got {name!r}.")
    _REGISTERED[name] = loader


def load(
    source: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    seed: int = 0,
    test_fraction: float = 0.2,
    strict: bool = False,
    n_per_class: int | None = None,
    include_clutter: bool = False,
    layout: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    cache: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    workers: int | None = None,
    log: Say = say,
) -> Dataset:
    """Load a data set.

    source: `digits`, `cifar10`, `cifar100`, `tiny_imagenet` or `caltech256`; a folder of images
        (root/class/*.jpg, or root/train/class and root/test|val/class); a .csv of path,label; a .npz; a .parquet,
        or a folder saved by Hugging Face `datasets`.
    data_dir: where named sets lie or are downloaded to; else $ESUPCON_DATA, else the platform's cache folder.
    image_size: side, or (height, width), to resize to: shorter side resized, longer side cropped about the
        centre. None: 32 for tiny_imagenet, 64 for caltech256, the arrays' own, or by the files' own sizes.
    channels: 1 or 3. None: what arrays have; 3 for files.
    seed, test_fraction: the stratified test part drawn where a source has none.
    strict: an unreadable file is an error; else it is left out and listed in `Dataset.skipped`.
    n_per_class, include_clutter: caltech256's training images per class (60), and its class of clutter.
    layout: 'NHWC' or 'NCHW', for a .npz whose shape leaves it open.
    image_column, label_column: of a .csv or .parquet with unusual headings.
    max_pixels: a larger image is left out as a decompression bomb.
    cache, cache_dir: decoded images are kept in `cache_dir`; else $ESUPCON_DATA/decoded, else `decoded` in the
        platform's cache folder.
    download: whether a named set that is missing may be fetched.
    workers: processes to decode with; None: one a core.
    log: gets every line that is said; the default prints to stderr.
    """
    options = Options(
        image_size=image_size,
        channels=channels,
        seed=seed,
        test_fraction=test_fraction,
        strict=strict,
        n_per_class=n_per_class,
        include_clutter=include_clutter,
        layout=layout,
        image_column=image_column,
        label_column=label_column,
        max_pixels=max_pixels,
        download=download,
        workers=workers,
    )
    notes = Notes(log)
    if isinstance(source, str) and source in _REGISTERED:
        options.refuse_idle("registered", source)
        return _registered(source, options)
    root = data_root(data_dir)
    kind, path = identified(source, root, notes)
    options.refuse_idle(kind, source)
    found = read(kind, path, root, options, notes)
    if len(found.classes) < 2:
        only = f"{found.classes[0]!r} alone" if found.classes else "none"
        raise ValueError(f"{source} must have at least two classes; it has {only}.")
    kept_in = decoded_root(cache_dir) if cache else None
    if isinstance(found, Listing):
        arrays, skipped = _decoded(found, kind, options, kept_in, notes)
    else:
        arrays, skipped = _fitted(found, options), []
    if arrays.x_test is None:
        split = found.split if isinstance(found, Listing) else None
        y = arrays.y_train
        indices = split(y) if split is not None else stratified(y, test_fraction, seed, notes)
        arrays = divided(arrays, indices, kept_in, notes)
    assert arrays.x_test is not None
    assert arrays.y_test is not None
    return Dataset(
        arrays.x_train,
        arrays.y_train,
        arrays.x_test,
        arrays.y_test,
        arrays.classes,
        name=kind if kind in NAMES else str(source),
        notes=tuple(notes.lines),
        skipped=tuple(skipped),
    )


def _registered(name: str, options: Options) -> Dataset:
    made = _REGISTERED[name]()
    if not isinstance(made, Dataset):
        raise ValueError(  # noqa: TRY004 - a mistake of the one who wrote the loader, said in one line like the others
            f"the loader of {name!r} must return an esupcon.data.Dataset; it returned a {type(made).__name__}."
        )
    if options.size is not None or options.channels is not None:
        raise ValueError(f"image_size and channels do not apply to {name!r}, whose loader gives images as they are.")
    return replace(made, name=name)


def _decoded(
    found: Listing, kind: str, options: Options, cache: Path | None, note: Say
) -> tuple[Arrays, list[Skipped]]:
    size = options.size or _DEFAULT_SIZES.get(kind) or usual_size(found.images, options.max_pixels, note)
    spec = DecodeSpec(*size, options.channels or 3, options.max_pixels)
    return decoded(found, spec, cache=cache, workers=options.workers, strict=options.strict, note=note)


def _fitted(found: Arrays, options: Options) -> Arrays:
    """Arrays in the size and the channels asked for."""
    for part in ("x_train", "x_test"):
        images = getattr(found, part)
        if images is not None:
            images = with_channels(images, options.channels or images.shape[1])
            setattr(found, part, resized(images, *(options.size or images.shape[2:])))
    return found
