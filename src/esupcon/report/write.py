"""Write a report as HTML, Markdown, LaTeX or CSV. The first three are jinja templates in `page/`.

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
from typing import Any, Literal, get_args

from esupcon._console import count, duration
from esupcon._io import write_bytes
from esupcon.report import format as formats
from esupcon.report.content import Content, read
from esupcon.report.figures import Section, sections, styles

Format = Literal["html", "markdown", "csv", "latex"]
FORMATS: tuple[Format, ...] = get_args(Format)
_SUFFIXES: dict[str, Format] = {
    **{".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"},
    **{".csv": "csv", ".tex": "latex"},
}
CSV_FIELDS = (
    *("table", "profile", "measure", "unit", "dataset", "setting", "reduced", "method", "baseline"),
    *("n", "n_planned", "mean", "deviation", "gain", "gain_deviation", "gain_n", "p", "is_best", "paper", "paper_gain"),
)


def build(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: Format | None = None,
    tables: Sequence[str] = (),
    command: str = "",
) -> Path:
    """Write the report of a store of runs, or of a one-file study, and return its path.

    Parameters
    ----------
    store : folder that `esupcon reproduce` filled, or a study (.jsonl)
    out : file to write; replaced if it exists
    format : "html", "markdown", "csv" or "latex"; by default chosen by the end of `out`
    tables : only these tables, by name or by name and profile as in `full-cpu`
    command : how the report was made, to be shown in it

    Runs that cannot be read are left out and named in the report. Nothing is trained, and torch is not needed.
    """
    chosen = format or format_of(Path(out))
    return write_bytes(out, render(read(Path(store), tables, command), chosen))


def format_of(path: Path) -> Format:
    """Return the format that the end of a file name asks for."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"the report must end in {', '.join(_SUFFIXES)}, or a format be given; got {path.name!r}.")
    return _SUFFIXES[path.suffix.lower()]


def render(content: Content, format: Format) -> bytes:
    """Return the report in UTF-8; a lone surrogate, which a name in JSON may hold, becomes a question mark."""
    writers = {"html": _html, "markdown": _markdown, "csv": _csv, "latex": _latex}
    if format not in writers:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}.")
    return writers[format](content).encode("utf-8", errors="replace")


def _page_file(name: str) -> str:
    return resources.files("esupcon.report").joinpath("page", name).read_text(encoding="utf-8")


def _template(name: str, **options: Any) -> Any:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - slow to import

    options |= {"undefined": StrictUndefined, "keep_trailing_newline": True}
    environment = Environment(trim_blocks=True, lstrip_blocks=True, **options)
    for function in (
        *(formats.value_text, formats.n_text, formats.gain_text, formats.gain_tone, formats.gain_details),
        *(formats.paper_text, formats.columns_text, formats.method_title, formats.dataset_title),
    ):
        environment.filters[function.__name__] = function
    environment.globals.update(count=count, duration=duration, legend=formats.legend)
    return environment.from_string(_page_file(name))


def _escaping(escape: Callable[[object], str]) -> Callable[[object], object]:
    """Return a function that escapes every value that a template writes, except text marked as safe."""
    from markupsafe import Markup  # noqa: PLC0415 - part of jinja

    return lambda value: value if isinstance(value, Markup) else escape(value)


def _markdown(content: Content) -> str:
    text: str = _template("template.md", finalize=_escaping(formats.markdown_text)).render(content=content)
    return text


def _latex(content: Content) -> str:
    marks = {"block_start_string": "<%", "block_end_string": "%>", "comment_start_string": "<#"}
    marks |= {"variable_start_string": "<<", "variable_end_string": ">>", "comment_end_string": "#>"}
    text: str = _template("template.tex", finalize=_escaping(formats.latex_text), **marks).render(content=content)
    return text


def _csv(content: Content) -> str:
    """Write a line for each cell, with numbers of ten digits and names that are no formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for table in content.tables:
        for panel in table.panels:
            for method in table.methods:
                for column, cell in zip(table.columns, panel.cells[method], strict=True):
                    names = [table.name, table.profile, panel.measure.key, panel.measure.unit, column.dataset]
                    names += [column.setting, column.reduced or "", method, table.baseline]
                    summary, gain = cell.summary, cell.gain
                    numbers: list[float | None] = [summary.n if summary else 0, cell.n_planned]
                    numbers += [summary.mean, summary.deviation] if summary else [None, None]
                    numbers += [gain.mean, gain.deviation, gain.n] if gain else [None, None, 0]
                    numbers += [cell.p, int(cell.is_best), cell.paper, cell.paper_gain]
                    digits = ["" if one is None else f"{one:.10g}" for one in numbers]
                    writer.writerow([*(formats.csv_text(name) for name in names), *digits])
    return text.getvalue()


def _html(content: Content) -> str:
    plotly = _plotly()
    drawn = sections(content) if plotly is not None else []
    scripts = [*([plotly] if plotly else []), _page_file("page.js")]
    style = styles(content.methods)
    text: str = _template("template.html", autoescape=True).render(
        content=content,
        methods=[(method, style[method]["color"]) for method in content.methods],
        sections=drawn,
        has_plotly=plotly is not None,
        style=_page_file("style.css"),
        scripts=scripts,
        policy=_policy(scripts),
        data=json_block({section.key: _section_data(section) for section in drawn if section.options}),
    )
    return text


def _plotly() -> str | None:
    """Return plotly's script; None if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an optional dependency, and slow to import
    except ImportError:
        return None
    script: str = get_plotlyjs()
    return script


def _section_data(section: Section) -> dict[str, Any]:
    options = [{**vars(option), "cards": [vars(card) for card in option.cards]} for option in section.options]
    return {"hint": section.hint, "options": options}


def json_block(value: Any) -> str:
    """Return JSON that can stand inside a script element: ASCII, without characters that markup knows."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in digests)
    # Plotly writes styles of its own, and makes images of figures to be saved.
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
