"""Build hook of hatchling: put what git tracks into the source distribution, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TrackedFiles(BuildHookInterface[Any]):
    """In an unpacked source distribution there is no git: then every file belongs to it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if (root / ".git").exists():
            words = ["git", "-C", str(root), "ls-files", "-z"]
            listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\0")
            names = [name for name in listed if name and (root / name).is_file()]
        else:
            files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
            names = [path.as_posix() for path in files if "__pycache__" not in path.parts]  # of this very hook
        automatic = {"pyproject.toml", ".gitignore", "README.md", "LICENSE", "PKG-INFO"}  # hatchling adds them itself
        build_data["force_include"].update({name: name for name in names if name not in automatic})
