"""What a reader returns, label encoding, and the readers of `.csv` and `.npz` files.

A reader is a function (path, options, log) -> Source; `esupcon.data.dataset` chooses it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from esupcon._console import Log, count, usable_cores
from esupcon._io import NotPlainArrays, array_names, check_memory, file_digest, one_line, read_arrays
from esupcon._split import Indices
from esupcon.data import DataOptions
from esupcon.data.decode import Encoded, Skipped

TRAIN_NAMES = ("train", "training")
# In order of preference: validation images are for tuning, so they are tested on only if there is nothing else.
TEST_NAMES = ("test", "testing", "eval", "evaluation", "val", "valid", "validation")
LONGEST_LABEL = 1000  # characters


class EncodedImages(Protocol):
    """Images in files, read one after the other."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Encoded]: ...

    def sample(self, n: int) -> Iterator[Encoded]:
        """Return about n of them without reading all the others."""

    def name(self, i: int) -> str:
        """Return the name of image i for messages."""

    def stamp(self) -> list[object]:
        """Return what changes when the images do: names, sizes and times, fit for JSON."""


class ImageFiles:
    """A list of files, each one image."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - a Path per image is slow

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[Encoded]:
        return iter(self._paths)

    def sample(self, n: int) -> Iterator[Encoded]:
        return iter(self._paths[:: max(1, len(self._paths) // n)])

    def name(self, i: int) -> str:
        return self._paths[i]

    def stamp(self) -> list[object]:
        # Full paths: two copies of an unpacked archive agree in names, sizes and times.
        return [(path, *stamp_of(path)) for path in self._paths]


def stamp_of(path: str) -> tuple[int, int, int]:
    """Return size and times; the time of change as well, because tools restore the time of modification."""
    try:
        status = os.stat(path)  # noqa: PTH116 - one call per image
    except (OSError, ValueError):
        return (0, 0, 0)
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass
class Source:
    """Labelled images: in files still to be decoded, or a uint8 array (n, C, H, W).

    The first `n_train` are the training part; None means that there is no test part. Then `split` draws one from the
    labels, or a stratified part is drawn if it is None.
    """

    images: EncodedImages | NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    n_train: int | None = None
    skipped: list[Skipped] = field(default_factory=list)
    split: Callable[[NDArray[np.int64]], tuple[Indices, Indices]] | None = None

    def digest(self) -> str:
        """Return the SHA-256 of the images as stored, their labels, class names and parts; paths do not matter."""
        digest = hashlib.sha256(json.dumps([self.classes, self.n_train, len(self.labels)]).encode())
        digest.update(self.labels.astype("<i8").tobytes())
        if isinstance(self.images, np.ndarray):
            digest.update(str(self.images.shape).encode())
            for start in range(0, len(self.images), 4096):
                digest.update(np.ascontiguousarray(self.images[start : start + 4096]).data)
            return digest.hexdigest()
        # Files are hashed side by side; the images of a Parquet file are held one at a time, since they may be large.
        images, at_once = iter(self.images), 256 if isinstance(self.images, ImageFiles) else 1
        with ThreadPoolExecutor(usable_cores()) as threads:
            while block := list(islice(images, at_once)):
                digest.update("".join(threads.map(_image_digest, block)).encode())
        return digest.hexdigest()


def _image_digest(encoded: Encoded) -> str:
    if isinstance(encoded, bytes):
        return hashlib.sha256(encoded).hexdigest()
    try:
        return file_digest(encoded) if os.path.isfile(encoded) else "absent"  # noqa: PTH113 - never open a pipe
    except (OSError, ValueError):
        return "unreadable"


# --- Labels ----------------------------------------------------------------------------------------------------------


def in_class_order(names: set[str]) -> tuple[str, ...]:
    """Sort class names; by value if every name is a whole number, so that 10 does not follow 1."""
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name)))
    return tuple(sorted(names))


def encode_labels(
    train: NDArray[Any], test: NDArray[Any] | None, classes: Sequence[str] | None, source: object
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the labels of both parts, one after the other, as numbers below K, and the names of the K classes.

    With `classes`, whole numbers index them and text must be one of them. Without, the classes are the values found in
    `train`, in order. A label that only test images have is refused.
    """
    parts = [_checked_labels(part, source) for part in (train, test) if part is not None]
    textual = any(part.dtype.kind == "U" for part in parts)
    labels = np.concatenate([part.astype(str) for part in parts] if textual else parts)
    if classes is not None:
        repeated = [name for name, n in Counter(classes).items() if n > 1]
        if repeated:
            raise ValueError(f"{source} names the class {repeated[0]!r} twice. Class names must differ.")
        if not textual:
            if labels.size and not (labels.min() >= 0 and labels.max() < len(classes)):
                raise ValueError(
                    f"{source} names {len(classes)} classes, so labels must be from 0 to {len(classes) - 1}; "
                    f"found {labels.min()} to {labels.max()}."
                )
            return labels.astype(np.int64), tuple(classes)
    names = tuple(classes) if classes is not None else in_class_order({str(v) for v in np.unique(parts[0])})
    index = {name: k for k, name in enumerate(names)}
    values, inverse = np.unique(labels, return_inverse=True)
    unknown = [str(value) for value in values if str(value) not in index]
    if unknown:
        where = "only on test images; add training images" if classes is None else "not one of its classes"
        raise ValueError(f"{source}: the label {unknown[0]!r} is {where}.")
    return np.array([index[str(value)] for value in values], np.int64)[inverse], names


