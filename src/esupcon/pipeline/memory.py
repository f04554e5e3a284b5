"""The most memory this process has held, from a moment on where the system lets us choose it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # the absent module, tested for below

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory() -> None:
    """Linux forgets the peak so far; elsewhere the peak of the whole process is what can be told."""
    with suppress(OSError):
        _CLEAR.write_text("5")


def peak_memory() -> int | None:
    """Bytes; None where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
