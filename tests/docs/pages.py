"""README and documentation as text: code blocks, commands with the output shown below them, links and anchors."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from typer.main import get_command

from esupcon.cli import app

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCED = re.compile(r"^ *```.*?^ *```$", flags=re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A line that starts with `$ `, with the lines shown below it."""

    page: Path
    text: str
    shown: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """Return the words as a shell would, with patterns of file names filled in."""
        words = shlex.split(self.text, comments=True)
        return [name for word in words for name in (map(str, sorted(Path().glob(word))) if "*" in word else [word])]

    def __str__(self) -> str:
        return f"{self.page.name}: $ {self.text}"


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[Command]:
    for block in blocks(page, "console"):
        lines = [line.strip() for line in block.splitlines()]
        starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
        assert starts[:1] == [0], f"{page.name} shows output of no command:\n{block}"
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            text, below = lines[start].removeprefix("$ "), start + 1
            while text.endswith("\\") and below < end:
                text, below = text[:-1] + lines[below].removeprefix("> "), below + 1
            shown = tuple(lines[below:end])
            yield Command(page, text, shown if any(shown) else ())


def inline_code(page: Path) -> list[str]:
    """Return the code within sentences."""
    prose = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


@cache
def command_line() -> Any:
    return get_command(app)


def parse(words: list[str]) -> dict[str, Any]:
    """Return what the command line makes of the words after `esupcon`, without running it; raise on a mistake."""
    return dict(command_line().commands[words[0]].make_context(words[0], words[1:]).params)


def options_of(*names: str) -> set[str]:
    """Return the options of some commands, or of all."""
    chosen = [command_line().commands[name] for name in names] or [command_line(), *command_line().commands.values()]
    parameters = [parameter for one in chosen for parameter in one.params]
    return {"--help", "-h", *(name for one in parameters for name in (*one.opts, *one.secondary_opts))}


def has_shown_form(shown: tuple[str, ...], printed: str) -> bool:
    """Return whether the output is that on the page except for decimals, spacing and empty lines.

    Whole numbers must agree. `...` stands for the rest of a line, or by itself for any lines.
    """

    def form(text: str) -> list[str]:
        lines = (re.sub(r"\d+\.\d+(e[+-]?\d+)?", "#", " ".join(line.split())) for line in text.split("\n"))
        return [re.sub(r"─+", "─", line) for line in lines if line]

    pattern = ""
    for line in form("\n".join(shown)):
        pattern += "(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in form(printed))) is not None


def links_and_anchors(text: str) -> tuple[list[str], set[str]]:
    """Return the targets of links and pictures, and what #... may name by GitHub's rules."""
    links: list[str] = []
    anchors: set[str] = set()
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        found = [child.attrs for child in token.children or [] if child.type in ("link_open", "image")]
        links += [str(attributes.get("href") or attributes.get("src")) for attributes in found]
        if before is not None and before.type == "heading_open":
            words = "".join(one.content for one in token.children or [] if one.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", words.lower().strip()).replace(" ", "-")
            repeated = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", anchor) is not None for anchor in anchors)
            anchors.add(f"{slug}-{repeated}" if repeated else slug)
    return links, anchors


def broken_links(page: Path, root: Path) -> Iterator[str]:
    """Yield each link of a page that leads nowhere, or out of the repository."""
    for link in links_and_anchors(page.read_text(encoding="utf-8"))[0]:
        if re.match(r"https://|mailto:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:|/", link) or not target.is_relative_to(root) or not target.exists():
            yield f"{link}: no such file"
        elif anchor and anchor not in links_and_anchors(target.read_text(encoding="utf-8"))[1]:
            yield f"{link}: no heading {anchor!r}"