def _checked_labels(labels: NDArray[Any], source: object) -> NDArray[Any]:
    """Return labels as (n,) of int64 or text."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"{source}: labels must be one number or name per image; got shape {labels.shape}. "
            "Convert one-hot rows to numbers with argmax(axis=1)."
        )
    kind = labels.dtype.kind
    if kind in "US" and labels.size and np.char.str_len(labels).max() > LONGEST_LABEL:
        raise ValueError(f"{source}: a label has more than {LONGEST_LABEL:,} characters. Use shorter class names.")
    if kind == "S":
        try:
            return np.char.decode(labels, "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{source}: labels must be UTF-8 text; {error.object[:20]!r} is not. Save text.") from None
    if kind == "f":
        whole = (np.abs(labels) < 2.0**53) & (labels == np.floor(labels))  # False for NaN
        if not whole.all():
            raise ValueError(f"{source}: labels must be whole numbers or names; got {labels[~whole][0]}.")
    elif kind not in "iubU":
        raise ValueError(f"{source}: labels must be whole numbers or names; got dtype {labels.dtype}.")
    if kind == "u" and labels.size and labels.max() > np.iinfo(np.int64).max:
        return labels.astype(str)
    return labels if kind == "U" else labels.astype(np.int64)


# --- .csv ------------------------------------------------------------------------------------------------------------

_PATH_HEADINGS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img")
_LABEL_HEADINGS = ("label", "labels", "class", "class_name", "target", "category", "y")
_SPLIT_HEADINGS = ("split", "part", "subset", "set")
_PARTS = dict.fromkeys(TRAIN_NAMES, "train") | {name: "val" if name[:3] == "val" else "test" for name in TEST_NAMES}


class _Line(NamedTuple):
    label: str
    part: str
    number: int


def read_csv(file: Path, options: DataOptions, log: Log) -> Source:
    """Read a table of path,label, with paths relative to the file's folder.

    Without a header line the first column is the path and the second the label. A column called split (train, test or
    val) gives the parts.
    """
    rows = _csv_rows(file)
    head = [cell.strip().casefold() for cell in rows[0][1]]
    path_at = _find_column(head, options.image_column, _PATH_HEADINGS, file)
    label_at = _find_column(head, options.label_column, _LABEL_HEADINGS, file)
    split_at = _find_column(head, None, _SPLIT_HEADINGS, file)
    if path_at is None and label_at is None:
        log(f"{file} has no header line: its first column is read as path, its second as label")
        path_at, label_at, split_at = 0, 1, None
    elif path_at is None or label_at is None:
        raise ValueError(
            f"{file} has the columns {', '.join(map(repr, rows[0][1]))}: which are path and label? "
            "Pass image_column and label_column."
        )
    else:
        del rows[0]
    skipped: list[Skipped] = []
    lines: dict[str, _Line] = {}
    repeated = 0
    for number, row in rows:
        cells = [cell.strip() for cell in row] + [""] * (max(path_at, label_at, split_at or 0) + 1 - len(row))
        path, label = cells[path_at], cells[label_at]
        if not path or not label:
            skipped.append((f"{file}, line {number}", "no label" if path else "no path"))
            continue
        word = "train" if split_at is None else cells[split_at].casefold()
        part = _PARTS.get(word)
        if part is None:
            raise ValueError(f"{file}, line {number}: the split is {word!r}; expected train, test or val.")
        new = _Line(label, part, number)
        old = lines.setdefault(_resolve(file.parent, path), new)
        if old[:2] != new[:2]:
            raise ValueError(
                f"{file} gives two labels or parts for {one_line(path)}: {old.label!r} ({old.part}) in line "
                f"{old.number}, {new.label!r} ({new.part}) in line {number}. Keep one."
            )
        repeated += old is not new
    if repeated:
        log(f"{count(repeated, 'line')} of {file} repeated an earlier one and was ignored")
    parts = Counter(line.part for line in lines.values())
    if not parts["train"]:
        raise ValueError(f"{file} names no training images. Expected lines of path,label.")
    test_part = "test" if parts["test"] else "val"
    if parts["test"] and parts["val"]:
        log(f"skipped {count(parts['val'], 'validation image')} of {file}: train and test are used")
    train, test = ([path for path, line in lines.items() if line.part == part] for part in ("train", test_part))
    y_train, y_test = (np.array([lines[path].label for path in part], str) for part in (train, test))
    labels, classes = encode_labels(y_train, y_test if test else None, None, file)
    return Source(ImageFiles(train + test), labels, classes, len(train) if test else None, skipped)


def _csv_rows(file: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, cells) of every line that is not empty."""
    check_memory(64 * file.stat().st_size, f"the table {file}")  # a line of four characters takes about 250 bytes
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text. Save it as CSV UTF-8.") from None
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"{file} is not a table of values: {error}.") from None
    if not rows or len(rows[0][1]) < 2:
        raise ValueError(f"{file} has fewer than two columns. Expected lines of path,label.")
    return rows


