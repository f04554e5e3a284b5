"""Write a report as HTML, Markdown or CSV. The first two are jinja templates in `page/`.

The HTML page works offline: styles, script and data are inside. Names reach it in two ways: jinja escapes them, and
the data of the figures is JSON without `<`, `>` and `&`, which the script shows as text. The page's policy lets only
its own two scripts run.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from esupcon._console import count, csv_text, duration, markdown_text, printable
from esupcon._io import write_bytes
from esupcon.report import format as formats
from esupcon.report.content import Content, DrawnColumn, read
from esupcon.report.figures import sections, styles

FORMATS = ("html", "markdown", "csv")
_SUFFIXES = dict(zip((".html", ".md", ".csv"), FORMATS, strict=True))
CSV_FIELDS = (
    *("table", "profile", "measure", "unit", "dataset", "setting", "reduced", "method", "baseline", "n", "n_planned"),
    *("mean", "deviation", "gain", "gain_deviation", "gain_n", "low", "high", "is_best", "paper", "paper_gain"),
)


def build(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    tables: Sequence[str] = (),
    command: str = "",
) -> Path:
    """Write the report of a store of runs, or of a one-file study, and return its path.

    Parameters
    ----------
    store : folder that `esupcon reproduce` filled, or a study (.jsonl)
    out : file to write; replaced if it exists
    format : "html", "markdown" or "csv"; by default chosen by the end of `out`
    tables : only these tables, by name or by name and profile as in `full-cpu`
    command : how the report was made, to be shown in it

    Runs that cannot be read are left out and named in the report. Nothing is trained, and torch is not needed.
    """
    chosen = format_of(Path(out), format)
    return write_bytes(out, render(read(Path(store), tables, command), chosen))


def format_of(path: Path, format: str | None = None) -> str:
    """Return the format that is asked for by its name or else by the end of a file name."""
    chosen = format or _SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise ValueError(f"the report must end in {', '.join(_SUFFIXES)}, or a format be given; got {path.name!r}.")
    if chosen not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}.")
    return chosen


def render(content: Content, format: str) -> bytes:
    """Return the report in UTF-8; a lone surrogate, which a name in JSON may hold, becomes a question mark."""
    return {"html": _html, "markdown": _markdown, "csv": _csv}[format](content).encode("utf-8", errors="replace")


def _page_file(name: str) -> str:
    return resources.files("esupcon.report").joinpath("page", name).read_text(encoding="utf-8")


def _fill(name: str, values: dict[str, Any], escape: Callable[[object], str] | None = None) -> str:
    """Fill a template. Every value that it writes is escaped, by HTML's rules if no other function is given."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415 - slow to import
    from markupsafe import Markup  # noqa: PLC0415 - part of jinja

    options: dict[str, Any] = {"autoescape": escape is None, "undefined": StrictUndefined}
    if escape is not None:
        options["finalize"] = lambda value: value if isinstance(value, Markup) else escape(value)
    options |= {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(loader=FunctionLoader(_page_file), **options)
    environment.filters.update({name: one for name, one in vars(formats).items() if callable(one)})
    environment.filters["duration"] = duration
    environment.globals.update(count=count, legend=formats.legend)
    return environment.get_template(name).render(values)


def _markdown(content: Content) -> str:
    return _fill("template.md", {"content": content}, markdown_text)


def _csv(content: Content) -> str:
    """Write a line for each cell, with numbers of ten digits and names that are no formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for table, panel in ((one, panel) for one in content.tables for panel in one.panels):
        plan, measure = table.plan, panel.measure
        for method, cells in panel.cells.items():
            for column, cell in zip(table.columns, cells, strict=True):
                names = [plan.table, plan.profile, measure.key, measure.unit, column.dataset, column.setting]
                names += [column.reduced or "", method, plan.baseline]
                n, *mean = cell.summary or (0, None, None)
                gain_n, *gain = cell.gain or (0, None, None)
                numbers = [n, cell.n_planned, *mean, *gain, gain_n, *(cell.interval or (None, None))]
                numbers += [int(cell.is_best), cell.paper, cell.paper_gain]
                digits = ["" if one is None else f"{one:.10g}" for one in numbers]
                writer.writerow([*(csv_text(printable(name)) for name in names), *digits])
    return text.getvalue()


def _html(content: Content) -> str:
    methods = [(method, line["color"]) for method, line in styles(content.methods).items()]
    values = {"content": content, "methods": methods, "facts": content.facts}
    return html_page("template.html", values, content.drawn, content.methods)


def html_page(template: str, values: dict[str, Any], columns: Sequence[DrawnColumn], methods: Sequence[str]) -> str:
    """Fill a template that extends `base.html`; the columns are drawn if plotly is installed."""
    plotly = _plotly()
    drawn = sections(columns, methods) if plotly is not None else []
    scripts = [*([plotly] if plotly else []), _page_file("page.js")]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in digests)
    page = {
        "sections": drawn,
        "has_plotly": plotly is not None,
        "style": _page_file("style.css"),
        "scripts": scripts,
        # Plotly writes styles of its own, and makes images of figures to be saved.
        "policy": f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:",
        "data": json_block({section.key: section for section in drawn}),
    }
    return _fill(template, {**values, **page})


def _plotly() -> str | None:
    """Return plotly's script; None if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an optional dependency, and slow to import
    except ImportError:
        return None
    script: str = get_plotlyjs()
    return script


def json_block(value: Any) -> str:
    """Return JSON, of records too, that can stand in a script element: ASCII without characters that markup knows."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=vars)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
