"""Read a folder of images: root/class/*.jpg, or root/train/class and root/test/class."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np

from esupcon._console import Log, count
from esupcon._io import OWNED
from esupcon.data import DataOptions
from esupcon.data.decode import SUFFIXES, Skipped
from esupcon.data.sources import TEST_NAMES, TRAIN_NAMES, ImageFiles, Source, in_class_order

_SYSTEM_FOLDERS = ("__MACOSX", "__pycache__", "lost+found", "$RECYCLE.BIN")


def read_folder(root: Path, options: DataOptions, log: Log) -> Source:
    """List every image below `root`, with the folder it lies in as its class."""
    train, test = _find_parts(root, log)
    skipped: list[Skipped] = []
    files = _files_by_class(train, skipped, log)
    empty = [name for name, of_class in files.items() if not of_class]
    if len(empty) == len(files):
        n = len(_images_directly_in(train))
        raise ValueError(
            f"{train} holds {count(n, 'image')} and no class folders. Put each class into a folder of its own, or pass "
            "a CSV of path,label."
            if n
            else f"{train} holds no images. Expected {train}/<class>/*.jpg, or train/ and test/ with such folders."
        )
    if empty:
        names = ", ".join(map(repr, empty[:5])) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        log(f"skipped {count(len(empty), 'empty class folder')} in {train}: {names}")
    classes = in_class_order(set(files) - set(empty))
    if len(classes) == 1 and _subfolders(train / classes[0]):
        raise ValueError(f"{train} holds one folder, {classes[0]!r}, and folders in it. Pass {train / classes[0]}.")
    _report_names_that_differ_in_case(classes, log)
    parts = (
        [files] if test is None else [files, _match_classes(_files_by_class(test, skipped, log), classes, test, log)]
    )
    listed = [(path, k) for part in parts for k, name in enumerate(classes) for path in part.get(name, [])]
    n_train = None if test is None else sum(len(files[name]) for name in classes)
    labels = np.array([k for _, k in listed], np.int64)
    return Source(ImageFiles([path for path, _ in listed]), labels, classes, n_train, skipped)


def image_files_below(folder: Path, skipped: list[Skipped]) -> list[str]:
    """Return the paths of all image files below `folder`, sorted; list broken links and the like in `skipped`."""
    return _walk(str(folder), skipped, Counter())


def _find_parts(root: Path, log: Log) -> tuple[Path, Path | None]:
    """Return the folders of the training and the test part: `root` and None if it is not divided.

    A folder called train is the training part if it holds folders and no images, and a test part or nothing else stands
    beside it. Otherwise it may be a class of trains.
    """
    folders = _subfolders(root)
    by_name = {folder.name.casefold(): folder for folder in folders}
    train = next((by_name[name] for name in TRAIN_NAMES if name in by_name), None)
    tests = [by_name[name] for name in TEST_NAMES if name in by_name]
    divided = train is not None and _subfolders(train) and not _images_directly_in(train)
    if train is None or not divided or not (tests or len(folders) == 1):
        return root, None
    test = next((test for test in tests if _subfolders(test)), None)
    for folder in folders:
        if folder not in (train, test):
            used = f"{train.name} and {test.name} are" if test else f"{train.name} is"
            reason = ", which has no class folders" if folder in tests and not _subfolders(folder) else ""
            log(f"skipped {folder}{reason}: {used} used")
    return train, test


def _files_by_class(folder: Path, skipped: list[Skipped], log: Log) -> dict[str, list[str]]:
    """Return {class: files}. Names are compared in Unicode's composed form, because file systems differ in theirs."""
    others: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for path in _subfolders(folder):
        name = unicodedata.normalize("NFC", path.name)
        if name in files:
            log(f"two folders in {folder} are called {name!r}, equal after Unicode normalisation; merged")
        files[name] = sorted(files.get(name, []) + _walk(str(path), skipped, others))
    if files:
        skipped += [(path, "in no class folder") for path in _images_directly_in(folder)]
    skipped.sort()
    if others:
        names = ", ".join(name for name, _ in others.most_common(3)) + (", ..." if len(others) > 3 else "")
        n = others.total()
        log(f"skipped {n} {'entry' if n == 1 else 'entries'} below {folder} that are not images: {names}")
    return files


def _walk(top: str, skipped: list[Skipped], others: Counter[str]) -> list[str]:
    """Return the image files below `top`, sorted. Links are followed; no folder is entered twice, so loops end."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    ahead = [top]
    while ahead:
        folder = ahead.pop()
        try:
            status = os.stat(folder)  # noqa: PTH116 - with os.scandir below: a tree may hold a million entries
            if (status.st_dev, status.st_ino) in seen:
                others[f"{os.path.basename(folder)} (a link back)"] += 1  # noqa: PTH119 - as above
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_folder(entry) and not _is_ignored(entry):
                        ahead.append(entry.path)
                    elif _is_ignored(entry) or not _is_image_name(entry.name):
                        others[entry.name] += 1
                    elif (reason := _why_no_file(entry)) is not None:
                        skipped.append((entry.path, reason))
                    else:
                        found.append(entry.path)
        except OSError as error:
            skipped.append((folder, error.strerror or str(error)))
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_ignored(entry: os.DirEntry[str]) -> bool:
    """Return True for hidden files, folders of the system, and folders that esupcon wrote its output to."""
    if entry.name.startswith(".") or entry.name in _SYSTEM_FOLDERS:
        return True
    return _is_folder(entry) and os.path.lexists(os.path.join(entry.path, OWNED))  # noqa: PTH118 - as in _walk


def _why_no_file(entry: os.DirEntry[str]) -> str | None:
    try:
        return None if stat.S_ISREG(entry.stat().st_mode) else "not a regular file"
    except OSError as error:
        return "a broken link" if entry.is_symlink() else error.strerror or str(error)


def _is_image_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - once per file of the tree


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if _is_folder(entry) and not _is_ignored(entry))
    except OSError as error:
        raise type(error)(f"{folder} cannot be read: {error.strerror}.") from None


def _images_directly_in(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        images = [e.path for e in entries if _is_image_name(e.name) and not _is_ignored(e) and not _is_folder(e)]
    return sorted(images)


def _match_classes(
    files: dict[str, list[str]], classes: tuple[str, ...], folder: Path, log: Log
) -> dict[str, list[str]]:
    """Return the test files by training class; names that differ in case only are matched."""
    matched: dict[str, list[str]] = {}
    for name, of_class in files.items():
        alike = [one for one in classes if one.casefold() == name.casefold()]
        if name in classes:
            target = name
        elif len(alike) == 1:
            target = alike[0]
            log(f"{folder / name} is read as the training class {target!r}")
        elif of_class:
            raise ValueError(f"the class {name!r} of {folder} has no training images. Add some, or remove the folder.")
        else:
            continue
        matched[target] = matched.get(target, []) + of_class
    absent = [name for name in classes if not matched.get(name)]
    if absent:
        log(f"{count(len(absent), 'class')} without a test image, for example {absent[0]!r}")
    return matched


def _report_names_that_differ_in_case(names: tuple[str, ...], log: Log) -> None:
    by_fold: dict[str, list[str]] = {}
    for name in names:
        by_fold.setdefault(name.casefold(), []).append(name)
    for alike in by_fold.values():
        if len(alike) > 1:
            log(
                f"the classes {' and '.join(map(repr, sorted(alike)))} differ in case only and stay separate; "
                "give the folders one name to merge them"
            )
