"""Files that are either whole or absent: written beside their place, flushed to disk, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

_SEAL = "sha256_of_the_rest"


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], None]) -> Path:
    """Call `write` on a new file beside `path`, then rename it to `path`; on failure nothing is left behind."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target} needs an existing folder; {target.parent} is not one. Create it first.")
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with beside.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return target


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    def write(file: BinaryIO) -> None:
        file.write(content)

    return write_whole(path, write)


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    return write_bytes(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def write_sealed_json(path: str | os.PathLike[str], value: dict[str, Any]) -> Path:
    """A JSON object with the digest of its content, so that a changed figure is noticed when it is read."""
    as_read = json.loads(json.dumps(value))  # tuples become lists, and numbers as names become text
    return write_json(path, {**as_read, _SEAL: _digest(as_read)})


def read_sealed_json(path: Path) -> dict[str, Any]:
    """What `write_sealed_json` wrote; a ValueError that names the file where a single bit of it is different."""
    value = read_json(path)
    if not isinstance(value, dict) or value.pop(_SEAL, None) != _digest(value):
        raise ValueError(
            f"{path} is not as it was written: its digest does not match. Restore it, or compute it again."
        )
    return value


def quoted(value: object) -> str:
    """What a file says, as a message can hold it: one line, with escapes where it is not plain text."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_json(path: Path) -> Any:
    """The value in a JSON file, or a ValueError that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must hold JSON; it does not ({error}). Delete it or restore it.") from None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; a line that a killed process left unfinished is passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
