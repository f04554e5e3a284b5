"""Long names in tables, such as that of a test or a file, may be broken after a separator.

Unbroken they push the other columns together. The places are marked by `<wbr>`, which is not copied with the text.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_CELL = re.compile(r"<td\b.*?</td>", flags=re.DOTALL)
_LONG_WORD = re.compile(r"(?<=>)([^<>\s]{20,})(?=</span>)")
_SEPARATOR = re.compile(r"(::|[/_=,.])(?=.)")


def mark_breaks(body: str) -> str:
    return _CELL.sub(lambda cell: _LONG_WORD.sub(_breakable, cell[0]), body)


def _breakable(word: re.Match[str]) -> str:
    return _SEPARATOR.sub(lambda separator: f"{separator[0]}<wbr>", word[0])


def _mark(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if "body" in context:
        context["body"] = mark_breaks(context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", _mark, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
