"""One trained run for all commands, and what a command printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from esupcon.cli import main
from tiny_images import write_npz


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Esupcon = Callable[..., Said]
RECIPE = ("--encoder", "mlp-16x1", "--batch-size", "27", "--precision", "32", "--epochs", "12", "--noise-rate", "0.1")


@pytest.fixture
def esupcon(capsys: pytest.CaptureFixture[str]) -> Esupcon:
    def run(*words: object) -> Said:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def corners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("corners") / "corners.npz")


@pytest.fixture(scope="session")
def shared_run(corners: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "corners"
    assert main(["train", str(corners), "--out", str(out), *RECIPE]) == 0
    return out


@pytest.fixture
def trained(shared_run: Path, tmp_path: Path) -> Path:
    """A copy, which a test may change."""
    return Path(shutil.copytree(shared_run, tmp_path / "run"))
