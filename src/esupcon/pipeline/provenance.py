"""Which code ran, and where it stands among its processes."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import esupcon

_PACKAGES = ("torch", "numpy", "scipy", "lightning-fabric", "safetensors", "pillow")


def versions() -> dict[str, str]:
    found = {"esupcon": esupcon.__version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of the checkout this package runs from; None where it was installed or git is absent."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def is_first_process() -> bool:
    """False in the further processes of a distributed run, which compute with the first and write nothing."""
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0) == 0
