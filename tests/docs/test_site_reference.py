"""The generated references are whole: every command and option, every public name, each said as the code says it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import esupcon
from esupcon.cli import main

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from docs_reference import (  # noqa: E402 - outside the package
    PAGES,
    cli_reference,
    command_tree,
    constant_comment,
    docstring_markdown,
    page_markdown,
    plain_markdown,
    signature_text,
)

# Rooms of the package that nobody outside is meant to enter.
INSIDE = {
    "cli",
    "contrast",
    "cosine",
    "files",
    "lazy",
    "npz_file",
    "_console",
    "_io",
    "_split",
    "precision",
    "validation",
    "__main__",
}
COMMANDS = list(command_tree().commands)


@pytest.fixture(scope="module")
def commands() -> dict[str, str]:
    """The reference of each command, by its name."""
    _, *parts = re.split(r"^## (.+)$", cli_reference(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {page.name: page_markdown(page) for page in PAGES}


@pytest.mark.parametrize("name", COMMANDS)
def test_whatever_help_shows_is_in_the_reference(
    commands: dict[str, str], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    section = commands[f"esupcon {name}"].replace("\\", "")
    monkeypatch.setenv("COLUMNS", "200")
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown)) - {"--help"}
    described = set(re.findall(r"^:::\{option\} (--[a-z-]+)", section, flags=re.MULTILINE))
    assert options and options - described <= set(re.findall(r"--[a-z-]+", section)) and described <= options
    words = " ".join(re.sub(r"[│╭╮╰╯─]", " ", shown).split())
    for default in re.findall(r"\[default: \(?(.+?)\)?\]", words):
        assert f"Default: {default}." in section or f"Default: `{default}`." in section
    for panel in re.findall(r"╭─ (.+?) ─", shown):
        assert f":::{{rubric}} {panel}" in section
    for parameter in command_tree().commands[name].params:
        assert " ".join(parameter.help.split()) in section
        assert parameter.required == ("**Required.**" in section.split(_heading(parameter))[1].split(":::")[0])


def _heading(parameter: object) -> str:
    is_option = parameter.param_type_name == "option"
    return f":::{{option}} {parameter.opts[0]}" if is_option else f":::{{describe}} {parameter.metavar}"


def test_exit_codes_have_a_meaning(commands: dict[str, str]) -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", commands["Exit codes"], flags=re.MULTILINE))
    assert set(rows) == {"0", "1", "2", "130", "143"}
    assert all(len(meaning) > 3 for meaning in rows.values())


def test_every_room_is_public_or_said_to_be_inside() -> None:
    rooms = {found.name for found in pkgutil.iter_modules(esupcon.__path__)} - {"estimator"}  # on the page of esupcon
    assert {page.name.removeprefix("esupcon.") for page in PAGES} - {"esupcon"} == rooms - INSIDE


def test_every_public_name_is_there_with_its_words(pages: dict[str, str]) -> None:
    for page in PAGES:
        text = pages[page.name]
        for listed in page.modules:
            module = importlib.import_module(listed.module)
            for name in listed.public():
                value = getattr(module, name)
                entries = re.findall(rf"^:+\{{py:\w+\}} {name}\b(.*)$", text, flags=re.MULTILINE)
                assert entries, f"{listed.module}.{name}"
                if inspect.isfunction(value):
                    assert signature_text(value) in entries
                    assert all(parameter in signature_text(value) for parameter in inspect.signature(value).parameters)
                if inspect.isroutine(value) or inspect.isclass(value):
                    said = value.__doc__ if value.__module__.startswith("esupcon") else constant_comment(module, name)
                    assert said, f"{listed.module}.{name} has no docstring"
                    assert not said.startswith(f"{name}("), f"{name}: that is the docstring which dataclasses invent"
                    assert docstring_markdown(said) in text


def test_members_and_fields() -> None:
    text = page_markdown(next(page for page in PAGES if page.name == "esupcon"))
    assert ":::{py:method} fit(X: Any, y: Any) -> Self" in text
    assert ":::{py:method} calibrate(X: Any, y: Any)" in text
    assert "`classes_`\n: the labels, in the order" in text
    assert "`batch_size`, `lr`, `optimizer`, `weight_decay`\n: of the optimiser" in text
    assert "extra_repr" not in page_markdown(next(page for page in PAGES if page.name == "esupcon.losses"))
    engine = page_markdown(next(page for page in PAGES if page.name == "esupcon.training"))
    assert ':::{py:attribute} epochs\n:type: "int"\n:value: "100"\n\npasses over the training data\n:::' in engine


def test_what_the_pages_import_is_public() -> None:
    public = {(listed.module, name) for page in PAGES for listed in page.modules for name in listed.public()}
    modules = {module for module, _ in public} | {page.name for page in PAGES}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if page.suffix == ".md" else [text]
        for node in ast.walk(ast.parse("\n".join(blocks))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "esupcon":
                for one in node.names:
                    name = (node.module, one.name)
                    assert name in public or ".".join(name) in modules, f"{page.name}: {'.'.join(name)}"


def test_docstrings_become_markdown() -> None:
    text = """Uses $HOME and `$x`.

    name: what it is, at
        length
    other, more: two of them

    Note: a sentence.

    Returns
    -------
    value : a number
    """
    assert docstring_markdown(text) == (
        "Uses \\$HOME and `$x`.\n\n`name`\n: what it is, at\n  length\n\n`other`, `more`\n: two of them\n\n"
        "Note: a sentence.\n\n**Returns**\n\n`value`\n: a number"
    )
    assert docstring_markdown(None) == ""


@given(st.text(alphabet="agmp1 *_`[]()<>{}#$|~\\&;.!-:/=", max_size=30))
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    words = " ".join(text.split())
    shown = MarkdownIt("commonmark").parseInline(f"x {plain_markdown(words)}")[0]
    assert "".join(child.content for child in shown.children or []) == f"x {words}"
