"""The report as one page that opens anywhere: styles, script and data inside, and nothing fetched.

Text reaches the page in two ways. The template escapes it; the data of the figures lie in a block of JSON in which
`<`, `>`, `&` and the line separators of JavaScript are written as escapes, and the script puts them on the page as
text. Besides, the page's policy lets only the two scripts run whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from esupcon.report.cells import BEST, OPEN, sheet
from esupcon.report.content import Content
from esupcon.report.details import MOST_COLUMNS, chosen_details
from esupcon.report.figures.confusion import confusions
from esupcon.report.figures.cost import cost
from esupcon.report.figures.curves import curves
from esupcon.report.figures.maps import embeddings
from esupcon.report.figures.reliability import reliability
from esupcon.report.figures.scarce import scarce_classes
from esupcon.report.figures.sensitivity import sensitivity
from esupcon.report.sections import Section, styles
from esupcon.report.words import counted, duration, method_title


def as_html(content: Content) -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - slow to import

    sections, n_left_out = _sections(content)
    style = styles(content.methods)
    plotly, script = get_plotlyjs(), _file("page.js")
    page: str = _template().render(
        content=content,
        best=BEST,
        open=OPEN,
        tables=[
            (table, [sheet(table, panel) for panel in table.panels if not panel.is_empty]) for table in content.tables
        ],
        methods=[(method, method_title(method), style[method].colour) for method in content.methods],
        sections=sections,
        details_note=_details_note(n_left_out),
        counted=counted,
        duration=duration,
        style=_file("style.css"),
        script=script,
        plotly=plotly,
        policy=_policy([plotly, script]),
        data=json_block({section.key: _drawn(section) for section in sections if section.options}),
    )
    return page


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - slow to import

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_file("template.html"))


def json_block(value: Any) -> str:
    """JSON that may stand inside a script element: pure ASCII, and no character that markup knows."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sections(content: Content) -> tuple[list[Section], int]:
    runs = content.collected.runs
    details, n_left_out = chosen_details(content.tables, runs)
    style = styles(content.methods)
    return [
        reliability(details, style),
        curves(details, style),
        cost(content.tables, details, style),
        sensitivity(content.tables, style),
        scarce_classes(details, style),
        embeddings(details),
        confusions(details),
    ], n_left_out


def _drawn(section: Section) -> dict[str, Any]:
    return {
        "hint": section.hint,
        "options": [
            {"label": option.label, "note": option.note, "cards": [vars(card) for card in option.cards]}
            for option in section.options
        ],
    }


def _details_note(n_left_out: int) -> str:
    if n_left_out == 0:
        return ""
    return (
        f"Single runs are drawn for {MOST_COLUMNS} settings, some of every table; {n_left_out} others are left out. "
        "Choose tables with --table to see theirs."
    )


def _policy(scripts: Sequence[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    # Plotly writes styles of its own, and makes pictures of figures to be saved.
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _file(name: str) -> str:
    return resources.files("esupcon.report").joinpath("page", name).read_text(encoding="utf-8")
