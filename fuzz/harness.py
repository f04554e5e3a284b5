"""The harness: what a reader is, what counts as a fault, how cases are drawn, and how they are tried.

A reader takes a file or refuses it. A refusal is a ValueError, or an OSError that the reader raises itself, in one line
that names the file or its folder. Anything else is a fault; so is accepting damaged content although a checksum could
have told.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import random
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Refusal = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError)
Seeds = Callable[[], list[bytes]]
Read = Callable[[Path, bytes], Any]
EXTRA_MEMORY, MAX_SECONDS = 1 << 30, 20.0
CURRENT, OUTCOME = "current", "outcome.json"  # the case being tried and the counts, for the parent process


@dataclass(frozen=True)
class Reader:
    """`read(folder, content)` writes the content where it belongs below an empty folder, and reads it.

    `seeds` returns sound contents. If the format has a checksum, `essence` returns everything that matters of what was
    read; it must equal that of a seed. A refusal may name a table or a profile by its `kind` instead of its path.
    """

    seeds: Seeds
    read: Read
    essence: Callable[[Any], Hashable] | None = None
    kind: str | None = None


def check(reader: Reader, folder: Path, content: bytes) -> bool:
    """Return whether the content was accepted; a proper refusal returns False. Raise on a fault."""
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
        raise AssertionError("damaged content was accepted")
    return True


def _lacked_memory(error: BaseException | None) -> bool:
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
    """Return a reader of a single file."""

    def run(folder: Path, content: bytes) -> Any:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return run


def of_arrays(*arrays: np.ndarray[Any, Any] | None) -> Hashable:
    """Return everything that matters of arrays."""
    return tuple(None if one is None else (one.dtype.str, one.shape, one.tobytes()) for one in arrays)


def quiet(line: str) -> None:
    """Ignore messages."""


# --- Cases -----------------------------------------------------------------------------------------------------------

#: What parsers stumble over: ends of ranges, signs, nothing, magic numbers of formats, deep nesting.
WORDS = (
    *(b"", b"\0", b"\xff", b"\xff" * 4, b"\0" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0"),
    *(b"-1", b"1e999", b"99999999999999999999", b"NaN", b"null", b"[[[[", b'{"":', b"\n", b"\r\n", b",", b'"', b";"),
    *(b"../", b"/", b"\\", b"=1", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"\x89PNG", b"\xff\xd8\xff", b"PAR1"),
    *(b"[" * 5000, b'{"a":' * 5000, b"9" * 400, b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\x1b[2J"),
)
#: Values that our writers never write, or not in most places.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 10**400, 0.5, -0.5, 1e-320, 1e300),
    *(float("nan"), float("inf"), float("-inf"), "", "a", "0", "1", "nan", "../x", "\ud800", "\0", "<b>", "a\nb"),
    *([], {}, [[]], [None], {"": None}, {"a": []}, [0.5] * 3),
)


class Draws:
    """Draw damaged files from sound ones. `draw(number)` depends on the number and the seed only."""

    def __init__(self, seeds: Sequence[bytes], seed: int) -> None:
        self._seeds, self._seed = list(seeds), seed
        self._documents = [value for value in map(_as_json, seeds) if value is not None]

    def draw(self, number: int) -> bytes:
        rng = random.Random(self._seed << 32 | number)
        if self._documents and rng.random() < 2 / 3:
            content = _edit(rng.choice(self._documents), rng)
            while rng.random() < 1 / 3:  # several errors at once
                content = _edit(_as_json(content), rng)
            return content
        if not self._documents and rng.random() < 1 / 10:
            return rng.randbytes(rng.randrange(200))
        content = rng.choice(self._seeds)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
            content = _damage(content, rng)
        return content


def _as_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _damage(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit, cut the end, or remove, repeat, overwrite or insert some bytes."""
    found, at, n = bytearray(content), rng.randrange(len(content) + 1), rng.randint(1, 64)
    word = rng.randbytes(rng.randrange(9)) if rng.random() < 1 / 6 else rng.choice(WORDS)
    match rng.choice(("flip", "cut", "remove", "repeat", "write", "insert")):
        case "flip" if at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        case "cut":
            del found[at:]
        case "remove":
            del found[at : at + n]
        case "repeat":
            found[at:at] = found[at : at + n] * 4
        case "write":
            found[at : at + len(word)] = word
        case _:
            found[at:at] = word
    return bytes(found)


