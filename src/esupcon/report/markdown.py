"""The tables of a report as Markdown, readable as it stands and where it is rendered."""

from __future__ import annotations

import re
from collections.abc import Iterable

from esupcon.report.aggregate import TableResult
from esupcon.report.cells import BEST, OPEN, Line, Sheet, Words, sheet
from esupcon.report.content import Content
from esupcon.report.words import counted, duration, printable

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!$])")


def as_markdown(content: Content) -> str:
    parts = ["# esupcon report", plain(content.summary), plain(content.completeness)]
    if content.collected.complaints:
        parts.append(_listed("Left out of this report:", content.collected.complaints))
    for table in content.tables:
        parts += _table(table)
    if content.findings:
        parts.append("## What the doctor said")
        said = [
            f"**{plain(group.severity)}, {plain(group.code)}**, in {counted(group.n_runs, 'run')}. "
            f"{plain(group.example)} {plain(group.remedy)}"
            for group in content.findings
        ]
        parts.append("\n".join(f"- {line}" for line in said))
    if content.unfinished:
        parts.append("## Unfinished runs")
        parts.append(_listed("", [f"{name}: {why}" for name, why in content.unfinished]))
    parts.append("## How it was made")
    parts.append(_listed("", _made(content)))
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: object) -> str:
    """Text that stays text: markup, tags and the bars of a table are escaped."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", escaped)


def _listed(title: str, lines: Iterable[str]) -> str:
    entries = "\n".join(f"- {plain(line)}" for line in lines)
    return f"{title}\n\n{entries}" if title else entries


def _table(table: TableResult) -> list[str]:
    paper = f"; in the paper: {table.paper}" if table.paper else ""
    done = f"{table.n_done:,} of {counted(table.n_planned, 'run')} finished."
    where = f"Table {table.name}, profile {table.profile}{paper}. {done}"
    parts = [f"## {plain(table.title)}", plain(where)]
    sheets = [sheet(table, panel) for panel in table.panels if not panel.is_empty]
    if not sheets:
        parts.append("None of its runs is finished yet.")
    for one in sheets:
        if len(sheets) > 1:
            parts.append(f"### {plain(one.title)}, {plain(one.unit)}")
        parts += [_grid(one), plain(" ".join(one.legend))]
    if table.notes:
        parts.append(_listed("", table.notes))
    return parts


def _grid(one: Sheet) -> str:
    datasets = [title for title, span in one.groups for _ in range(span)]
    heads = [
        f"{plain(dataset)}<br>{plain(head.setting)}" + (f"<br>{plain(head.reduced)}" if head.reduced else "")
        for dataset, head in zip(datasets, one.heads, strict=True)
    ]
    rows = [["Method", *heads, one.average_title], [":--", *("--:" for _ in heads), "--:"]]
    rows += [_row(line) for line in one.lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(line: Line) -> list[str]:
    average = plain(line.average.value) if not line.average.is_open else "–" if line.is_baseline else OPEN
    extra = [plain(line.average.n)] if line.average.n else []
    extra += [f"paper {plain(line.average.paper)}"] if line.average.paper else []
    return [plain(line.title), *(_cell(cell) for cell in line.cells), "<br>".join([average, *extra])]


def _cell(cell: Words) -> str:
    if cell.is_open:
        value = OPEN
    else:
        value = f"**{plain(cell.value)}** {cell.n} {BEST}" if cell.is_best else f"{plain(cell.value)} {cell.n}"
    parts = [value]
    if cell.gain is not None:
        parts.append(f"{cell.gain.arrow} {plain(cell.gain.text)}{plain(cell.gain.star)}".strip())
    if cell.paper:
        parts.append(f"paper {plain(cell.paper)}")
    return "<br>".join(parts)


def _made(content: Content) -> list[str]:
    lines = [f"this report: {content.command}"] if content.command else []
    lines += [f"{table.name}, {table.profile}: {one}" for table in content.tables for one in table.commands]
    lines += [f"store: {content.collected.root}", f"time, all runs together: {duration(content.provenance.seconds)}"]
    return [*lines, *(f"{name}: {value}" for name, value in content.provenance.facts)]
