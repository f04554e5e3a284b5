"""Mathematics as MathML, made when the site is built: browsers show it as it is, without a script or a font of ours."""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)


def mathml(node: nodes.Element, display: str) -> str:
    """The element, with its LaTeX as the text that screen readers and searches may use."""
    latex = node.astext()
    element = convert(latex, display=display)
    unknown = re.search(r"\\[A-Za-z]+", re.sub(r"<[^>]*>", "", element))
    if unknown:
        _LOGGER.warning("%s cannot be converted to MathML; write %r in other words.", unknown[0], latex, location=node)
    # A bar is a delimiter in our equations, never an operator with space around it.
    element = element.replace(
        '<mo stretchy="false">&#x0007C;</mo>', '<mo stretchy="false" lspace="0" rspace="0">|</mo>'
    )
    return element.replace("<math ", f'<math alttext="{html.escape(latex, quote=True)}" ', 1)


def visit_inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    # A line of its own that scrolls where the window is narrower than the equation.
    translator.body.append(f'<div class="equation" tabindex="0">{mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
