"""Reading .npz files from anywhere: plain arrays come out, whole, or the reason why not.

NumPy's own reader believes the size a file claims, may stop before the checksum is looked at, and raises whatever
its parsers raise. Here what a member claims is held against what the archive has of it, that against the memory of
the machine, and every member is read to its end, where the checksum is.
"""

from __future__ import annotations

import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

__all__ = ["NotPlainArrays", "array_names", "read_arrays"]

# What the parsers of archives, headers and numbers raise on bytes that are not theirs.
_DAMAGE = (
    *(ValueError, TypeError, KeyError, IndexError, OverflowError, EOFError, OSError, RuntimeError, SyntaxError),
    *(NotImplementedError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
_SUFFIX = ".npy"
# The record at the end of an archive: its mark, its length with the longest comment, and the largest count it can hold.
_END, _LONGEST_END, _MANY = b"PK\x05\x06", 22 + 0xFFFF, 0xFFFF


class NotPlainArrays(ValueError):  # noqa: N818 - what the file is, for a sentence to quote
    """The message is the reason, in a few words."""


def array_names(path: Path) -> list[str]:
    """The names of the arrays in the file; a damaged name would hide an array, and the file is refused for it."""
    with path.open("rb") as file, _opened(file) as archive:
        for member in archive.infolist():
            _check_name(archive, member)
        return [name.removesuffix(_SUFFIX) for name in archive.namelist()]


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names, each verified by its checksum. Nothing in the file is ever executed."""
    with path.open("rb") as file, _opened(file) as archive:
        return {name: _array(archive, name) for name in names}


def _opened(file: IO[bytes]) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(file)
        _check_count(file, len(archive.infolist()))
    except NotPlainArrays:
        raise
    except _DAMAGE as error:
        file.seek(0)
        if file.read(6) == npy.MAGIC_PREFIX:
            raise NotPlainArrays("it is a single array, not an archive of several") from None
        raise NotPlainArrays(_reason(error)) from error
    return archive


def _check_count(file: IO[bytes], n_found: int) -> None:
    """A damaged length in the directory hides the members behind it; the end of the archive says how many there are."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LONGEST_END))
    end = file.read()
    (n_announced,) = struct.unpack_from("<H", end, end.rfind(_END) + 10)
    if n_announced != min(n_found, _MANY):
        raise NotPlainArrays(f"its directory announces {n_announced} arrays and lists {n_found}")
    if n_found == 0:
        raise NotPlainArrays("it holds no arrays")


def _check_name(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """An archive has each name twice; they are compared when a member is opened."""
    try:
        archive.open(member).close()
    except _DAMAGE as error:
        raise NotPlainArrays(_reason(error)) from error


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    try:
        known = archive.NameToInfo
        member = known.get(name + _SUFFIX) or known[name]
        with archive.open(member) as stream:
            _check_claim(stream, member.file_size)
        with archive.open(member) as stream:
            values: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
            stream.read()  # to its end, where the checksum is compared
    except NotPlainArrays:
        raise
    except (MemoryError, RecursionError) as error:
        raise NotPlainArrays("it holds more than fits into memory") from error
    except _DAMAGE as error:
        raise NotPlainArrays(f"{name}: {_reason(error)}") from error
    return values


def _check_claim(stream: IO[bytes], size: int) -> None:
    """The header's shape and type make up just the bytes that follow it, and they fit into this machine."""
    version = npy.read_magic(stream)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise NotPlainArrays(f"its format is {version[0]}.{version[1]}, which plain arrays do not need")
    shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        raise NotPlainArrays("it holds Python objects, which are not read; save plain numbers and text")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != size - stream.tell():
        raise NotPlainArrays(f"an array of {claimed:,} bytes is announced where there are {size - stream.tell():,}")
    if claimed > _memory():
        raise NotPlainArrays(f"it holds more than fits into memory ({claimed / 1e9:.1f} GB)")


def _memory() -> float:
    """Bytes of the machine; unknown on systems that do not say."""
    if not hasattr(os, "sysconf"):
        return math.inf
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
