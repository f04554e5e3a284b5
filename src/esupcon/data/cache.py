"""Decoded images on disk: built once under a key of what they were made from, then memory-mapped.

An entry is a folder, `images.u8` (the raw array) and `entry.json` (its shape, what was met on the way, and a checksum
of all that, which is compared whenever the entry is used: disks forget, and a wrong pixel would not be seen). It is
built beside, under a name of its own, and renamed when whole; so an entry that exists is complete, whoever
was interrupted and however many were building it.
"""

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import socket
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esupcon.data.locking import exclusive
from esupcon.data.progress import Say

_IMAGES, _ENTRY = "images.u8", "entry.json"
_BLOCK = 1 << 24

# fill(file, rows) writes the rows and returns the ones to leave out, and a record to keep with the entry.
Fill = Callable[[Path, NDArray[np.uint8]], tuple[list[int], dict[str, object]]]


@dataclass(frozen=True)
class Entry:
    """`images` (n, C, H, W) can be written to without touching the file: the map is copy-on-write."""

    images: NDArray[np.uint8]
    record: dict[str, object]


def key_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def entry(folder: Path | None, key: str, shape: tuple[int, int, int, int], fill: Fill, note: Say) -> Entry:
    """The entry `key` of the cache at `folder`, built by `fill` where it is not there yet.

    Without a folder, or where nothing can be written to it, the images are built in memory."""
    if folder is None or not _can_write(folder, note):
        return _in_memory(shape, fill)
    target = folder / key
    found = _read(target)
    if found is not None:
        return found

    def waiting() -> None:
        note("another process is decoding the same images; waiting for it")

    with exclusive(folder / f"{key}.lock", waiting) as locked:
        found = _read(target)
        if found is None:
            if target.exists():
                note(f"the decoded images in {target} are damaged; they are decoded again")
            if locked:
                _sweep(folder, key)
            _remove(target)  # what lies there could not be read
            _build(folder, key, shape, fill)
            found = _read(target)
    if found is None:
        raise OSError(f"the cache entry {target} was built and cannot be read. Pass another cache_dir.")
    return found


def _build(folder: Path, key: str, shape: tuple[int, int, int, int], fill: Fill) -> None:
    beside = folder / f"{key}.{_host()}.{secrets.token_hex(8)}.tmp"
    beside.mkdir()  # with the user's own permissions, unlike tempfile's: a cache may be shared
    try:
        _write(beside, shape, fill)
        with suppress(OSError):  # another builder was first: its entry serves as well
            beside.rename(folder / key)
    finally:
        _remove(beside)


def _write(folder: Path, shape: tuple[int, int, int, int], fill: Fill) -> None:
    file = folder / _IMAGES
    _allocate(file, shape)
    n, row = shape[0], math.prod(shape[1:])
    left_out: list[int] = []
    record: dict[str, object] = {}
    if n:
        rows = np.memmap(file, np.uint8, mode="r+", shape=shape)
        left_out, record = fill(file, rows)
        n = _close_gaps(rows, left_out)
        rows.flush()
        del rows
    os.truncate(file, n * row)
    content: dict[str, object] = {"shape": [n, *shape[1:]], "record": json.loads(json.dumps(record))}
    text = json.dumps({**content, "crc32": _checksum(content, _mapped(file, (n, *shape[1:])))})
    (folder / _ENTRY).write_text(text, encoding="utf-8")


def _allocate(file: Path, shape: tuple[int, ...]) -> None:
    """Claim the disk space now: writing to a mapped hole on a full disk kills the process with a bus error."""
    size = math.prod(shape)
    free = shutil.disk_usage(file.parent).free
    message = (
        f"{shape[0]:,} images of {shape[2]}x{shape[3]} need {size / 1e9:.1f} GB in {file.parent.parent}, which has "
        f"{free / 1e9:.1f} GB free. Pass a smaller image_size, or a cache_dir on another disk."
    )
    if size > free:
        raise OSError(message)
    with file.open("wb") as handle:
        if size and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(handle.fileno(), 0, size)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # else it cannot claim, only write
                    raise OSError(message) from error
        handle.truncate(size)


def _close_gaps(rows: NDArray[np.uint8], left_out: list[int]) -> int:
    """Move the kept rows together, in their order; returns how many there are."""
    kept = np.setdiff1d(np.arange(len(rows)), np.array(left_out, np.int64))
    moved = np.flatnonzero(kept != np.arange(len(kept)))
    for i in moved:  # ascending, so no row is overwritten before it has moved
        rows[i] = rows[kept[i]]
    return len(kept)


def _read(target: Path) -> Entry | None:
    try:
        content = json.loads((target / _ENTRY).read_text(encoding="utf-8"))
        checksum, (n, channels, height, width) = content.pop("crc32"), content["shape"]
        file, shape = target / _IMAGES, (int(n), int(channels), int(height), int(width))
        if min(shape) < 0 or file.stat().st_size != math.prod(shape):
            return None
        images = _mapped(file, shape)
        return Entry(images, dict(content["record"])) if _checksum(content, images) == checksum else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _mapped(file: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    # An empty file cannot be mapped.
    return np.memmap(file, np.uint8, mode="c", shape=shape) if math.prod(shape) else np.empty(shape, np.uint8)


def _checksum(content: dict[str, object], images: NDArray[np.uint8]) -> int:
    checksum = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    flat = images.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        checksum = zlib.crc32(flat[start : start + _BLOCK].data, checksum)
    return checksum


def _in_memory(shape: tuple[int, int, int, int], fill: Fill) -> Entry:
    with tempfile.TemporaryDirectory(prefix="esupcon-") as folder:
        _write(Path(folder), shape, fill)
        found = _read(Path(folder))
        assert found is not None
        return Entry(np.array(found.images), found.record)


def _can_write(folder: Path, note: Say) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        note(f"nothing can be kept in {folder} ({error.strerror}): the images are decoded again at every start")
        return False


def _sweep(folder: Path, own_key: str) -> None:
    """Remove what killed builders of this machine left behind: a living one holds the lock of its key."""
    for left in folder.glob(f"*.{_host()}.*.tmp"):
        key = left.name.partition(".")[0]
        if key == own_key:
            _remove(left)
            continue
        with exclusive(folder / f"{key}.lock") as locked:
            if locked:
                _remove(left)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
