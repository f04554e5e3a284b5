"""One process at a time builds a thing; the others wait and then find it built."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: builders then work side by side, and the first to finish wins
    fcntl = None  # type: ignore[assignment]  # the absent module, tested for below


_BUSY = -1  # in the place of a descriptor


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool | None]:
    """Hold the lock file `path`; with `waiting` None, do not wait.

    Yields True where it is held, False where another process holds it, None where this place cannot lock. The lock
    ends with the process, however that ends. It saves work and nothing else: whatever is built under it is written
    beside and renamed, and stays whole on file systems that cannot lock.
    """
    descriptor = _acquire(path, waiting) if fcntl is not None else None
    try:
        yield None if descriptor is None else descriptor != _BUSY
    finally:
        if descriptor is not None and descriptor != _BUSY:
            with suppress(OSError):
                path.unlink()  # while still held: whoever waits on it looks again under the name
            os.close(descriptor)


def _acquire(path: Path, waiting: Callable[[], None] | None) -> int | None:
    said = False
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is None:
                    os.close(descriptor)
                    return _BUSY
                if not said:
                    waiting()
                    said = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still_named(descriptor, path):
                return descriptor
        except OSError:  # this file system has no locks
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed the name: lock the file that now bears it


def _is_still_named(descriptor: int, path: Path) -> bool:
    try:
        named = path.stat()
    except OSError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
