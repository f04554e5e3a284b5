"""docs/reliability.md stays true: every test it names exists, and it names a test of every file in this folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.reliability

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"
if not PAGE.is_file():
    pytest.skip("the documentation is not part of this copy of the sources", allow_module_level=True)
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))


def test_every_promise_has_its_test() -> None:
    assert len(NAMED) > 60
    absent = [f"{file}::{name}" for file, name in NAMED if name not in _tests_in(TESTS / file)]
    assert absent == []


def _tests_in(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_file_holds_a_promise() -> None:
    here = {f"reliability/{file.name}" for file in Path(__file__).parent.glob("test_*.py")}
    assert here - {file for file, _ in NAMED} == {"reliability/test_promises.py"}