def _find_column(head: list[str], wanted: str | None, usual: tuple[str, ...], file: Path) -> int | None:
    if wanted is not None:
        if wanted.casefold() not in head:
            raise ValueError(f"{file} has no column {wanted!r}; it has {', '.join(map(repr, head))}.")
        return head.index(wanted.casefold())
    return next((head.index(name) for name in usual if name in head), None)


def _resolve(folder: Path, path: str) -> str:
    full = os.path.normpath(folder / path)
    if "\\" in path and not os.path.exists(full):  # noqa: PTH110 - once per line; a table made on Windows
        other = os.path.normpath(folder / path.replace("\\", "/"))
        return other if os.path.exists(other) else full  # noqa: PTH110
    return full


# --- .npz ------------------------------------------------------------------------------------------------------------

# Our names of the arrays, and those that other libraries use.
_ARRAYS = {
    "x_train": ("x_train", "train_images", "x", "images", "data"),
    "y_train": ("y_train", "train_labels", "y", "labels"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
    "classes": ("classes", "class_names", "label_names"),
}


def read_npz(file: Path, options: DataOptions, log: Log) -> Source:
    """Read x_train, y_train and optionally x_test, y_test and classes.

    Images are NHWC, NCHW or NHW; `layout` decides if the shape is ambiguous. Floats are read as 0 to 1 if none is above
    1, else as 0 to 255.
    """
    try:
        held = array_names(file)
        present = {name.lower(): name for name in held}
        found = {name: next((present[one] for one in usual if one in present), None) for name, usual in _ARRAYS.items()}
        arrays = read_arrays(file, {key for key in found.values() if key is not None})
    except NotPlainArrays as reason:
        raise ValueError(f"{file} cannot be read as .npz: {reason}.") from None
    content = {name: np.atleast_1d(arrays[key]) for name, key in found.items() if key is not None}
    for name in ("x_train", "y_train"):
        if name not in content:
            raise ValueError(
                f"{file} has no {name}; it holds {', '.join(map(one_line, held)) or 'nothing'}. "
                "Expected x_train, y_train and optionally x_test, y_test, classes."
            )
    if ("x_test" in content) != ("y_test" in content):
        raise ValueError(f"{file} has one of x_test and y_test; expected both or neither.")
    parts = ("train", "test") if "x_test" in content else ("train",)
    for part in parts:
        n_images, n_labels = len(content[f"x_{part}"]), len(content[f"y_{part}"])
        if n_images != n_labels:
            raise ValueError(f"{file}: x_{part} has {n_images} images and y_{part} {n_labels} labels.")
    names = content.get("classes")
    classes = None if names is None else [str(name) for name in _checked_labels(names, f"{file}, classes").tolist()]
    labels, found_classes = encode_labels(content["y_train"], content.get("y_test"), classes, file)
    planes = [_channels_first(content[f"x_{part}"], options.layout, f"{file}: x_{part}") for part in parts]
    if len({array.shape[1:] for array in planes}) > 1:
        raise ValueError(f"{file}: x_train and x_test differ in size, {planes[0].shape[1:]} and {planes[1].shape[1:]}.")
    n_train = len(planes[0]) if len(planes) > 1 else None
    return Source(_as_uint8(planes, file, log), labels, found_classes, n_train)


def _channels_first(images: NDArray[Any], layout: str | None, what: str) -> NDArray[Any]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise ValueError(f"{what} must be (n, H, W, C), (n, C, H, W) or (n, H, W); got shape {images.shape}.")
    if layout is None:
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if first and last:
            raise ValueError(f"{what} of shape {images.shape} may be NHWC or NCHW. Pass layout.")
        layout = "NCHW" if first else "NHWC"
    planes = images.transpose(0, 3, 1, 2) if layout == "NHWC" else images
    if planes.shape[1] not in (1, 3) or 0 in planes.shape[2:]:
        raise ValueError(f"{what} must have 1 or 3 channels; as {layout}, shape {images.shape} has {planes.shape[1]}.")
    return planes


def _as_uint8(parts: list[NDArray[Any]], file: Path, log: Log) -> NDArray[np.uint8]:
    """Return all parts in one array, scaled by one rule so that train and test keep one scale."""
    if any(part.dtype.kind not in "buif" for part in parts):
        raise ValueError(f"{file}: images must be numbers; got dtype {parts[0].dtype}.")
    scale = np.float32(1)
    if any(part.dtype != np.uint8 for part in parts):
        filled = [part for part in parts if part.size]
        low = min((part.min() for part in filled), default=0)
        high = max((part.max() for part in filled), default=0)
        if not (low >= 0 and high <= 255):  # also true for NaN
            raise ValueError(
                f"{file}: pixel values are from {low} to {high}; expected 0 to 1 or 0 to 255. Undo the normalisation, "
                "or save uint8."
            )
        floats = any(part.dtype.kind == "f" for part in parts)
        unit = (floats and high <= 1) or all(part.dtype.kind == "b" for part in parts)
        if floats:
            log(f"{file} holds floats from {low:.4g} to {high:.4g}, read as 0 to {1 if unit else 255}")
        scale = np.float32(255 if unit else 1)
    elif len(parts) == 1:
        return np.ascontiguousarray(parts[0])
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    check_memory(2 * int(np.prod(shape)), f"{file} as uint8 beside the arrays it holds")
    images = np.empty(shape, np.uint8)
    start = 0
    for part in parts:
        for first in range(0, len(part), 1024):
            block = part[first : first + 1024]
            images[start : start + len(block)] = block if block.dtype == np.uint8 else np.rint(block * scale)
            start += len(block)
    return images
