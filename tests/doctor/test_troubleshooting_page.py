"""The page has a section for every code, quotes what is really said, and its example runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from doctor_examples import examples

import esupcon.doctor
from esupcon.doctor import CODES

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^### `([a-z-]+)`$\n(.*?)(?=^##|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
}


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert list(SECTIONS) == list(CODES)
    for text in SECTIONS.values():
        assert re.search(r"\n\*\*Cause\.\*\* .+\n\n\*\*What to do\.\*\* .+", text)


def test_every_code_is_used_and_every_used_code_is_listed() -> None:
    used = set()
    for path in Path(esupcon.doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                code = node.args[0]
                assert isinstance(code, ast.Constant)
                used.add(code.value)
    assert used == set(CODES)


def wording(text: str) -> str:
    """The text without its numbers and names."""
    text = re.sub(r"'[^']*'", "NAME", text)
    text = re.sub(r"(NAME, )*NAME( and \d+ more)?", "NAMES", text)
    return re.sub(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?", "N", text)


FOUND = examples()


@pytest.mark.parametrize("code", CODES)
def test_the_page_quotes_what_is_said(code: str) -> None:
    quotes = re.findall(r"^> (.+)$", SECTIONS[code], flags=re.MULTILINE)
    assert [wording(quote) for quote in quotes] == [wording(FOUND[code].message)]
    assert FOUND[code].remedy


def test_the_example_runs_and_says_what_it_should(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "troubleshooting.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("]")[0] for line in lines] == ["note [prototype-share", "["]
