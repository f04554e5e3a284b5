"""The warm process, and one small trained model for all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import TRAIN
from warm import Warm


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    process = Warm()
    assert process.esupcon("--version").code == 0  # it has started
    yield process
    process.close()


@pytest.fixture(scope="session")
def long_version() -> bool:
    """The long versions run with ESUPCON_SOAK=1."""
    return os.environ.get("ESUPCON_SOAK") == "1"


@pytest.fixture(scope="session")
def shared_run(warm: Warm, corners: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    ended = warm.esupcon("train", corners, "--out", out, *TRAIN)
    assert ended.code == 0, ended.err
    return out


@pytest.fixture
def run(shared_run: Path, tmp_path: Path) -> Path:
    """A finished run, which a test may change."""
    return Path(shutil.copytree(shared_run, tmp_path / "run"))
