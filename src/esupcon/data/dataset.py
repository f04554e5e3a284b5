"""Load a data set: choose the reader of a source, decode through the cache, choose the size, draw a test part."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from esupcon._console import Log, count, progress_bar, say
from esupcon._io import first_error
from esupcon._split import Indices, n_per_class_split, stratified_split
from esupcon.data import DataOptions, decode, named
from esupcon.data.cache import cached, decoded_root, expand
from esupcon.data.decode import DecodeSpec, Skipped
from esupcon.data.folders import read_folder
from esupcon.data.named import NAMES
from esupcon.data.parquet import parquet_files, read_parquet
from esupcon.data.sources import ImageFiles, Source, read_csv, read_npz

#: Readers by kind of source; those of named sets take the unpacked folder.
READERS: dict[str, Callable[[Path, DataOptions, Log], Source]] = {
    "cifar10": partial(named.read_cifar, "cifar10"),
    "cifar100": partial(named.read_cifar, "cifar100"),
    "tiny_imagenet": named.read_tiny_imagenet,
    "caltech256": named.read_caltech256,
    "npz": read_npz,
    "csv": read_csv,
    "parquet": read_parquet,
    "folder": read_folder,
}
_SUFFIXES = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
# Options for some kinds of sources, which are a mistake for others, and those that draw a test part.
_OPTIONS_OF_KINDS = {
    **dict.fromkeys(("n_per_class", "include_clutter"), ("caltech256",)),
    **dict.fromkeys(("image_column", "label_column"), ("csv", "parquet")),
    "layout": ("npz",),
}
_SPLIT_OPTIONS = ("split_seed", "test_fraction")
_BARE_NAMES = {named.bare_name(name): name for name in NAMES}
_LISTED = 20  # unreadable files that are named in messages; all of them are in Dataset.skipped
_COPIED_BYTES = 256 << 20  # larger selections of rows are not copied


class Rows:
    """Selected rows of an array, read when indexed as x[i], x[start:stop] or x[indices]; np.asarray(x) copies all."""

    ndim = 4

    def __init__(self, array: NDArray[np.uint8], indices: Indices) -> None:
        self.array, self.indices = array, indices
        self.dtype = array.dtype
        self.shape = (len(indices), *array.shape[1:])

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Any) -> NDArray[np.uint8]:
        return np.asarray(self.array[self.indices[key]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.array[self.indices], dtype)


def take_rows(x: NDArray[np.uint8], indices: Indices) -> NDArray[np.uint8]:
    """Return x[indices] without copying much: a view of a range of rows, a copy if it is small, else `Rows`."""
    array, chosen = (x.array, x.indices[indices]) if isinstance(x, Rows) else (x, indices)
    if len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1 and (np.diff(chosen) == 1).all():
        return array[chosen[0] : chosen[-1] + 1]
    if len(chosen) * array[:1].nbytes <= _COPIED_BYTES:
        return np.asarray(array[chosen])
    return cast("NDArray[np.uint8]", Rows(array, chosen))  # which is indexed like one


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images uint8 (n, C, H, W), in memory, memory-mapped or `Rows` of such; labels int64, indices into `classes`.

    `skipped` are the files that could not be used, each with its reason. `test_drawn` tells that the source had no test
    part. `train_files` and `test_files` name the file of each image, if it has one.
    """

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    name: str = ""
    skipped: tuple[Skipped, ...] = ()
    test_drawn: bool = False
    train_files: Sequence[str] = ()
    test_files: Sequence[str] = ()

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if x.dtype != np.uint8 or x.ndim != 4:
                raise ValueError(f"x_{part} must be uint8 (n, C, H, W); got {x.dtype} {x.shape}")
            if y.dtype != np.int64 or y.shape != (len(x),):
                raise ValueError(f"y_{part} must be int64 ({len(x)},); got {y.dtype} {y.shape}")
            if len(y) and not (y.min() >= 0 and y.max() < len(self.classes)):
                raise ValueError(f"y_{part} must lie in 0..{len(self.classes) - 1}; it has {y.min()} to {y.max()}")
        shapes = [self.x_train.shape[1:], self.x_test.shape[1:]]
        if shapes[0] != shapes[1]:
            raise ValueError(f"train and test images must have one shape; got {shapes[0]} and {shapes[1]}")

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.x_train.shape[1:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of images, labels and class names: equal for equal data from any source."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            for start in range(0, len(array), 4096):
                digest.update(np.ascontiguousarray(array[start : start + 4096]).data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.image_shape))
        parts = f"{len(self.x_train):,} train and {len(self.x_test):,} test images of {shape}"
        return f"Dataset({self.name!r}, {parts}, {self.n_classes} classes)"


_REGISTERED: dict[str, Callable[[], Dataset]] = {}


def register_dataset(name: str, loader: Callable[[], Dataset]) -> None:
    """Make `load(name)` return what `loader` returns, in this process; tables and commands then know the name too."""
    if name in NAMES or not name.isidentifier():
        raise ValueError(f"the name of a set must be an identifier other than {', '.join(NAMES)}; got {name!r}.")
    _REGISTERED[name] = loader


