"""The page has a section for every code, quotes the real messages, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from esupcon.doctor import CODES
from esupcon.doctor.finding import _MESSAGES

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^### `([a-z-]+)`$\n(.*?)(?=^##|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
}


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert list(SECTIONS) == list(CODES)
    for text in SECTIONS.values():
        assert re.search(r"\n\*\*Cause\.\*\* .+\n\n\*\*What to do\.\*\* .+", text)


@pytest.mark.parametrize("code", CODES)
def test_page_quotes_the_real_message(code: str) -> None:
    (quote,) = re.findall(r"^> (.+)$", SECTIONS[code], flags=re.MULTILINE)
    fixed_words = re.split(r"\{[^}]*\}", _MESSAGES[code][1])
    assert re.fullmatch(".*".join(map(re.escape, fixed_words)), quote)


def test_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "troubleshooting.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("]")[0] for line in lines] == ["note [leak", "["]
