"""Writes the report of a store of runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from esupcon.files import write_bytes
from esupcon.report.content import Content, read_content

Format = Literal["html", "markdown", "csv", "latex"]
FORMATS: tuple[Format, ...] = get_args(Format)
_SUFFIXES: dict[str, Format] = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
    ".tex": "latex",
}


def write_report(
    store: Path, out: Path, *, format: Format = "html", tables: Sequence[str] = (), command: str = ""
) -> Path:
    """Reads the store, writes the report at `out`, whole or not at all, and returns its path.

    `tables` narrows it to tables by name, or by name and profile as in `full-cpu`; `command` is what the report says
    it was made with. Runs that cannot be read are left out and named in the report.
    """
    content = read_content(Path(store), tables, command)
    return write_bytes(out, encoded(render(content, format)))


def render(content: Content, format: Format) -> str:
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}.")
    # Each format brings its own libraries: only the one that is wanted is imported.
    writer: Callable[[Content], str] = getattr(importlib.import_module(f"esupcon.report.{format}"), f"as_{format}")
    return writer(content)


def encoded(text: str) -> bytes:
    """UTF-8; halves of characters, which a name in a JSON file may hold, become question marks."""
    return text.encode("utf-8", errors="replace")


def format_of(path: Path) -> Format:
    """What the end of a file's name asks for."""
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise ValueError(f"--out must end in {', '.join(_SUFFIXES)}, or --format be given; got {path.name!r}.")
    return found
