"""What a reader returns, label encoding, and the readers of `.csv` and `.npz` files.

A reader is a function (path, options, log) -> Source; `esupcon.data.dataset` chooses it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon._console import Log, count, printable, usable_cores
from esupcon._io import NotPlainArrays, array_names, check_memory, file_digest, read_arrays
from esupcon.data import DataOptions
from esupcon.data.decode import Encoded, Skipped

TRAIN_NAMES = ("train", "training")
# In order of preference: validation images are for tuning, so they are tested on only if there is nothing else.
TEST_NAMES = ("test", "testing", "eval", "evaluation", "val", "valid", "validation")
LONGEST_LABEL = 1000  # characters


class ImageFiles:
    """Encoded images, read one after the other: here a list of files, each one image."""

    at_once = 256  # how many may be held in memory together

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - a Path per image is slow

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[Encoded]:
        return iter(self._paths)

    def sample(self, n: int) -> Iterator[Encoded]:
        """Return about n of them without reading all the others."""
        return iter(self._paths[:: max(1, len(self._paths) // n)])

    def name(self, i: int) -> str:
        """Return the name of image i for messages."""
        return self._paths[i]

    def stamp(self) -> list[object]:
        """Return what changes when the images do, fit for JSON: full paths, because copies agree in all else."""
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

    The first `n_train` are the training part. If it is None, there is no test part: `n_per_class` images of each class
    are drawn for training, or a stratified test part if that is None too.
    """

    images: ImageFiles | NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    n_train: int | None = None
    skipped: list[Skipped] = field(default_factory=list)
    n_per_class: int | None = None

    def digest(self) -> str:
        """Return the SHA-256 of the images as stored, their labels, class names and parts; paths do not matter."""
        digest = hashlib.sha256(json.dumps([self.classes, self.n_train, len(self.labels)]).encode())
        digest.update(self.labels.astype("<i8").tobytes())
        if isinstance(self.images, np.ndarray):
            digest.update(str(self.images.shape).encode())
            for start in range(0, len(self.images), 4096):
                digest.update(np.ascontiguousarray(self.images[start : start + 4096]).data)
            return digest.hexdigest()
        images = iter(self.images)
        with ThreadPoolExecutor(usable_cores()) as threads:
            while block := list(islice(images, self.images.at_once)):
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

    With `classes`, whole numbers index them and text is one of them; without, they are the values found in `train`.
    """
    parts = [_checked_labels(part, source) for part in (train, test) if part is not None]
    textual = any(part.dtype.kind == "O" for part in parts)
    names = in_class_order(set(map(str, np.unique(parts[0])))) if classes is None else tuple(classes)
    if bad := [name for name in names if any("\ud800" <= character <= "\udfff" for character in name)]:
        raise ValueError(f"{source}: the class {printable(bad[0])!r} has a name that is not UTF-8 text. Rename it.")
    if len(set(names)) < len(names):
        raise ValueError(f"{source} names a class twice: {', '.join(map(repr, names))}. Class names must differ.")
    keys = names if classes is None or textual else map(str, range(len(names)))
    index = {key: k for k, key in enumerate(keys)}
    labels = np.concatenate([as_text(map(str, part.tolist())) for part in parts] if textual else parts)
    found, inverse = np.unique(labels, return_inverse=True)
    values = list(map(str, found))
    if unknown := [value for value in values if value not in index]:
        where = "only on test images; add training images" if classes is None else f"none of its {len(names)} classes"
        raise ValueError(f"{source}: the label {unknown[0]!r} is {where}.")
    return np.array([index[value] for value in values], np.int64)[inverse], names


def as_text(values: Iterable[str]) -> NDArray[Any]:
    """Return text as an array of objects: in an array of characters each entry takes as much as the longest."""
    return np.array([*values], object)


def _checked_labels(labels: NDArray[Any], source: object) -> NDArray[Any]:
    """Return labels as (n,) of int64 or text (see `as_text`)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        remedy = "Convert one-hot rows to numbers with argmax(axis=1)"
        raise ValueError(f"{source}: labels must be one per image; got shape {labels.shape}. {remedy}.")
    if labels.dtype.kind in "UO":
        if max(map(len, labels.tolist()), default=0) > LONGEST_LABEL:
            raise ValueError(f"{source}: a label has more than {LONGEST_LABEL:,} characters. Use shorter class names.")
        return as_text(labels.tolist())
    if labels.dtype.kind not in "iubf":
        raise ValueError(f"{source}: labels must be whole numbers or text; got dtype {labels.dtype}.")
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    if (whole != labels).any():
        raise ValueError(f"{source}: labels must be whole numbers or text; got {labels[whole != labels][0]}.")
    return whole


