"""Read Parquet files with encoded images and labels, as Hugging Face `datasets` publishes them, through pyarrow.

A source is one file, or a folder of files whose names begin with their part (train-00000-of-00001.parquet). What a
file claims is checked before memory is allocated for it: its rows and bytes, and the length of a label. Many rows can
share one large value, which the file stores once: so images are read one by one, and text a few rows at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon._console import Log, printable
from esupcon._io import check_memory, memory_budget
from esupcon.data import DataOptions
from esupcon.data.decode import Encoded
from esupcon.data.sources import LONGEST_LABEL, TEST_NAMES, TRAIN_NAMES, ImageFiles, Source, encode_labels, stamp_of

_IMAGE_NAMES = ("image", "img", "images", "picture", "pixel_values")
_LABEL_NAMES = ("label", "labels", "fine_label", "class", "target", "category", "y")


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder and its subfolders, sorted."""
    return sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")])


def read_parquet(source: Path, options: DataOptions, log: Log) -> Source:
    """Read the training part, and the test part or else the first other part that has labels."""
    parts: dict[str, list[Path]] = {}
    for file in [source] if source.is_file() else parquet_files(source):
        words = re.split(r"[-_.]", file.stem.lower(), maxsplit=1)[0], file.parent.name.lower()
        known = [word for word in words if word in (*TRAIN_NAMES, *TEST_NAMES)]
        parts.setdefault(known[0] if known and source.is_dir() else "train", []).append(file)
    train = next((name for name in TRAIN_NAMES if name in parts), None)
    if train is None:
        raise ValueError(f"{source} has no training part; it has {', '.join(parts)}.")
    image, label, names = _choose_columns(parts[train][0], options)
    y_train = _read_labels(parts[train], label)
    test, y_test = None, None
    for name in (name for name in TEST_NAMES if name in parts):
        y_test = _read_labels(parts[name], label)
        if y_test.dtype.kind != "i" or (y_test >= 0).any():  # `datasets` marks missing labels by -1
            test = name
            break
        y_test = None
    for name in set(parts) - {train, test}:
        log(f"skipped the part {name!r} of {source}{' without labels' if test is None else ''}")
    labels, classes = encode_labels(y_train, y_test, names, source)
    images = ParquetImages(parts[train] + (parts[test] if test else []), image)
    if len(images) != len(labels):
        raise ValueError(f"{source} has {len(images):,} images and {len(labels):,} labels. Save it again.")
    return Source(images, labels, classes, len(y_train) if test else None)


