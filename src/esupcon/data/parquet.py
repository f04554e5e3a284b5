"""Read Parquet files with encoded images and labels, as Hugging Face `datasets` publishes them, through pyarrow.

A source is one file, or a folder of files whose names begin with their part (train-00000-of-00001.parquet). What a
file claims is checked before memory is allocated for it. Many rows can share one large value, which the file stores
once: so images and text are read one by one.
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
from esupcon._io import check_memory
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
    read = {name: _read_labels(parts[name], label) for name in (train, *TEST_NAMES) if name in parts}
    # `datasets` marks missing labels by -1.
    labelled = [name for name, y in read.items() if name != train and (y.dtype.kind != "i" or (y >= 0).any())]
    used = [train, *labelled[:1]]
    for name in set(parts) - set(used):
        log(f"skipped the part {name!r} of {source}{'' if labelled else ' without labels'}")
    n_train, y_test = (len(read[train]), read[labelled[0]]) if labelled else (None, None)
    labels, classes = encode_labels(read[train], y_test, names, source)
    images = ParquetImages([file for name in used for file in parts[name]], image)
    if len(images) != len(labels):
        raise ValueError(f"{source} has {len(images):,} images and {len(labels):,} labels. Save it again.")
    return Source(images, labels, classes, n_train)


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
        for value in _values(file, self._column):
            content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
            if content is None and isinstance(path, str) and path:
                yield str(file.parent / path)
            else:
                yield content if isinstance(content, bytes) else b""


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # noqa: PLC0415 - an extra, and slow to import
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
            # The metadata of single columns would be more exact, but pyarrow 26 aborts the process if they are damaged.
            groups = (table.metadata.row_group(i) for i in range(table.metadata.num_row_groups))
            largest = max((int(group.total_byte_size) for group in groups), default=0)
            check_memory(4 * largest, f"{file}, with its largest group of rows,")
            yield table
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None


def _values(file: Path, column: str) -> Iterator[Any]:
    """Return the values of a column, holding one image or text in memory at a time."""
    pa = _pyarrow()
    with _open(file) as table:
        if column not in table.schema_arrow.names:
            raise ValueError(f"{file} has no column {column!r}, unlike the other files.")
        n_rows = 4096 if pa.types.is_primitive(table.schema_arrow.field(column).type) else 1
        for batch in table.iter_batches(batch_size=n_rows, columns=[column]):
            yield from batch.column(batch.schema.get_field_index(column)).to_pylist()


def _choose_columns(file: Path, options: DataOptions) -> tuple[str, str, list[str] | None]:
    """Return the columns of images and labels, and the class names if `datasets` stored them."""
    pa = _pyarrow()
    with _open(file) as table:
        schema = table.schema_arrow
    try:
        stored = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        features = {name: one for name, one in stored.items() if name in schema.names and isinstance(one, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        features = {}

    def choose(what: str, wanted: str | None, candidates: list[str], usual: tuple[str, ...]) -> str:
        named = [name for one in usual for name in candidates if name.casefold() == one]
        chosen = wanted or next(iter(candidates if len(candidates) == 1 else named), None)
        if chosen is None or chosen not in schema.names:
            listed = ", ".join(repr(printable(name)) for name in schema.names)
            missing = "" if wanted is None else f" and not {wanted!r}"
            raise ValueError(f"{file} has the columns {listed}{missing}: which holds the {what}s? Pass {what}_column.")
        return chosen

    structs = [one.name for one in schema if pa.types.is_struct(one.type) and one.type.get_field_index("bytes") >= 0]
    images = structs + [one.name for one in schema if one.type in (pa.binary(), pa.large_binary())]
    image = choose("image", options.image_column, images, _IMAGE_NAMES)
    classed = [name for name, one in features.items() if one.get("_type") == "ClassLabel"]
    label = choose("label", options.label_column, classed or list(schema.names), _LABEL_NAMES)
    names = features.get(label, {}).get("names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{file} has {names!r:.100} as the names of its classes; expected a list of texts.")
    return image, label, names


def _read_labels(files: list[Path], column: str) -> NDArray[Any]:
    values: list[int | float | str] = []
    for file in files:
        where = f"{file}: the column {column!r}"
        for value in _values(file, column):
            if not isinstance(value, int | float | str):
                what = "rows without a label" if value is None else f"values of type {type(value).__name__}"
                raise ValueError(f"{where} holds {what}; labels are whole numbers or text.")  # noqa: TRY004
            if isinstance(value, str) and len(value) > LONGEST_LABEL:
                remedy = "Use shorter class names, or pass label_column"
                raise ValueError(f"{where} has labels of more than {LONGEST_LABEL:,} characters. {remedy}.")
            values.append(value)
    if any(isinstance(value, str) for value in values):
        return np.array([*map(str, values)], object)  # see `as_text`
    return np.array(values) if values else np.empty(0, np.int64)
