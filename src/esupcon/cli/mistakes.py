"""What a user's mistake looks like on the terminal: one line that says what to do."""

from __future__ import annotations

import errno
from typing import Any

_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")


def is_mistake(error: Exception) -> bool:
    """Whether the caller can put it right; anything else is ours and keeps its traceback."""
    if isinstance(error, RuntimeError):
        return _lacks_memory(error)
    return isinstance(error, ValueError | OSError | MemoryError | ModuleNotFoundError)


def one_line(error: Exception) -> str:
    if isinstance(error, MemoryError) or _lacks_memory(error):
        return (
            "there is not enough memory. Pass a smaller --batch-size, or --micro-batch to keep the batch of the loss."
        )
    if isinstance(error, OSError) and error.errno is not None:
        return _of_the_system(error)
    flatten: Any = getattr(error, "errors", None)  # pydantic's, which is not imported for this
    if isinstance(error, ValueError) and callable(flatten):
        return "; ".join(_of_a_setting(entry) for entry in flatten())
    return str(error)


def _lacks_memory(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and any(mark in str(error).lower() for mark in _MEMORY)


def _of_the_system(error: OSError) -> str:
    place = error.filename2 or error.filename
    where = f"{place}: " if place is not None else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"{where}the disk is full. Free some space and run the same command again: it goes on from there."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{where}{error.strerror}. Choose a place you may write to, or change its permissions."
        case _:
            return f"{where}{error.strerror or error}. Check the path."


def _of_a_setting(entry: dict[str, Any]) -> str:
    name = "-".join(str(part) for part in entry["loc"]).replace("_", "-")
    message = str(entry["msg"]).removeprefix("Value error, ")
    value = "" if "got " in message else f"; got {entry['input']!r}"
    return f"--{name}: {message}{value}"