class ParquetImages(ImageFiles):
    """The images of one column, read in order, one at a time because they may be large."""

    at_once = 1

    def __init__(self, files: list[Path], column: str) -> None:
        self._files, self._column = files, column
        self._counts: list[int] = []
        for file in files:
            with _open(file) as table:
                self._counts.append(int(table.metadata.num_rows))

    def __len__(self) -> int:
        return sum(self._counts)

    def __iter__(self) -> Iterator[Encoded]:
        for file in self._files:
            yield from self._images_of(file)

    def sample(self, n: int) -> Iterator[Encoded]:
        """Return the first rows of every file."""
        for file in self._files:
            yield from islice(self._images_of(file), max(1, n // len(self._files)))

    def name(self, i: int) -> str:
        file = int(np.searchsorted(np.cumsum(self._counts), i, side="right"))
        return f"{self._files[file]}, row {i - sum(self._counts[:file])}"

    def stamp(self) -> list[object]:
        return [self._column, [(str(file.absolute()), *stamp_of(str(file))) for file in self._files]]

    def _images_of(self, file: Path) -> Iterator[Encoded]:
        for array in _column_batches(file, self._column, 1):
            value = array[0].as_py()
            content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
            if content is None and isinstance(path, str) and path:
                yield str(file.parent / path)
            else:
                yield content if isinstance(content, bytes) else b""


def _pyarrow() -> Any:
    try:
        import pyarrow.compute  # noqa: PLC0415 - an extra, and slow to import
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        remedy = "pip install 'esupcon[parquet]'"
        raise ModuleNotFoundError(f"Parquet files are read by pyarrow, which is not installed: {remedy}.") from None
    return pyarrow


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    """Open a file that has no more rows than bytes and whose largest group of rows fits into memory."""
    pa = _pyarrow()
    try:
        with pa.parquet.ParquetFile(file) as table:
            if table.metadata.num_rows > file.stat().st_size:
                raise ValueError(f"{file} has more rows than bytes: it holds no images.")
            check_memory(4 * _largest_group(table), f"{file}, with its largest group of rows,")
            yield table
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None


def _largest_group(table: Any) -> int:
    # The metadata of single columns would be more exact, but pyarrow 26 aborts the process if they are damaged.
    groups = range(table.metadata.num_row_groups)
    return max((int(table.metadata.row_group(i).total_byte_size) for i in groups), default=0)


def _column_batches(file: Path, column: str, n_rows: int | None = None) -> Iterator[Any]:
    """Return the arrays of a column, `n_rows` at a time; by default as many as surely need little memory."""
    pa = _pyarrow()
    with _open(file) as table:
        if column not in table.schema_arrow.names:
            raise ValueError(f"{file} has no column {column!r}, unlike the other files.")
        if n_rows is None:  # text may be as long as its group
            most = memory_budget() // 256 // max(1, _largest_group(table))
            n_rows = 4096 if pa.types.is_primitive(table.schema_arrow.field(column).type) else max(1, min(4096, most))
        for batch in table.iter_batches(batch_size=n_rows, columns=[column]):
            yield batch.column(batch.schema.get_field_index(column))


def _choose_columns(file: Path, options: DataOptions) -> tuple[str, str, list[str] | None]:
    """Return the columns of images and labels, and the class names if `datasets` stored them."""
    pa = _pyarrow()
    with _open(file) as table:
        schema = table.schema_arrow
    columns = list(schema.names)
    try:
        stored = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        features = {name: one for name, one in stored.items() if name in columns and isinstance(one, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        features = {}

    def choose(what: str, wanted: str | None, feature: str, otherwise: list[str], usual: tuple[str, ...]) -> str:
        candidates = [name for name, one in features.items() if one.get("_type") == feature] or otherwise
        named = [name for one in usual for name in candidates if name.casefold() == one]
        chosen = wanted or next(iter(candidates if len(candidates) == 1 else named), None)
        if chosen is None or chosen not in columns:
            listed = ", ".join(repr(printable(name)) for name in columns)
            missing = "" if wanted is None else f" and not {wanted!r}"
            raise ValueError(f"{file} has the columns {listed}{missing}: which holds the {what}s? Pass {what}_column.")
        return chosen

    structs = [one.name for one in schema if pa.types.is_struct(one.type) and one.type.get_field_index("bytes") >= 0]
    images = structs + [one.name for one in schema if one.type in (pa.binary(), pa.large_binary())]
    image = choose("image", options.image_column, "Image", images, _IMAGE_NAMES)
    label = choose("label", options.label_column, "ClassLabel", columns, _LABEL_NAMES)
    names = features.get(label, {}).get("names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{file} has {names!r:.100} as the names of its classes; expected a list of texts.")
    return image, label, names


def _read_labels(files: list[Path], column: str) -> NDArray[Any]:
    """Return the labels as an array, after a check that their text is short."""
    pa = _pyarrow()
    values: list[Any] = []
    for file in files:
        for array in _column_batches(file, column):
            kind, texts = array.type, array.dictionary if pa.types.is_dictionary(array.type) else array
            number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            text = texts.type in (pa.string(), pa.large_string())
            where = f"{file}: the column {column!r}"
            if array.null_count or not (number or text):
                what = "rows without a label" if array.null_count else str(kind)
                raise ValueError(f"{where} holds {what}; labels are whole numbers or text.")
            if text and (pa.compute.max(pa.compute.binary_length(texts)).as_py() or 0) > LONGEST_LABEL:
                remedy = "Use shorter class names, or pass label_column"
                raise ValueError(f"{where} has labels of more than {LONGEST_LABEL:,} bytes. {remedy}.")
            values += array.to_pylist()
    return np.array(values) if values else np.empty(0, np.int64)
