"""Write a file so that readers see the old one or the new one, never half of it."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


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