def _edit(document: Any, rng: random.Random) -> bytes:
    """Return the document with another value in a random place."""
    copy = json.loads(json.dumps(document))
    place, depth = copy, rng.randint(1, 6)
    while isinstance(place, dict | list) and place:
        key: Any = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        depth -= 1
        if depth == 0 or not isinstance(place[key], dict | list) or not place[key]:
            place[key] = _value(rng)
            break
        place = place[key]
    return json.dumps(copy).encode()


def _value(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(ODD_VALUES)
    if kind < 0.8:
        return rng.randint(-(2**40), 2**40)
    if kind < 0.9:
        return rng.gauss(0, 1) * 10.0 ** rng.randint(-12, 12)
    return {"key": rng.choice(ODD_VALUES)} if kind < 0.95 else [rng.choice(ODD_VALUES) for _ in range(3)]


# --- Attempts --------------------------------------------------------------------------------------------------------


class Attempts:
    """Try cases of one reader, each in an empty folder. Of faults at the same place keep the smallest case."""

    def __init__(self, name: str, reader: Reader, folder: Path, keep_in: Path) -> None:
        self._name, self._reader, self._folder, self._keep_in = name, reader, folder, keep_in
        self.n_cases = self.n_accepted = 0
        self.slowest = 0.0
        self._smallest: dict[str, Path] = {}

    def read_seeds(self) -> list[bytes]:
        """Read the sound files, so that everything made once is made before memory is bounded."""
        seeds = self._reader.seeds()
        for number, content in enumerate(seeds):
            place = self._folder / f"seed-{number}"
            place.mkdir()
            if not check(self._reader, place, content):
                raise AssertionError(f"{self._name}: seed {number} is refused")
            shutil.rmtree(place)
        return seeds

    def attempt(self, content: bytes) -> BaseException | None:
        """Return the fault, if any. The case is on disk before it is tried, because a reader may kill the process."""
        (self._folder / CURRENT).write_bytes(content)
        place = self._folder / f"case-{self.n_cases}"  # a new folder, in case a reader remembers the last one
        place.mkdir()
        self.n_cases += 1
        started = time.monotonic()
        faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
        try:
            self.n_accepted += check(self._reader, place, content)
        except Exception as error:  # any error is a fault
            self._keep(content, error)
            return error
        finally:
            faulthandler.cancel_dump_traceback_later()
            self.slowest = max(self.slowest, time.monotonic() - started)
            shutil.rmtree(place)
        return None

    def write_outcome(self) -> None:
        """Write the counts for the parent process."""
        outcome = {
            "cases": self.n_cases,
            "accepted": self.n_accepted,
            "faults": len(self._smallest),
            "slowest_seconds": round(self.slowest, 2),
        }
        (self._folder / OUTCOME).write_text(json.dumps(outcome))
        (self._folder / CURRENT).unlink(missing_ok=True)

    def _keep(self, content: bytes, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/esupcon/" in frame.filename] or frames
        at = f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
        known = self._smallest.get(at)
        if known is not None and known.stat().st_size <= len(content):
            return
        if known is None:
            print(f"{self._name}: {at}: {str(error)[:300]!r}", flush=True)
        else:
            known.unlink()
        self._smallest[at] = keep(self._keep_in, self._name, content)


def keep(folder: Path, name: str, content: bytes) -> Path:
    """Write a case that caused a fault."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    path.write_bytes(content)
    return path


def bound_memory() -> None:
    """Allow this process 1 GB more than it has now."""
    if Path("/proc/self/statm").exists():
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + EXTRA_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
