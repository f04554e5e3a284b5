"""CIFAR-10 and CIFAR-100 in the official python files: each row 3072 bytes, red, green, blue planes of 32x32."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.data.download import md5_of
from esupcon.data.listing import Arrays
from esupcon.data.progress import Say
from esupcon.data.safe_pickle import read_pickle

# MD5 of the official files: pickles carry no checksum of their own, and a wrong pixel would not be seen.
_OFFICIAL = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
_N_OFFICIAL = (50_000, 10_000)


def read_cifar10(folder: Path, note: Say) -> Arrays:
    train = [f"data_batch_{i}" for i in range(1, 6)]
    return _read(folder, train, "test_batch", "labels", ("batches.meta", "label_names"), note)


def read_cifar100(folder: Path, note: Say) -> Arrays:
    """With the hundred fine labels."""
    return _read(folder, ["train"], "test", "fine_labels", ("meta", "fine_label_names"), note)


def _read(folder: Path, train: list[str], test: str, labels: str, names: tuple[str, str], note: Say) -> Arrays:
    absent = [name for name in (*train, test, names[0]) if not (folder / name).is_file()]
    if absent:
        raise FileNotFoundError(f"{folder} lacks {', '.join(absent)} of the official files. Unpack the archive again.")
    meta = read_pickle(folder / names[0])
    classes = tuple(
        name.decode() if isinstance(name, bytes) else str(name) for name in _entry(meta, names[1], folder / names[0])
    )
    parts = [_part(folder / name, labels, len(classes)) for name in train]
    x_train = np.concatenate([x for x, _ in parts])
    y_train = np.concatenate([y for _, y in parts])
    x_test, y_test = _part(folder / test, labels, len(classes))
    if (len(x_train), len(x_test)) != _N_OFFICIAL:
        note(f"{folder} holds {len(x_train):,} + {len(x_test):,} images; the official set has 50,000 + 10,000")
    else:
        other = [name for name in (*train, test, names[0]) if md5_of(folder / name) != _OFFICIAL[name]]
        if other:
            note(
                f"{', '.join(other)} in {folder} differ(s) from the official files: damaged, or written anew by "
                "somebody. Read all the same; unpack the archive again to be sure"
            )
    return Arrays(x_train, y_train, classes, x_test, y_test)


def _part(file: Path, labels: str, n_classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = read_pickle(file)
    x = _entry(batch, "data", file)
    if not (isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 2 and x.shape[1] == 3072):
        raise ValueError(f"{file}: 'data' must be uint8 rows of 3072 bytes; unpack the official archive again.")
    raw_labels = _entry(batch, labels, file)
    try:
        y = np.asarray(raw_labels, np.int64)
    except (ValueError, TypeError, OverflowError):
        y = np.empty(0, np.int64)
    if y.shape != (len(x),) or (len(y) and not (y.min() >= 0 and y.max() < n_classes)):
        raise ValueError(
            f"{file}: {labels!r} must be {len(x)} whole numbers from 0 to {n_classes - 1}; "
            "unpack the official archive again."
        )
    return x.reshape(-1, 3, 32, 32), y


def _entry(content: Any, key: str, file: Path) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise ValueError(f"{file} has no entry {key!r}: it is not an official CIFAR file.")
    return content[key]
