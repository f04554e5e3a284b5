"""Run a command in this process and return what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from assets import copy_of
from esupcon.cli import main


class Printed(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Esupcon = Callable[..., Printed]


@pytest.fixture
def esupcon(capsys: pytest.CaptureFixture[str]) -> Esupcon:
    def run(*words: object) -> Printed:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Printed(code, *capsys.readouterr())

    return run


@pytest.fixture
def trained(corners_run: Path, tmp_path: Path) -> Path:
    """Return a run that a test may change."""
    return copy_of(corners_run, tmp_path / "run")
