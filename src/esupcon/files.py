"""Files that are either whole or absent: written beside their place, flushed to disk, then renamed."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


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


def read_json(path: Path) -> Any:
    """The value in a JSON file, or a ValueError that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must hold JSON; it does not ({error}). Delete it or restore it.") from None
