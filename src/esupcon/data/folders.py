"""A folder of images: root/class/*.jpg, or root/train/class and root/test|val/class."""

import os
import stat
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np

from esupcon.data.decode import SUFFIXES
from esupcon.data.listing import ImageFiles, Listing, Skipped, in_class_order
from esupcon.data.progress import Say

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "val", "valid", "validation")  # in order of preference
_CLUTTER_FOLDERS = ("__MACOSX", "__pycache__", "lost+found", "$RECYCLE.BIN")


def list_folder(root: Path, note: Say) -> Listing:
    """Every image below `root`, with the folder it lies in as its class."""
    train, test = _parts(root, note)
    skipped: list[Skipped] = []
    train_files = _by_class(train, skipped, note)
    if not train_files:
        raise ValueError(_why_no_classes(train))
    _say_look_alikes(list(train_files), note)
    classes = in_class_order(set(train_files))
    _refuse_empty(train, train_files)
    if len(classes) == 1 and _subfolders(train / classes[0]):
        raise ValueError(f"{train} holds one folder, {classes[0]!r}, and folders in it. Pass {train / classes[0]}.")
    paths = [path for name in classes for path in train_files[name]]
    labels = [k for k, name in enumerate(classes) for _ in train_files[name]]
    if test is None:
        return Listing(ImageFiles(paths), np.array(labels, np.int64), classes, None, skipped)
    n_train = len(paths)
    test_files = _matched(_by_class(test, skipped, note), classes, test, note)
    for k, name in enumerate(classes):
        of_class = test_files.get(name, [])
        paths += of_class
        labels += [k] * len(of_class)
    return Listing(ImageFiles(paths), np.array(labels, np.int64), classes, n_train, skipped)


def image_files_below(folder: Path, skipped: list[Skipped]) -> list[str]:
    """Paths of the image files in `folder` and its folders, in order of name; what is named like an image
    and is no file goes to `skipped`."""
    return _walk(str(folder), skipped, Counter())


def _parts(root: Path, note: Say) -> tuple[Path, Path | None]:
    """The training folder and the test folder, which are `root` and None where it is not so divided.

    A folder called train is the training part where it holds folders and no images, and a test part or
    nothing else stands beside it: it may also be the class of trains.
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
            used = f"{train.name} and {test.name} are" if test else f"{train.name} alone is"
            reason = " and has no class folders" if folder in tests and not _subfolders(folder) else ""
            note(f"{folder} is not read{reason}: {used} used")
    return train, test


def _by_class(folder: Path, skipped: list[Skipped], note: Say) -> dict[str, list[str]]:
    """{class: files}. Names are compared in Unicode's composed form: file systems differ in what they keep."""
    others: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for path in _subfolders(folder):
        name = unicodedata.normalize("NFC", path.name)
        found = _walk(str(path), skipped, others)
        if name in files:
            note(f"two folders in {folder} are called {name!r} in two spellings of Unicode; they are one class")
        files[name] = sorted(files.get(name, []) + found)
    if files:
        skipped += [(path, "in no class folder") for path in _images_directly_in(folder)]
    skipped.sort()
    _say_others(str(folder), others, note)
    return files


def _walk(top: str, skipped: list[Skipped], others: Counter[str]) -> list[str]:
    """Image files below, in order of path, through symbolic links; no folder is entered twice, so that no loop
    is endless."""
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
                    if entry.name.startswith(".") or entry.name in _CLUTTER_FOLDERS:
                        others[entry.name] += 1
                    elif _is_folder(entry):
                        ahead.append(entry.path)
                    elif not _is_image_name(entry.name):
                        others[entry.name] += 1
                    elif (reason := _why_no_file(entry)) is not None:
                        skipped.append((entry.path, reason))
                    else:
                        found.append(entry.path)
        except OSError as error:
            skipped.append((folder, error.strerror or str(error)))
    return sorted(found)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _why_no_file(entry: "os.DirEntry[str]") -> str | None:
    try:
        if stat.S_ISREG(entry.stat().st_mode):
            return None
    except OSError as error:
        return "a broken link" if entry.is_symlink() else error.strerror or str(error)
    return "not a regular file"


def _is_image_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - once per file of the tree


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _is_folder(entry)]
    except OSError as error:
        raise type(error)(f"{folder} cannot be read: {error.strerror}.") from None
    return [folder / name for name in sorted(names) if name[0] != "." and name not in _CLUTTER_FOLDERS]


def _images_directly_in(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        images = [e.path for e in entries if _is_image_name(e.name) and e.name[0] != "." and not _is_folder(e)]
    return sorted(images)


def _why_no_classes(folder: Path) -> str:
    n = len(_images_directly_in(folder))
    if n:
        return (
            f"{folder} holds {n} image(s) and no class folders. Put each class into a folder of its own, "
            "or pass a CSV of path,label."
        )
    return f"{folder} holds no images. Expected {folder}/<class>/*.jpg, or train/ and test/ with such folders."


def _refuse_empty(folder: Path, files: dict[str, list[str]]) -> None:
    empty = [name for name, of_class in files.items() if not of_class]
    if len(empty) == len(files):
        raise ValueError(_why_no_classes(folder))
    if empty:
        names = ", ".join(map(repr, empty[:5])) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise ValueError(
            f"every class needs at least one image; {names} in {folder} has none. Add images or remove the folder."
        )


def _matched(files: dict[str, list[str]], classes: tuple[str, ...], folder: Path, note: Say) -> dict[str, list[str]]:
    """Test files under the names of the training classes; a difference in case alone is bridged."""
    matched: dict[str, list[str]] = {}
    for name, of_class in files.items():
        alike = [one for one in classes if one.casefold() == name.casefold()]
        if name in classes:
            target = name
        elif len(alike) == 1:
            target = alike[0]
            note(f"{folder / name} is read as the training part's class {target!r}")
        elif of_class:
            raise ValueError(f"the class {name!r} of {folder} is not in the training part. Add it there, or remove it.")
        else:
            continue
        matched[target] = matched.get(target, []) + of_class
    absent = [name for name in classes if not matched.get(name)]
    if absent:
        note(f"{len(absent)} class(es) have no test image, {absent[0]!r} the first of them")
    return matched


def _say_look_alikes(names: list[str], note: Say) -> None:
    by_fold: dict[str, list[str]] = {}
    for name in names:
        by_fold.setdefault(name.casefold(), []).append(name)
    for alike in by_fold.values():
        if len(alike) > 1:
            note(
                f"the classes {' and '.join(map(repr, sorted(alike)))} differ in case alone and are kept apart; "
                "give the folders one name to join them"
            )


def _say_others(folder: str, others: Counter[str], note: Say) -> None:
    if others:
        names = ", ".join(name for name, _ in others.most_common(3))
        more = ", ..." if len(others) > 3 else ""
        n = others.total()
        note(f"{n} {'entry' if n == 1 else 'entries'} below {folder} not read, being no image files: {names}{more}")