def load(
    source: str | os.PathLike[str],
    options: DataOptions | None = None,
    *,
    log: Log = say,
    photo_side: int | None = None,
    lenient: Collection[str] = (),
    **fields: Any,
) -> Dataset:
    """Load a data set.

    source: `digits`, `cifar10`, `cifar100`, `tiny_imagenet` or `caltech256`; a folder of images (root/class/*.jpg, or
        root/train/class and root/test/class); a .csv of path,label; a .npz; a .parquet file or a folder of them; the
        name of a registered set.
    options, fields: a `DataOptions`, or its fields as keyword arguments, such as image_size=64.
    log: called with every message; the default prints to standard error.
    photo_side: side for files of photos if `image_size` is None; see `choose_side`.
    lenient: options that are ignored, not refused, if they do not apply to the source.
    """
    options = _with_fields(options, fields)
    if isinstance(source, str) and source in _REGISTERED:
        return _load_registered(source, options, lenient)
    kind, found = _read(source, options, log, lenient)
    if len(found.classes) < 2 or not len(found.labels):
        names = ", ".join(map(repr, found.classes)) or "no class"
        raise ValueError(f"{source} must have images of at least two classes; it has {len(found.labels)} of {names}.")
    if isinstance(found.images, np.ndarray):
        channels, *own_size = found.images.shape[1:]
        height, width = options.size or own_size
        images = decode.fit_arrays(found.images, DecodeSpec(height, width, options.channels or channels))
        kept, skipped = np.arange(len(images)), found.skipped
    else:
        size = options.size or named.DEFAULT_SIZES.get(kind) or _choose_size(found.images, options, photo_side, log)
        images, kept, skipped = _decode(found, found.images, size, options, log)
    labels = found.labels[kept]
    n_train = len(kept) if found.n_train is None else int(np.searchsorted(kept, found.n_train))
    train, test = np.arange(n_train), np.arange(n_train, len(kept))
    drawn = not len(test) and found.n_per_class is None
    if drawn:
        train, test = stratified_split(labels, options.test_fraction, options.split_seed)
        if len(test) == 0:
            raise ValueError("no image is left to test on: every class has a single one. Add images or a test part.")
        log(
            f"there is no test part: {len(test):,} of {len(labels):,} images are set aside, drawn from every class "
            f"with two or more (test_fraction={options.test_fraction}, split_seed={options.split_seed})"
        )
    elif found.n_per_class is not None:
        train, test = n_per_class_split(labels, found.n_per_class, options.split_seed, found.classes)
    if untested := np.setdiff1d(labels, labels[test]).tolist():
        names = ", ".join(repr(found.classes[k]) for k in untested[:3]) + ", ..." * (len(untested) > 3)
        log(f"{count(len(untested), 'class')} cannot be tested for lack of a test image: {names}")
    files = [] if isinstance(found.images, np.ndarray) else [found.images.name(i) for i in kept.tolist()]
    return Dataset(
        take_rows(images, kept[train]),
        labels[train],
        take_rows(images, kept[test]),
        labels[test],
        found.classes,
        name=kind if kind in NAMES else str(source),
        skipped=tuple(skipped),
        test_drawn=drawn,
        train_files=[files[i] for i in train] if files else (),
        test_files=[files[i] for i in test] if files else (),
    )


def source_digest(source: str | os.PathLike[str], options: DataOptions | None = None, **fields: Any) -> str:
    """Return a SHA-256 of a source's content: stored images, labels, class names and parts, but no paths.

    Nothing is decoded. A named set that is missing is downloaded, unless `download` is False.
    """
    options = _with_fields(options, fields)
    if isinstance(source, str) and source in _REGISTERED:
        return _load_registered(source, options).fingerprint
    kind, _ = _identify(source, lambda line: None)
    return named.verified_digest(kind) or _read(source, options, lambda line: None)[1].digest()


def _with_fields(options: DataOptions | None, fields: dict[str, Any]) -> DataOptions:
    try:
        return DataOptions.model_validate({**dict(options or ()), **fields})
    except ValidationError as error:
        raise ValueError(f"{first_error(error, show_input=True)}.") from None


def _load_registered(name: str, options: DataOptions, lenient: Collection[str] = ()) -> Dataset:
    made = _REGISTERED[name]()
    channels, *size = made.image_shape
    fits = {"image_size": options.size == tuple(size), "channels": options.channels == channels}
    decided = [*_OPTIONS_OF_KINDS, *_SPLIT_OPTIONS, *(option for option, same in fits.items() if not same)]
    _refuse_ignored(options, decided, name, "its loader decides it", lenient)
    return replace(made, name=name)


