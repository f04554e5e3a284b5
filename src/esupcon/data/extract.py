"""Unpacking an archive: plain files and folders only, none outside, and in place only when all are there."""

import errno
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from esupcon.data.locking import exclusive
from esupcon.data.progress import Say, progress_bar

_MOST_BYTES = 32 << 30
_BLOCK = 1 << 20
# What the system says of places and names that no sound archive has.
_NONSENSE = (errno.EINVAL, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EILSEQ)

# name, whether a plain file (or else a folder), and how to open it
_Member = tuple[str, bool, Callable[[], IO[bytes]]]


def extract(archive: Path, into: Path, folder: str, note: Say) -> Path:
    """Unpack `archive` and put its top folder, `folder`, into `into`; returns where it is then."""
    target = into / folder

    def waiting() -> None:
        note(f"another process is unpacking {archive.name}; waiting for it")

    with exclusive(into / f".{folder}.lock", waiting):
        if target.is_dir():
            return target
        note(f"unpacking {archive} to {target}")
        beside = Path(tempfile.mkdtemp(dir=into, prefix=f".{folder}."))
        try:
            _unpack(archive, beside)
            if not (beside / folder).is_dir():
                raise ValueError(f"{archive} has no folder {folder!r} in it: it is not the official archive.")
            try:
                (beside / folder).rename(target)
            except OSError:
                if not target.is_dir():  # else another process was first, without locks
                    raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return target


def _unpack(archive: Path, into: Path) -> None:
    written = 0
    try:
        with progress_bar(f"unpacking {archive.name}", None) as advance:
            for name, is_file, opened in _members(archive):
                path = into.joinpath(*_inside(name, archive))
                if not is_file:
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with opened() as source, path.open("wb") as target:
                    while block := source.read(_BLOCK):
                        written += len(block)
                        if written > _MOST_BYTES:
                            raise ValueError(f"{archive} unpacks to more than {_MOST_BYTES >> 30} GB: refused.")
                        target.write(block)
                advance(1)
    except OSError as error:
        if error.errno is None or error.errno in _NONSENSE:  # None is gzip's way to speak of a damaged file
            raise _damaged(archive, error) from error
        raise OSError(f"{archive} cannot be unpacked in {into.parent}: {os.strerror(error.errno)}.") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise _damaged(archive, error) from error


def _damaged(archive: Path, error: Exception) -> ValueError:
    reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
    return ValueError(f"{archive} is damaged or incomplete ({reason}). Delete it and fetch it again.")


def _members(archive: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for info in bundle.infolist():
                mode = info.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise ValueError(f"{archive} holds {info.filename!r}, a link or device: refused.")
                yield info.filename, not info.filename.endswith("/"), lambda info=info: bundle.open(info)  # type: ignore[misc]
        return
    with tarfile.open(archive) as bundle_:
        for member in bundle_:
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"{archive} holds {member.name!r}, a link or device: refused.")
            yield member.name, member.isfile(), lambda member=member: bundle_.extractfile(member)  # type: ignore[misc]


def _inside(name: str, archive: Path) -> tuple[str, ...]:
    """The parts of a member's name; refused where they could lead out of the folder on any platform."""
    path = PurePosixPath(name)
    windows = PureWindowsPath(name)
    if path.is_absolute() or windows.drive or windows.root or "\\" in name or "\0" in name or ".." in path.parts:
        raise ValueError(f"{archive} holds {name!r}, which leads out of the folder: refused.")
    return path.parts
