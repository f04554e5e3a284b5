"""Read a folder of images: root/class/*.jpg, or root/train/class and root/test/class."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from functools import partial
from pathlib import Path

from esupcon._console import Log, count
from esupcon._io import OWNED
from esupcon.data import DataOptions
from esupcon.data.decode import SUFFIXES, Skipped
from esupcon.data.sources import TEST_NAMES, TRAIN_NAMES, Source, in_class_order, labelled_files

_SYSTEM_FOLDERS = ("__MACOSX", "__pycache__", "lost+found", "$RECYCLE.BIN")


def read_folder(root: Path, options: DataOptions, log: Log) -> Source:
    """List every image below `root`, with the folder it lies in as its class.

    Folders `train` and `test` (or `eval`, `val`, `valid`, `validation`; any capitalisation) are the two parts. If there
    are several of the latter, `test` is used, and a message names the others.
    """
    train, test = _find_parts(root, log)
    skipped: list[Skipped] = []
    files = _files_by_class(train, skipped, log)
    if not files:
        held = f"it holds {count(len(_images_directly_in(train)), 'image')} and no such folder"
        remedy = "Sort the images, or pass a CSV of path,label"
        raise ValueError(f"{train} must hold a folder for each class, as {train}/<class>/*.jpg; {held}. {remedy}.")
    if len(files) == 1 and _subfolders(only := train / next(iter(files))):
        raise ValueError(f"{train} holds one folder, {only.name!r}, and folders in it. Pass {only}.")
    parts = [files, {} if test is None else _files_by_class(test, skipped, log)]
    train_files, test_files = (
        [(path, name) for name in in_class_order(set(part)) for path in part[name]] for part in parts
    )
    return labelled_files(train_files, test_files, root, skipped)


def image_files_below(folder: Path, skipped: list[Skipped]) -> list[str]:
    """Return the paths of all image files below `folder`, sorted; list broken links and the like in `skipped`."""
    return _walk(str(folder), skipped, Counter())


def _find_parts(root: Path, log: Log) -> tuple[Path, Path | None]:
    """Return the folders of the training and the test part; (root, None) if it is not divided.

    A folder `train` that holds images, or has other folders but no test part beside it, may be a class of trains.
    """
    folders = _subfolders(root)
    by_name = {folder.name.casefold(): folder for folder in folders}
    train = next((by_name[name] for name in TRAIN_NAMES if name in by_name), None)
    tests = [by_name[name] for name in TEST_NAMES if name in by_name]
    if train is None or not _subfolders(train) or _images_directly_in(train) or not (tests or len(folders) == 1):
        return root, None
    test = next((test for test in tests if _subfolders(test)), None)
    for folder in folders:
        if folder not in (train, test):
            used = f"{train.name} is trained on, {test.name} is tested on" if test else "it has no class folders"
            log(f"skipped {folder}: {used}")
    return train, test


def _files_by_class(folder: Path, skipped: list[Skipped], log: Log) -> dict[str, list[str]]:
    """Return {class: files} without the empty ones."""
    others: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for path in _subfolders(folder):
        name = unicodedata.normalize("NFC", path.name)  # file systems differ in their form
        files[name] = sorted(files.get(name, []) + _walk(str(path), skipped, others))
    if files:
        skipped += [(path, "in no class folder") for path in _images_directly_in(folder)]
    skipped.sort()
    if others:
        names = ", ".join(name for name, _ in others.most_common(5)) + ", ..." * (len(others) > 5)
        log(f"skipped what is no image below {folder}, {others.total():,} in all: {names}")
    if empty := [repr(name) for name, of_class in files.items() if not of_class]:
        names = ", ".join(empty[:5]) + ", ..." * (len(empty) > 5)
        log(f"skipped {count(len(empty), 'class folder')} without images in {folder}: {names}")
    return {name: of_class for name, of_class in files.items() if of_class}


def _walk(top: str, skipped: list[Skipped], others: Counter[str]) -> list[str]:
    """Return the image files below `top`, sorted. Links are followed; no folder is entered twice, so loops end."""
    found: list[str] = []
    seen: set[str] = set()
    ahead = [top]
    while ahead:
        folder = ahead.pop()
        if (place := os.path.realpath(folder)) in seen:
            others[f"{os.path.basename(folder)} (a link back)"] += 1  # noqa: PTH119 - the names of a tree are text
            continue
        seen.add(place)
        # One folder at a time: below Python 3.12 os.walk fails on folders nested a thousand deep.
        _, subfolders, files = next(os.walk(folder, onerror=partial(_skip, skipped)), (folder, [], []))
        for name in subfolders:
            if _is_ignored(Path(folder, name)):
                others[name] += 1
            else:
                ahead.append(os.path.join(folder, name))  # noqa: PTH118 - a Path per image is slow; as below
        for name in files:
            path = os.path.join(folder, name)  # noqa: PTH118
            if not _is_image_name(name):
                others[name] += 1
            elif not os.path.isfile(path):  # noqa: PTH113
                skipped.append((path, "a broken link" if os.path.islink(path) else "not a regular file"))  # noqa: PTH114
            else:
                found.append(path)
    return sorted(found)


def _skip(skipped: list[Skipped], error: OSError) -> None:
    skipped.append((str(error.filename), error.strerror or str(error)))


def _is_ignored(folder: Path) -> bool:
    """Return True for hidden folders, folders of the system, and folders that esupcon wrote its output to."""
    return folder.name.startswith(".") or folder.name in _SYSTEM_FOLDERS or os.path.lexists(folder / OWNED)


def _is_image_name(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - as above


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _is_ignored(path))


def _images_directly_in(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.iterdir() if _is_image_name(path.name) and not path.is_dir())