def labelled_files(
    train: Sequence[tuple[str, str]], test: Sequence[tuple[str, str]], source: object, skipped: list[Skipped]
) -> Source:
    """Return files, each a path and a label, as a source; without test files it has no test part."""
    y_train, y_test = (as_text(label for _, label in part) for part in (train, test))
    labels, classes = encode_labels(y_train, y_test if test else None, None, source)
    images = ImageFiles([path for path, _ in (*train, *test)])
    return Source(images, labels, classes, len(train) if test else None, skipped)


# --- .csv ------------------------------------------------------------------------------------------------------------

_PATH_HEADINGS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img")
_LABEL_HEADINGS = ("label", "labels", "class", "class_name", "target", "category", "y")
_SPLIT_HEADINGS = ("split", "part", "subset", "set")
_PARTS = dict.fromkeys(TRAIN_NAMES, "train") | {name: "val" if name[:3] == "val" else "test" for name in TEST_NAMES}


def read_csv(file: Path, options: DataOptions, log: Log) -> Source:
    """Read a table with columns of path, relative to the file's folder, label and maybe split (train, test or val)."""
    check_memory(140 * file.stat().st_size, f"the table {file}")  # a line of four characters takes about 540 bytes
    try:
        text = file.read_text(encoding="utf-8-sig")
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.DictReader(io.StringIO(text, newline=""), restval="", delimiter=delimiter, strict=True)
        header = reader.fieldnames or ()
        rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} must be a table of values in UTF-8 text; {error}. Save it as CSV UTF-8.") from None
    if len(header) < 2:
        raise ValueError(f"{file} has fewer than two columns. Expected lines of path,label.")
    columns = {name.strip().casefold(): name for name in header}

    def find_column(wanted: str | None, usual: tuple[str, ...]) -> str | None:
        names = usual if wanted is None else (wanted.casefold(),)
        return next((columns[name] for name in names if name in columns), None)

    path_column = find_column(options.image_column, _PATH_HEADINGS)
    label_column = find_column(options.label_column, _LABEL_HEADINGS)
    split_column = find_column(None, _SPLIT_HEADINGS)
    if path_column is None or label_column is None:
        found = f"{file} has the columns {', '.join(map(repr, header))}: which are path and label?"
        raise ValueError(f"{found} Name them in its first line, or pass image_column and label_column.")
    skipped: list[Skipped] = []
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "test": [], "val": []}  # path and label
    for number, row in rows:
        where = f"{file}, line {number}"
        path, label = row[path_column].strip(), row[label_column].strip()
        if not path or not label:
            skipped.append((where, "no label" if path else "no path"))
            continue
        word = "train" if split_column is None else row[split_column].strip().casefold()
        if word not in _PARTS:
            raise ValueError(f"{where}: the split is {word!r}; expected train, test or val.")
        parts[_PARTS[word]].append((str(file.parent / path), label))
    if not parts["train"]:
        raise ValueError(f"{file} names no training images. Expected lines of path,label.")
    if parts["test"] and parts["val"]:
        log(f"skipped {count(len(parts['val']), 'validation image')} of {file}: train and test are used")
    return labelled_files(parts["train"], parts["test"] or parts["val"], file, skipped)


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
    """Read x_train, y_train and optionally x_test, y_test and classes; images are NHWC, NCHW or NHW."""
    try:
        held = {name.lower(): name for name in array_names(file)}
        found = {name: next((held[one] for one in usual if one in held), "") for name, usual in _ARRAYS.items()}
        arrays = read_arrays(file, {key for key in found.values() if key})
    except NotPlainArrays as reason:
        raise ValueError(f"{file} cannot be read as .npz: {reason}.") from None
    content = {name: np.atleast_1d(arrays[key]) for name, key in found.items() if key}
    if not {"x_train", "y_train"} <= set(content) or ("x_test" in content) != ("y_test" in content):
        names = ", ".join(map(printable, held.values()))
        raise ValueError(f"{file} must hold x_train and y_train, and x_test and y_test or neither; it holds {names}.")
    planes = []
    for part in ("train", "test") if "x_test" in content else ("train",):
        x, n_labels = content[f"x_{part}"], len(content[f"y_{part}"])
        if len(x) != n_labels:
            raise ValueError(f"{file}: x_{part} has {len(x)} images and y_{part} {n_labels} labels.")
        planes.append(channels_first(x, options.layout, f"{file}: x_{part}"))
    if planes[0].shape[1:] != planes[-1].shape[1:]:
        raise ValueError(f"{file}: x_train and x_test differ in size, {planes[0].shape[1:]} and {planes[1].shape[1:]}.")
    classes = None
    if "classes" in content:
        classes = [*map(str, _checked_labels(content["classes"], f"{file}, classes").tolist())]
    labels, names_of_classes = encode_labels(content["y_train"], content.get("y_test"), classes, file)
    n_train = len(planes[0]) if len(planes) > 1 else None
    return Source(_as_uint8(planes, file, log), labels, names_of_classes, n_train)


