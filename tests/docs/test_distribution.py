"""The source distribution holds what git tracks and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRAY = (
    *("secret.env", "src/esupcon/untracked.py", "src/secrets.txt", "tests/README.md", "runs/store/result.json"),
    *("venv/lib/site-packages/x/README.md", "venv/src/x.py", "docs/LICENSE", ".venv/CHANGELOG.md"),
)


def test_sdist_holds_tracked_files_only(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    tracked = subprocess.run(["git", "-C", str(clone), "ls-files"], capture_output=True, text=True, check=True)
    for name in STRAY:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text("not ours\n")
    first = build(clone, tmp_path / "first")
    assert first == {*tracked.stdout.splitlines(), "PKG-INFO"}
    with tarfile.open(next((tmp_path / "first").glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    unpacked = next((tmp_path / "unpacked").iterdir())
    assert build(unpacked, tmp_path / "second") == first, "a distribution can be built from the distribution"


def build(source: Path, out: Path) -> set[str]:
    words = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert len(names) == len(set(names)), "no file is there twice"
    return set(names)
