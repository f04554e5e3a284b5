"""Links of Markdown pages as GitHub sees them: which there are, and whether they lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

_HTML_ANCHOR = re.compile(r"""<\w+[^>]*\s(?:id|name)=["']([^"']+)["']""")
_HTML_LINK = re.compile(r"""<\w+[^>]*\s(?:href|src)=["']([^"']+)["']""")


def links(text: str) -> list[str]:
    """Targets of links and pictures, code left out."""
    found = []
    for token in _tokens(text):
        if token.type in ("link_open", "image"):
            found.append(str(token.attrs.get("href") or token.attrs.get("src")))
        elif token.type.startswith("html_"):
            found += _HTML_LINK.findall(token.content)
    return found


def anchors(text: str) -> set[str]:
    """What #... may name: headings in lower case, punctuation dropped, spaces as hyphens, repeated ones counted."""
    found: set[str] = set()
    for token in _tokens(text):
        if token.type.startswith("html_"):
            found |= set(_HTML_ANCHOR.findall(token.content))
        elif token.type == "heading":
            slug = re.sub(r"[^\w\- ]", "", token.content.lower().strip()).replace(" ", "-")
            name, count = slug, 0
            while name in found:
                count += 1
                name = f"{slug}-{count}"
            found.add(name)
    return found


def broken_links(page: Path, root: Path) -> Iterator[str]:
    """What is wrong with each link of a page that leads nowhere, or out of the repository."""
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"https://|mailto:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:|/", link):
            yield f"{link}: neither https nor a path from the page"
        elif not target.is_relative_to(root) or not target.exists():
            yield f"{link}: no such file"
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text(encoding="utf-8"))):
            yield f"{link}: no heading {anchor!r}"


def _tokens(text: str) -> Iterator[Token]:
    """Every token, nested ones too; a heading is one token with its words, markup taken off, as content."""
    opened = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "inline":
            inside = token.children or []
            if opened:
                words = "".join(child.content for child in inside if child.type in ("text", "code_inline", "image"))
                yield Token("heading", "", 0, content=words)
            yield from inside
        else:
            yield token
        opened = token.type == "heading_open"