def channels_first(images: NDArray[Any], layout: str | None, what: str) -> NDArray[Any]:
    """Return images as (n, C, H, W); refuse a shape that may be NHWC or NCHW if no layout is given."""
    shape = images.shape
    if len(shape) == 3:
        images, layout = images[:, None], "NCHW"
    elif len(shape) == 4 and layout is None:
        first, last = shape[1] in (1, 3), shape[3] in (1, 3)
        if first and last:
            raise ValueError(f"{what} of shape {shape} may be NHWC or NCHW. Pass layout=NHWC or layout=NCHW.")
        layout = "NCHW" if first else "NHWC"
    planes = images.transpose(0, 3, 1, 2) if images.ndim == 4 and layout == "NHWC" else images
    if planes.ndim != 4 or planes.shape[1] not in (1, 3) or 0 in planes.shape[2:]:
        expected = "(n, H, W), or (n, H, W, C) or (n, C, H, W) with 1 or 3 channels"
        remedy = " Drop the alpha channel." * (len(shape) == 4 and 4 in (shape[1], shape[3]))
        raise ValueError(f"{what} must be {expected}; got shape {shape}.{remedy}")
    return planes


def _as_uint8(parts: list[NDArray[Any]], file: Path, log: Log) -> NDArray[np.uint8]:
    """Return all parts in one array, scaled by one rule so that train and test keep one scale."""
    if len(parts) == 1 and parts[0].dtype == np.uint8:
        return np.ascontiguousarray(parts[0])
    kinds = {part.dtype.kind for part in parts}
    if not kinds <= set("buif"):
        raise ValueError(f"{file}: images must be numbers; got dtype {parts[0].dtype}.")
    filled = [part for part in parts if part.size]
    low, high = min((part.min() for part in filled), default=0), max((part.max() for part in filled), default=0)
    if not (low >= 0 and high <= 255):  # also true for NaN
        remedy = "Undo the normalisation, or save uint8"
        raise ValueError(f"{file}: pixel values are from {low} to {high}; expected 0 to 1 or 0 to 255. {remedy}.")
    unit = ("f" in kinds and high <= 1) or kinds == {"b"}
    if "f" in kinds:
        log(f"{file} holds floats from {low:.4g} to {high:.4g}, read as 0 to {1 if unit else 255}")
    n_values = sum(part.size for part in parts)
    check_memory(n_values + sum(part.nbytes for part in parts), f"{file}, scaled beside the arrays it holds,")
    scaled, end = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), np.uint8), 0
    for block in (part[i : i + 1024] for part in parts for i in range(0, len(part), 1024)):  # in little memory
        start, end = end, end + len(block)
        scaled[start:end] = np.rint(block * np.float32(255) if unit else block).astype(np.uint8)
    return scaled
