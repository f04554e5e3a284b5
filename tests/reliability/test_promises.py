"""docs/reliability.md cannot drift: every test it names exists, and every test of this folder is named there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.reliability

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"
#: Tests of the tests themselves, or of a detail of one that is named.
BESIDE_THE_PAGE = {
    "test_bytes_of_an_archive_that_numpy_trips_over",
    "test_crashes_are_kept_once_and_as_small_as_they_come",
    "test_draws_can_be_drawn_again",
    "test_every_promise_has_its_test",
    "test_every_test_holds_a_promise",
    "test_the_harness_notices",
    "test_the_payload_is_one",
    "test_unknown_reader_is_said",
}

if not PAGE.is_file():
    pytest.skip("the documentation is not part of this copy of the sources", allow_module_level=True)
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_promise_has_its_test() -> None:
    assert len(NAMED) > 30
    absent = [f"{file}::{name}" for file, name in NAMED if name not in names_in(TESTS / file)]
    assert absent == []


def test_every_test_holds_a_promise() -> None:
    here = {name for file in Path(__file__).parent.glob("test_*.py") for name in names_in(file)}
    assert here - {name for _, name in NAMED} == BESIDE_THE_PAGE
