"""The page has a section for every code, quotes the real messages, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doctor_examples import examples

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


def wording(text: str) -> str:
    """The text without its numbers and names."""
    text = re.sub(r"'[^']*'", "NAME", text)
    text = re.sub(r"(NAME, )*NAME( and \d+ more)?", "NAMES", text)
    return re.sub(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?", "N", text)


FOUND = examples()


@pytest.mark.parametrize("code", CODES)
def test_page_quotes_the_real_message(code: str) -> None:
    quotes = re.findall(r"^> (.+)$", SECTIONS[code], flags=re.MULTILINE)
    assert [wording(quote) for quote in quotes] == [wording(FOUND[code].message)]
    assert FOUND[code].remedy


def test_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "troubleshooting.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("]")[0] for line in lines] == ["note [leak", "["]
