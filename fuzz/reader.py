"""What a reader is to the harness, and what counts as a crash of it.

A reader takes a file or refuses it. A refusal is a ValueError, or an OSError of its own making, in one line that names
the file or its folder. Anything else is a crash; so is content taken for sound where a checksum could have told.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Refusal = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError)
Seeds = Callable[[], list[bytes]]
Read = Callable[[Path, bytes], Any]


@dataclass(frozen=True)
class Reader:
    """`read(folder, content)` puts the content where it belongs below an empty folder, and reads it.

    `seeds` are sound contents. Where the format has a checksum, `essence` gives of what was read all that matters: it
    must be that of a seed. A table or a profile may be named by its `kind` and what it calls itself.
    """

    seeds: Seeds
    read: Read
    essence: Callable[[Any], Hashable] | None = None
    kind: str | None = None


def check(reader: Reader, folder: Path, content: bytes) -> bool:
    """Whether the content was taken; a refusal is as good. Anything else is raised."""
    try:
        found = reader.read(folder, content)
    except Refusal as refusal:
        if _lacked_memory(refusal):
            raise AssertionError("it was refused only when there was no more memory") from refusal
        message = str(refusal)
        if len(message.splitlines()) != 1:
            raise AssertionError(f"a refusal is one line; got {message!r}") from refusal
        if str(folder) not in message and (reader.kind is None or f"{reader.kind} " not in message):
            raise AssertionError(f"a refusal names the file or its folder; got {message!r}") from refusal
        return False
    if reader.essence is not None and reader.essence(found) not in _sound(reader):
        raise AssertionError("damaged content was taken for sound")
    return True


def _lacked_memory(error: BaseException | None) -> bool:
    """Whether the refusal is what became of a MemoryError."""
    if error is None or isinstance(error, MemoryError):
        return error is not None
    return _lacked_memory(error.__cause__) or _lacked_memory(error.__context__)


@cache
def _sound(reader: Reader) -> set[Hashable]:
    assert reader.essence is not None
    found = set()
    for content in reader.seeds():
        with tempfile.TemporaryDirectory() as folder:
            found.add(reader.essence(reader.read(Path(folder), content)))
    return found


def in_file(name: str, read: Callable[[Path], Any]) -> Read:
    """A reader of a single file."""

    def run(folder: Path, content: bytes) -> Any:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return run


def of_arrays(*arrays: np.ndarray[Any, Any] | None) -> Hashable:
    """All that matters of arrays."""
    return tuple(None if one is None else (one.dtype.str, one.shape, one.tobytes()) for one in arrays)


def quiet(line: str) -> None:
    """Whoever reads says something now and then."""
