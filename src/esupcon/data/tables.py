"""A CSV of path,label: one line an image, paths relative to the file's own folder."""

import csv
import io
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from esupcon.data.folders import TEST_NAMES, TRAIN_NAMES
from esupcon.data.listing import ImageFiles, Listing, Skipped, in_class_order
from esupcon.data.progress import Say
from esupcon.files import quoted

_PATH_HEADINGS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img")
_LABEL_HEADINGS = ("label", "labels", "class", "class_name", "target", "category", "y")
_SPLIT_HEADINGS = ("split", "part", "subset", "set")


def list_csv(file: Path, note: Say, *, image_column: str | None = None, label_column: str | None = None) -> Listing:
    """The images a table names. Without a header line the first column is the path, the second the label. A
    column called split (train, test or val) divides them."""
    rows = _rows(file)
    path_at, label_at, split_at, first = _columns(file, rows[0][1], image_column, label_column, note)
    skipped: list[Skipped] = []
    lines: dict[str, _Line] = {}
    repeated = 0
    for number, row in rows[first:]:
        cells = [cell.strip() for cell in row] + [""] * (max(path_at, label_at, split_at or 0) + 1 - len(row))
        path, label = cells[path_at], cells[label_at]
        if not path or not label:
            skipped.append((f"{file}, line {number}", "no label" if path else "no path"))
            continue
        part = "train" if split_at is None else _part(cells[split_at], file, number)
        new = _Line(label, part, number)
        old = lines.setdefault(_resolved(file.parent, path), new)
        if (old.label, old.part) != (label, part):
            raise ValueError(
                f"{file} says two things of {quoted(path)}: {old.label!r} ({old.part}) in line {old.number}, "
                f"{label!r} ({part}) in line {number}. Keep one."
            )
        repeated += old is not new
    if not lines:
        raise ValueError(f"{file} names no images. Expected lines of path,label.")
    if repeated:
        note(f"{repeated} line(s) of {file} repeat an earlier one and count once")
    return _listing(file, lines, skipped, note)


class _Line(NamedTuple):
    label: str
    part: str
    number: int


def _listing(file: Path, lines: dict[str, _Line], skipped: list[Skipped], note: Say) -> Listing:
    parts = Counter(line.part for line in lines.values())
    test_part = "test" if parts["test"] else "val"
    if parts["test"] and parts["val"]:
        note(f"{parts['val']} validation image(s) of {file} are not read: train and test are used")
    train = [path for path, line in lines.items() if line.part == "train"]
    test = [path for path, line in lines.items() if line.part == test_part]
    classes = in_class_order({lines[path].label for path in train})
    index = {name: k for k, name in enumerate(classes)}
    unknown = sorted({lines[path].label for path in test} - set(classes))
    if unknown:
        raise ValueError(f"{file}: the label {unknown[0]!r} is on test images alone. Give it training images too.")
    labels = np.array([index[lines[path].label] for path in train + test], np.int64)
    return Listing(ImageFiles(train + test), labels, classes, len(train) if test else None, skipped)


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that has any."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text. Save it as CSV UTF-8.") from None
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"{file} is not a table of values: {error}.") from None
    if not rows or len(rows[0][1]) < 2:
        raise ValueError(f"{file} has no two columns. Expected lines of path,label.")
    return rows


def _columns(
    file: Path, head: list[str], image_column: str | None, label_column: str | None, note: Say
) -> tuple[int, int, int | None, int]:
    """Where path, label and split stand, and the first line of data."""
    names = [cell.strip().casefold() for cell in head]
    path_at = _find(names, image_column, _PATH_HEADINGS, file)
    label_at = _find(names, label_column, _LABEL_HEADINGS, file)
    split_at = _find(names, None, _SPLIT_HEADINGS, file)
    if path_at is not None and label_at is not None:
        return path_at, label_at, split_at, 1
    if path_at is None and label_at is None:
        note(f"{file} has no header line: its first column is read as path, its second as label")
        return 0, 1, None, 0
    raise ValueError(
        f"{file} has the columns {', '.join(map(repr, head))}: which are path and label? "
        "Pass image_column and label_column."
    )


def _find(names: list[str], wanted: str | None, usual: tuple[str, ...], file: Path) -> int | None:
    if wanted is not None:
        if wanted.casefold() not in names:
            raise ValueError(f"{file} has no column {wanted!r}; it has {', '.join(map(repr, names))}.")
        return names.index(wanted.casefold())
    return next((names.index(name) for name in usual if name in names), None)


def _part(word: str, file: Path, number: int) -> str:
    word = word.casefold()
    if word in TRAIN_NAMES:
        return "train"
    if word in TEST_NAMES:
        return "test" if word.startswith("test") else "val"
    raise ValueError(f"{file}, line {number}: the split is {word!r}; expected train, test or val.")


def _resolved(folder: Path, path: str) -> str:
    full = os.path.normpath(folder / path)
    if "\\" in path and not os.path.exists(full):  # noqa: PTH110 - once per line; a table made on Windows
        other = os.path.normpath(folder / path.replace("\\", "/"))
        return other if os.path.exists(other) else full  # noqa: PTH110
    return full
