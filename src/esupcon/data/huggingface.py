"""Images in Arrow or Parquet, as Hugging Face `datasets` saves and publishes them; read through pyarrow alone.

A folder of `save_to_disk`: state.json lists the Arrow files; or dataset_dict.json lists folders of that kind. A
Parquet file, or a folder of such whose names begin with their part (train-00000-of-00001.parquet).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from esupcon.data.arrow_files import ArrowImages, column_cells, opened, pyarrow_module
from esupcon.data.folders import TEST_NAMES, TRAIN_NAMES
from esupcon.data.labels import RawLabels, encode_labels
from esupcon.data.listing import Listing
from esupcon.data.progress import Say
from esupcon.files import quoted

_IMAGE_NAMES = ("image", "img", "images", "picture", "pixel_values")
_LONGEST_NAME = 255  # bytes; no usual system has longer ones
_LABEL_NAMES = ("label", "labels", "fine_label", "class", "target", "category", "y")


def is_arrow_source(path: Path) -> bool:
    if path.is_dir():
        markers = ("dataset_dict.json", "state.json")
        return any((path / name).is_file() for name in markers) or any(_parquet_files(path))
    return path.suffix.lower() == ".parquet"


def list_arrow(source: Path, note: Say, *, image_column: str | None = None, label_column: str | None = None) -> Listing:
    """The training part and the test part, or the validation part where there is no test part with labels."""
    parts = _parts(source)
    train_name = next((name for name in TRAIN_NAMES if name in parts), None)
    if train_name is None:
        raise ValueError(f"{source} has no training part; it has {', '.join(parts) or 'none at all'}.")
    schema, features = _schema(parts[train_name])
    image = _choose(image_column, _IMAGE_NAMES, "image", _image_columns(schema, features), schema, source)
    label = _choose(label_column, _LABEL_NAMES, "label", _label_columns(schema, features), schema, source)
    y_train = _labels(parts[train_name], label)
    test_name, y_test = _test_part(parts, label, source, note)
    for name in parts:
        if name not in (train_name, test_name):
            note(f"the part {name!r} of {source} is not read")
    names = features.get(label, {}).get("names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{source} notes {names!r:.100} as the names of its classes; expected a list of texts.")
    coded, coded_test, classes = encode_labels(y_train, y_test, names, source)
    files = parts[train_name] + (parts[test_name] if test_name else [])
    labels = coded if coded_test is None else np.concatenate([coded, coded_test])
    return Listing(ArrowImages(files, image), labels, classes, None if coded_test is None else len(coded))


def _test_part(
    parts: dict[str, list[Path]], label: str, source: Path, note: Say
) -> tuple[str | None, RawLabels | None]:
    for name in (name for name in TEST_NAMES if name in parts):
        labels = _labels(parts[name], label)
        if labels.dtype.kind == "i" and (labels.astype(np.int64) < 0).all():  # how `datasets` marks the absence
            note(f"the part {name!r} of {source} has no labels")
            continue
        return name, labels
    return None, None


def _parts(source: Path) -> dict[str, list[Path]]:
    """{part: files}"""
    if source.is_file():
        return {"train": [source]}
    if (source / "dataset_dict.json").is_file():
        names = _json(source / "dataset_dict.json").get("splits", [])
        if not isinstance(names, list) or not all(map(_is_folder_name, names)):
            raise ValueError(f"{source / 'dataset_dict.json'} must list names of folders; got {names!r:.100}.")
        return {name: _arrow_files(source / name) for name in names}
    if (source / "state.json").is_file():
        return {"train": _arrow_files(source)}
    parts: dict[str, list[Path]] = {}
    for file in sorted(_parquet_files(source)):
        words = re.split(r"[-_.]", file.stem.lower(), maxsplit=1)[0], file.parent.name.lower()
        known = (*TRAIN_NAMES, *TEST_NAMES)
        parts.setdefault(next((word for word in words if word in known), "train"), []).append(file)
    return parts


def _is_folder_name(name: object) -> bool:
    return isinstance(name, str) and _can_be_a_name(name) and Path(name).name == name


def _can_be_a_name(name: str) -> bool:
    return name.isprintable() and len(name.encode()) <= _LONGEST_NAME


def _parquet_files(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*.parquet")
    yield from folder.glob("*/*.parquet")


def _arrow_files(folder: Path) -> list[Path]:
    state = _json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise ValueError(f"{folder} was saved with a selection of rows beside it. Save it after flatten_indices().")
    entries = state.get("_data_files", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{folder / 'state.json'} is not what `datasets` writes. Save the data set again.")
    files = [folder / Path(str(entry.get("filename"))).name for entry in entries]
    absent = [quoted(file.name) for file in files if not (_can_be_a_name(file.name) and file.is_file())]
    if absent or not files:
        raise FileNotFoundError(f"{folder} lacks {', '.join(absent) or 'Arrow files'}. Save the data set again.")
    return files


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is missing. Save the data set again.") from None
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        return content
    raise ValueError(f"{file} is not what `datasets` writes. Save the data set again.")


def _schema(files: list[Path]) -> tuple[Any, dict[str, Any]]:
    """The columns, and what `datasets` noted about them."""
    file = files[0]
    with opened(file) as table:
        schema = table.schema_arrow if file.suffix.lower() == ".parquet" else table.schema
    if not _has_names(schema):
        raise ValueError(f"{file} is damaged: the name of a column is no text. Save the data set again.")
    features: Any = None
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        info = file.parent / "dataset_info.json"
        if info.is_file():
            features = _json(info).get("features")
    if not isinstance(features, dict):
        return schema, {}
    return schema, {name: one for name, one in features.items() if name in schema.names and isinstance(one, dict)}


def _has_names(schema: Any) -> bool:
    try:
        return isinstance(schema.names, list)
    except UnicodeDecodeError:
        return False


def _image_columns(schema: Any, features: dict[str, Any]) -> list[str]:
    noted = [name for name, one in features.items() if one.get("_type") == "Image"]
    pa = pyarrow_module()

    def holds_bytes(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    return noted or [field.name for field in schema if holds_bytes(field.type)]


def _label_columns(schema: Any, features: dict[str, Any]) -> list[str]:
    noted = [name for name, one in features.items() if one.get("_type") == "ClassLabel"]
    return noted or [name for name in schema.names if name.casefold() in _LABEL_NAMES]


def _choose(
    wanted: str | None, usual: tuple[str, ...], what: str, candidates: list[str], schema: Any, source: Path
) -> str:
    columns = ", ".join(map(repr, schema.names))
    if wanted is not None:
        if wanted not in schema.names:
            raise ValueError(f"{source} has no column {wanted!r}; it has {columns}.")
        return wanted
    if len(candidates) == 1:
        return candidates[0]
    named = next((name for one in usual for name in candidates if name.casefold() == one), None)
    if named is None:
        raise ValueError(f"{source} has the columns {columns}: which holds the {what}s? Pass {what}_column.")
    return named


def _labels(files: list[Path], column: str) -> RawLabels:
    values: list[Any] = []
    for file in files:
        for cells in column_cells(file, column):
            values += cells
    if any(value is None for value in values):
        raise ValueError(f"{files[0].parent}: the column {column!r} has rows without a label. Remove them.")
    if not values:
        return np.empty(0, np.int64)
    kinds = {type(value) for value in values}
    if not kinds <= {int, bool, float, str, bytes}:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"{files[0].parent}: the column {column!r} holds {found}; labels are whole numbers or names.")
    return np.array(values)
