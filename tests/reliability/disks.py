"""Small disks that can be filled, and what a command that meets one must say."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from warm import Ended

as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a small disk")


@contextmanager
def disk_of(kilobytes: int, place: Path) -> Iterator[Path]:
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take all space but `leave` bytes."""
    free = shutil.disk_usage(disk).free
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, free - leave)))
    return filler


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_one_clear_line(ended: Ended, *words: str, code: int = 2) -> None:
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    assert ended.last_line.startswith("esupcon: "), ended.err
    for word in words:
        assert word in ended.last_line, ended.last_line
