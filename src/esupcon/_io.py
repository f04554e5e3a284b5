"""Read and write files safely: atomic writes, one seal, owned folders, bounded ``.npz`` archives, locks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from esupcon._console import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pydantic import ValidationError

PathLike = str | os.PathLike[str]

# --- Atomic writes ---------------------------------------------------------------------------------------------------


def write_whole(path: PathLike, write: Callable[[BinaryIO], object]) -> Path:
    """Call `write` on a temporary file beside `path`, flush it to disk and rename it; on failure leave nothing.

    A symbolic link at `path` is replaced, not followed.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target} needs an existing folder; {target.parent} is not one. Create it first.")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with _named(target), temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


@contextmanager
def _named(path: PathLike) -> Iterator[None]:
    """Add the name of the file to an error of the system in writing, which has none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = error.filename or str(path)
        raise


def write_bytes(path: PathLike, content: bytes) -> Path:
    """Write a whole file of bytes."""
    return write_whole(path, lambda file: file.write(content))


def write_json(path: PathLike, value: Any) -> Path:
    """Write a whole JSON file with sorted keys."""
    return write_bytes(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def append_line(path: PathLike, record: dict[str, Any]) -> None:
    """Append one JSON line."""
    with _named(path), open_to_append(path) as file:
        file.write(json.dumps(record, sort_keys=True) + "\n")


def open_to_append(path: PathLike) -> TextIO:
    """Open a file to append text; refuse a symbolic link, which would lead to a file that is not ours."""
    refuse_link(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # also if the link appears now
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8", newline="\n")


def refuse_link(path: PathLike) -> None:
    """Raise a ValueError if a path of ours is a symbolic link."""
    if Path(path).is_symlink():
        raise ValueError(f"{path} is a symbolic link; expected a file or folder of this run. Remove the link.")


# --- JSON, and the one seal ------------------------------------------------------------------------------------------

_SEAL = "sha256_of_the_rest"
#: Bytes of memory per byte of a JSON file.
JSON_MEMORY = 20


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raise a ValueError that names the file if it is not JSON, or too large."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file, and reading it may never end. Remove it.")
    check_memory(JSON_MEMORY * path.stat().st_size, str(path))
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must hold JSON; it does not ({error}). Delete it or restore it.") from None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines, none if it is absent; skip what a killed process left unfinished."""
    records = []
    with suppress(OSError):
        if not path.is_file():  # reading a pipe or a device may never end
            return []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, RecursionError):
                records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def write_sealed_json(path: PathLike, value: dict[str, Any]) -> Path:
    """Write a JSON object with the digest of its content."""
    return write_json(path, sealed(value))


def read_sealed_json(path: Path) -> dict[str, Any]:
    """Return what `write_sealed_json` wrote; raise a ValueError that names the file if a single bit differs."""
    return unsealed(read_json(path), path)


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the digest of its content: one line of a file of sealed lines."""
    as_read = json.loads(json.dumps(value))  # tuples become lists, and numbers used as keys become text
    return {**as_read, _SEAL: _content_digest(as_read)}


def unsealed(value: Any, where: object) -> dict[str, Any]:
    """Return what `sealed` was given; raise a ValueError that names the place if it has changed since."""
    if not isinstance(value, dict) or value.pop(_SEAL, None) != _content_digest(value):
        raise ValueError(f"{where} was changed after it was written: its digest differs. Restore or recompute it.")
    return value


def file_digest(path: PathLike) -> str:
    """Return the SHA-256 of a file's content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _content_digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# --- Folders that we own ---------------------------------------------------------------------------------------------

#: Manifest of a folder that we write to. A reader of data folders skips every folder that holds it.
OWNED = ".esupcon.json"
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}(\.new|\.old)?")