def _read(
    source: str | os.PathLike[str], options: DataOptions, log: Log, lenient: Collection[str] = ()
) -> tuple[str, Source]:
    """Return the kind of a source and what its reader found."""
    kind, path = _identify(source, log)
    for option, kinds in _OPTIONS_OF_KINDS.items():
        if kind not in kinds:
            _refuse_ignored(options, [option], source, f"it is for {' and '.join(kinds)}", lenient)
    if kind == "digits":
        return kind, named.read_digits()
    found = READERS[kind](path or named.find_published(kind, options, log), options, log)
    if found.n_train is not None:
        _refuse_ignored(options, _SPLIT_OPTIONS, source, "it has a test part", lenient)
    elif found.n_per_class is not None:
        _refuse_ignored(options, ["test_fraction"], source, "n_per_class decides its test part", lenient)
    return kind, found


def _refuse_ignored(
    options: DataOptions, names: Iterable[str], source: object, reason: str, lenient: Collection[str]
) -> None:
    """Raise if one of these options is set, because it would have no effect."""
    for name in names:
        value = getattr(options, name)
        if name not in lenient and value != DataOptions.model_fields[name].default:
            raise ValueError(f"{name}={value} does not apply to {source}: {reason}. Omit it.")


def _identify(source: str | os.PathLike[str], log: Log) -> tuple[str, Path | None]:
    """Return the kind of a source and its path, which is None for a named set."""
    text = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    if not isinstance(text, str) or not text:
        raise ValueError(f"source must be a name or a path; got {source!r}")
    path = expand(text)
    if source is text and (name := _BARE_NAMES.get(named.bare_name(text))):
        if path.exists():
            log(f"{text!r} is read as the data set of that name; pass ./{text} to read the folder")
        return name, None
    if path.is_dir():
        return _kind_of_folder(path), path.absolute()
    if not path.is_file():
        close = difflib.get_close_matches(text.lower(), NAMES, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]!r}?" if close else f"Check the path, or choose from {', '.join(NAMES)}."
        raise FileNotFoundError(f"there is no file or folder {path}. {hint}")
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"{path} is neither a folder nor one of {', '.join(_SUFFIXES)}. Unpack an archive first.")
    return _SUFFIXES[path.suffix.lower()], path.absolute()


def _kind_of_folder(path: Path) -> str:
    for name, one in named.PUBLISHED.items():
        if one.folder == path.name and (path / one.proof).exists():
            return name
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        remedy = "Write Parquet files instead: ds.to_parquet('train.parquet')"
        raise ValueError(f"{path} was written by save_to_disk of Hugging Face, which is not read. {remedy}.")
    return "parquet" if parquet_files(path) else "folder"


def _choose_size(images: ImageFiles, options: DataOptions, photo_side: int | None, log: Log) -> tuple[int, int]:
    seen = (decode.image_dimensions(one, options.max_pixels) for one in images.sample(decode.SAMPLED_HEADERS))
    side, middle = decode.choose_side([size for size in seen if size is not None], photo_side)
    log(f"image_size is {side}, from the images' median shorter side of {middle:g}; pass image_size to change it")
    return side, side


def _decode(
    found: Source, encoded: ImageFiles, size: tuple[int, int], options: DataOptions, log: Log
) -> tuple[NDArray[np.uint8], Indices, list[Skipped]]:
    """Return the decoded images, the rows among them that are readable, and all skipped files."""
    spec = DecodeSpec(*size, options.channels or 3, options.max_pixels)

    def fill(rows: NDArray[np.uint8]) -> dict[str, Any]:
        with progress_bar("decoding images", len(encoded)) as advance:
            return {"unreadable": decode.decode_images(encoded, rows, spec, workers=options.workers, advance=advance)}

    folder = decoded_root(options.cache_dir, log) if options.cache else None
    key = hashlib.sha256(json.dumps([decode.DECODE_VERSION, asdict(spec), encoded.stamp()]).encode()).hexdigest()[:32]
    images, record = cached(folder, key, (len(encoded), *spec.shape), fill, log)
    unreadable = sorted((int(i), reason) for i, reason in record["unreadable"].items())
    skipped = found.skipped + [(encoded.name(i), reason) for i, reason in unreadable]
    _report_skipped(skipped, len(encoded) + len(found.skipped), options, log)
    kept = np.setdiff1d(np.arange(len(encoded)), [i for i, _ in unreadable])
    n_train = len(encoded) if found.n_train is None else found.n_train
    lost = np.setdiff1d(found.labels[:n_train], found.labels[kept[kept < n_train]])
    if len(lost):
        first = next(f"{encoded.name(i)} ({reason})" for i, reason in unreadable if found.labels[i] == lost[0])
        name = found.classes[lost[0]]
        raise ValueError(f"the class {name!r} has no readable image: the first is {first}. Replace or remove it.")
    return images, kept, skipped


def _report_skipped(skipped: list[Skipped], n_files: int, options: DataOptions, log: Log) -> None:
    if not skipped:
        return
    files = [f"{path} ({reason})" for path, reason in skipped]
    if options.strict:
        remedy = "Repair or remove them, or omit strict=True to skip them"
        raise ValueError(f"{len(files)} of {n_files:,} files cannot be used, the first is {files[0]}. {remedy}.")
    for file in files[:_LISTED]:
        log(f"skipped {file}")
    log(f"{len(files)} of {n_files:,} files were skipped{', not all of them listed' * (len(files) > _LISTED)}")
