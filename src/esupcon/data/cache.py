"""Keep decoded images on disk under a key of what they were decoded from, and memory-map them.

An entry is two files: `KEY.u8`, the raw array, and `KEY.json`, sealed and written last, with the array's checksum and a
record. The checksum is compared at every use, because a damaged pixel would go unnoticed otherwise.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon._console import Log, say
from esupcon._io import check_memory, locked, read_sealed_json, write_sealed_json

DATA_VARIABLE = "ESUPCON_DATA"
_ABANDONED = 24 * 3600  # seconds after which an unfinished file of a killed process is removed

Shape = tuple[int, int, int, int]
Entry = tuple[NDArray[np.uint8], dict[str, Any]]
Fill = Callable[[NDArray[np.uint8]], dict[str, Any]]  # writes the rows; returns a record to keep with them


def cache_root() -> Path | None:
    """Return esupcon's folder in the user's cache folder; None if this user has no home folder."""
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(xdg if Path(xdg).is_absolute() else Path.home() / ".cache") / "esupcon"
    except RuntimeError:  # neither HOME nor an entry in the list of users
        return None


def expand(path: str | os.PathLike[str]) -> Path:
    """Replace a leading ~ by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path}: the home folder is unknown. Set HOME, or pass a full path.") from None


def data_root(data_dir: Path | None) -> Path | None:
    """Return `data_dir`, else $ESUPCON_DATA, else the user's cache folder, if there is one."""
    chosen = data_dir or os.environ.get(DATA_VARIABLE)
    root = expand(chosen) if chosen else cache_root()
    if root is not None and os.path.isfile(root):  # noqa: PTH113 - pathlib raises if a parent is inaccessible
        raise NotADirectoryError(f"{root} is a file; expected a folder for data. Pass its parent.")
    return None if root is None else root.absolute()


def decoded_root(cache_dir: Path | None, log: Log = say) -> Path | None:
    """Return `cache_dir`, else the folder `decoded` where data lie without `data_dir`, which may be read-only."""
    root = data_root(cache_dir)
    if root is None:
        log(f"no cache folder: this user has no home folder. Set {DATA_VARIABLE} to decode the images only once")
    return root if root is None or cache_dir is not None else root / "decoded"


def cached(folder: Path | None, key: str, shape: Shape, fill: Fill, log: Log) -> Entry:
    """Return the images (n, C, H, W) and the record of the entry `key`; build it by `fill` if missing or damaged.

    They are built in memory if there is no writable folder. Writing to the returned map does not change the file.
    """
    found = _read(folder, key, shape) if folder is not None else None
    if found is not None:
        return found
    if folder is None or not _is_writable(folder, log):
        check_memory(math.prod(shape), f"an array of {shape[0]:,} images of {shape[2]}x{shape[3]}")
        rows = np.zeros(shape, np.uint8)
        return rows, json.loads(json.dumps(fill(rows)))  # the record as it would be read from disk
    waiting = partial(log, "another process is decoding the same images; waiting for it")
    with locked(folder / f".{key}.lock", waiting):
        found = _read(folder, key, shape)
        if found is None and (folder / f"{key}.json").exists():
            log(f"the decoded images {folder / key}.u8 are damaged; decoding them again")
        return found or _build(folder, key, shape, fill)


def _build(folder: Path, key: str, shape: Shape, fill: Fill) -> Entry:
    """Write both files under temporary names and rename them, so that what exists is complete.

    Two processes that cannot lock write equal files: whichever is renamed last stays.
    """
    for left in folder.glob(".*.tmp"):  # of killed processes
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()
    temporary = folder / f".{key}.{secrets.token_hex(8)}.tmp"
    try:
        _allocate(temporary, shape)
        rows = np.memmap(temporary, np.uint8, mode="r+", shape=shape)
        record = fill(rows)
        rows.flush()
        content = {"crc32": zlib.crc32(rows.data), "record": record}
        temporary.replace(folder / f"{key}.u8")
    finally:
        temporary.unlink(missing_ok=True)
    write_sealed_json(folder / f"{key}.json", content)
    return np.memmap(folder / f"{key}.u8", np.uint8, mode="c", shape=shape), json.loads(json.dumps(record))


def _allocate(file: Path, shape: Shape) -> None:
    """Reserve the disk space now: writing to a mapped hole on a full disk kills the process with a bus error."""
    size, free = math.prod(shape), shutil.disk_usage(file.parent).free
    with file.open("xb") as handle:
        try:
            if size > free:
                raise OSError(errno.ENOSPC, "the disk is too small")  # noqa: TRY301
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle.fileno(), 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # others: no reserving on this file system
                need = f"{shape[0]:,} images of {shape[2]}x{shape[3]} need {size / 1e9:.1f} GB in {file.parent}"
                remedy = "Pass a smaller image_size, or a cache_dir on another disk"
                raise OSError(f"{need}, which has {free / 1e9:.1f} GB free. {remedy}.") from None
        handle.truncate(size)


def _read(folder: Path, key: str, shape: Shape) -> Entry | None:
    """Return the entry if both files are there and intact."""
    try:
        content, file = read_sealed_json(folder / f"{key}.json"), folder / f"{key}.u8"
        if file.stat().st_size != math.prod(shape):
            return None
        images = np.memmap(file, np.uint8, mode="c", shape=shape)
        return (images, dict(content["record"])) if zlib.crc32(images.data) == content["crc32"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_writable(folder: Path, log: Log) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        log(f"{folder} is not writable ({error.strerror}): the images are decoded again at every start")
        return False