class OwnedFolder:
    """A folder with a manifest of the names that we write: only these are ever replaced or removed.

    `names` are relative names or patterns of files and folders, such as ``"checkpoint-*.pt"``.
    """

    def __init__(self, path: PathLike, names: Iterable[str]) -> None:
        self.path = Path(path)
        self.names = tuple(sorted(set(names)))

    @property
    def is_ours(self) -> bool:
        """Whether the folder has a manifest of ours."""
        return not (self.path / OWNED).is_symlink() and (self.path / OWNED).is_file()

    def claim(self) -> None:
        """Create the folder and its manifest; raise if it holds files of others, or links, under our names."""
        self.path.mkdir(parents=True, exist_ok=True)
        known = self._listed() if self.is_ours else ()
        found = ((name, path) for name in self.names for path in self.path.glob(name))
        foreign = {printable(p.relative_to(self.path)) for name, p in found if name not in known or p.is_symlink()}
        inside = {OWNED, *(str(folder) for name in self.names for folder in Path(name).parents[:-1])}
        foreign |= {name for name in inside if (self.path / name).is_symlink()}
        if foreign:
            names = ", ".join(sorted(foreign)[:5]) + f" and {len(foreign) - 5} more" * (len(foreign) > 5)
            remedy = "They would be replaced. Choose another folder, or move them"
            raise ValueError(f"{self.path} holds files or links that esupcon did not write: {names}. {remedy}.")
        if not set(self.names) <= set(known):
            write_sealed_json(self.path / OWNED, {"files": sorted({*known, *self.names})})
        self._remove_temporary(self.names)

    def clear(self) -> None:
        """Remove those of `names` that the manifest lists, and what is unfinished of them. The manifest stays.

        Whatever else it lists stays, too: it may come from a stranger, or from another kind of folder.
        """
        if self.is_ours:
            names = set(self._listed()).intersection(self.names)
            for path in [path for name in names for path in self.path.glob(name)]:
                _remove(path)
            self._remove_temporary(names)

    def _listed(self) -> tuple[str, ...]:
        names = read_sealed_json(self.path / OWNED).get("files")
        if not isinstance(names, list) or not all(map(_is_inside, names)):
            raise ValueError(f"{self.path / OWNED} does not list file names of this folder. Choose another folder.")
        return tuple(names)

    def _remove_temporary(self, names: Collection[str]) -> None:
        """Remove what a killed process was writing beside its final place."""
        for folder in {(self.path / name).parent for name in names}:
            for path in folder.glob(".*"):
                match = _TEMPORARY.fullmatch(path.name)
                if match and any(path.with_name(match["name"]).relative_to(self.path).match(name) for name in names):
                    _remove(path)


