"""The commands of README and documentation: where they stand, what output is shown below them, and what it means."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from esupcon.cli import app

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROMPT = "$ "
_FENCE = re.compile(r"^ *```(.*)$")
_SHELL_MARKS = re.compile(r"[*?|<>&;`]|\$\(")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is that of its first line of content."""

    page: Path
    line: int
    language: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """One `$ ` line, continuation lines joined, with the lines shown below it."""

    page: Path
    line: int
    text: str
    shown: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """As a shell splits them, without the comment."""
        return shlex.split(self.text, comments=True)

    @property
    def needs_a_shell(self) -> bool:
        """Whether it has a pattern, a pipe or a redirection, outside quotation marks and comments."""
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", self.text)
        return _SHELL_MARKS.search(re.sub(r"\s#.*", "", bare)) is not None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: $ {self.text}"


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    language, start, content = None, 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence and language is None:
            language, start, content = fence[1].strip(), number + 1, []
        elif fence and language is not None:
            found.append(Block(page, start, language, tuple(content)))
            language = None
        elif language is not None:
            content.append(line)
    assert language is None, f"{page.name}: the block that begins in line {start} is never closed"
    return found


def python_blocks(page: Path) -> list[str]:
    return ["\n".join(block.lines) for block in blocks_of(page) if block.language == "python"]


def commands_of(page: Path) -> list[Command]:
    return [command for block in blocks_of(page) if block.language == "console" for command in _commands_in(block)]


def _commands_in(block: Block) -> Iterator[Command]:
    starts = [i for i, line in enumerate(block.lines) if line.lstrip().startswith(PROMPT)]
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        text, below = block.lines[start].lstrip().removeprefix(PROMPT), start + 1
        while text.endswith("\\") and below < end:
            text = text[:-1] + block.lines[below].strip().removeprefix("> ")
            below += 1
        shown = block.lines[below:end]
        yield Command(block.page, block.line + start, text.strip(), shown if any(map(str.strip, shown)) else ())


def inline_commands(page: Path) -> list[str]:
    """`esupcon ...` within a sentence."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`(esupcon [^`]+)`", prose)]


def inline_options(page: Path) -> set[str]:
    """Long options named in code within a sentence that is no command of its own: `--encoder`, `--json`."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`(--[^`]+)`", prose)
    return {option for span in spans for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", span)}


@cache
def command_line() -> Any:
    return get_command(app)


def parse(words: list[str]) -> dict[str, Any]:
    """What the command line makes of the words after `esupcon`, without doing it; a mistake is raised."""
    name, *rest = words
    return dict(command_line().commands[name].make_context(name, rest).params)


def options_of(command: str) -> set[str]:
    parameters = command_line().commands[command].params
    return {"--help", "-h"} | {option for one in parameters for option in (*one.opts, *one.secondary_opts)}


@cache
def every_option() -> set[str]:
    common = {option for one in command_line().params for option in one.opts}
    return common.union(*(options_of(command) for command in command_line().commands))


def has_shown_form(shown: tuple[str, ...], said: str) -> bool:
    """Whether the output is that on the page but for decimals, spacing and empty lines.

    Whole numbers, which tell sizes, must agree. `...` stands for the rest of a line, or by itself for any lines.
    """
    pattern = ""
    for line in _form("\n".join(shown)):
        pattern += "(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _form(said))) is not None


def _form(text: str) -> list[str]:
    lines = (
        re.sub(r"─+", "─", re.sub(r"\d+\.\d+(e[+-]?\d+)?", "#", " ".join(line.split()))) for line in text.split("\n")
    )
    return [line for line in lines if line]