def _is_inside(name: object) -> bool:
    return isinstance(name, str) and name != "" and not Path(name).is_absolute() and ".." not in Path(name).parts


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- Locks -----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: PathLike, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock file `path` if locks work here. Yield False if another process holds it, else True.

    With `waiting`, call it and wait for the other process. A lock only saves work: what is built is written atomically.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - 40 ms that `esupcon --help` does not need

    lock, is_free = FileLock(path), True
    with suppress(OSError, NotImplementedError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            is_free = waiting is not None
            if waiting is not None:
                waiting()
                lock.acquire()
    try:
        yield is_free
    finally:
        lock.release()


# --- Memory ----------------------------------------------------------------------------------------------------------

_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_budget() -> int:
    """Return how many bytes this process may use: the machine's memory, or the limit of its cgroup."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    groups = {_CGROUPS / "memory.max", _CGROUPS / "memory" / "memory.limit_in_bytes"}
    with suppress(OSError):
        for line in _OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            root, file = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
            group = root / name.lstrip("/")
            groups |= {one / file for one in (group, *group.parents) if one.is_relative_to(root)}
    for path in groups:
        with suppress(OSError, ValueError):  # no such file, or "max": no limit
            limits.append(int(path.read_text(encoding="ascii")))
    return min(limits, default=2**63 - 1)


def check_memory(n_bytes: int, what: str) -> None:
    """Raise a ValueError if `what` needs more memory than this machine allows."""
    if n_bytes > (budget := memory_budget()):
        expected = f"this machine allows {budget / 1e9:.1f} GB"
        raise ValueError(f"{what} needs {n_bytes / 1e9:.1f} GB of memory; {expected}. Use less data.")


# --- .npz archives ---------------------------------------------------------------------------------------------------
# NumPy's own reader allocates whatever size a file claims, may stop before the checksum at the end of a member, and
# raises whatever its parsers raise.

# The record at the end of an archive: its mark, its length with the longest comment, and the largest count it can hold.
_END, _LONGEST_END, _MANY = b"PK\x05\x06", 22 + 0xFFFF, 0xFFFF


class NotPlainArrays(ValueError):  # noqa: N818 - callers quote the message in a sentence about the file
    """Raised if a file is not an archive of plain arrays; the message is the reason in a few words."""


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in an archive; refuse a damaged name, which would hide an array."""
    with _open_archive(path) as archive:
        for member in archive.infolist():
            archive.open(member).close()  # compares the name in the directory with the one before the data
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of these names, verified by their checksums; refuse what does not fit into memory together."""
    from numpy.lib import format as npy  # noqa: PLC0415

    arrays = {}
    with _open_archive(path) as archive:
        members = {name: archive.NameToInfo.get(f"{name}.npy") or archive.getinfo(name) for name in names}
        claimed = sum(_claimed_bytes(archive, member) for member in members.values())
        if claimed > (budget := memory_budget()):
            raise NotPlainArrays(f"it holds {claimed / 1e9:.1f} GB, more than fits into memory ({budget / 1e9:.1f} GB)")
        for name, member in members.items():
            with archive.open(member) as stream:
                arrays[name] = npy.read_array(stream, allow_pickle=False)
                stream.read()  # to its end, where the checksum is compared
    return arrays


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive with at least one member; raise NotPlainArrays for whatever a damaged one raises."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            # A damaged length in the directory hides what follows: the end holds the number of members, too.
            file.seek(max(0, path.stat().st_size - _LONGEST_END))
            end, n_found = file.read(), len(archive.infolist())
            (n_announced,) = struct.unpack_from("<H", end, end.rfind(_END) + 10)
            if n_announced != min(n_found, _MANY) or n_found == 0:
                raise NotPlainArrays(f"its directory announces {n_announced} arrays and lists {n_found}")  # noqa: TRY301
            yield archive
    except (MemoryError, RecursionError) as error:
        raise NotPlainArrays("it holds more than fits into memory") from error
    except Exception as error:  # damaged bytes make parsers raise nearly anything
        raise NotPlainArrays(" ".join(str(error).split()) or type(error).__name__) from error


def _claimed_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Return the size that a member's header announces; refuse one that differs from what the archive holds."""
    from numpy.lib import format as npy  # noqa: PLC0415

    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, _, dtype = read_header(stream)
        held = member.file_size - stream.tell()
    if dtype.hasobject:
        raise NotPlainArrays("it holds Python objects, which are not read; save plain numbers and text")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != held:
        raise NotPlainArrays(f"an array of {claimed:,} bytes is announced where there are {held:,}")
    return claimed


# --- Text for messages -----------------------------------------------------------------------------------------------


def first_error(error: ValidationError, *, show_input: bool = False) -> str:
    """Return the first error of a pydantic validation as one line, and how many more there are."""
    first, *more = error.errors(include_url=False)
    place = printable(".".join(map(str, first["loc"])))[:100]
    reason = printable(" ".join(str(first["msg"]).removeprefix("Value error, ").split()))
    if show_input and "got " not in reason:
        reason += f"; got {printable(repr(first['input']))[:100]}"
    return f"{f'{place}: ' if place else ''}{reason}{f' (and {len(more)} more)' if more else ''}"
