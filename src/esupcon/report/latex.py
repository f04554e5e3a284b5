"""The tables of a report as a LaTeX document that compiles as it stands, with booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from esupcon.report.aggregate import TableResult
from esupcon.report.cells import BEST, OPEN, Line, Sheet, Words, sheet
from esupcon.report.content import Content
from esupcon.report.words import counted, printable

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"''",
    "'": r"'{}",
    "`": r"{}`{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "–": r"\textendash{}",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "’": "'",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "●": r"$\bullet$",
    "τ": r"$\tau$",
}
_WAITING = 8  # tables that LaTeX may hold back at once; its own limit is not far above
_LACKING = "ÐÞðþ÷"
_PREAMBLE = r"""\documentclass[a4paper]{article}
\usepackage[utf8]{inputenc}
\usepackage[landscape,margin=15mm]{geometry}
\usepackage{amssymb,booktabs,graphicx,xcolor}
\definecolor{better}{HTML}{1563B8}
\definecolor{worse}{HTML}{B3261E}
\newcommand{\better}[1]{{\footnotesize\color{better}#1}}
\newcommand{\worse}[1]{{\footnotesize\color{worse}#1}}
\newcommand{\even}[1]{{\footnotesize #1}}
\newcommand{\paper}[1]{{\scriptsize\color{gray}paper #1}}
% A table wider than the page is made smaller, any other stays as it is.
\newsavebox{\sheet}
\newcommand{\fitted}{\ifdim\wd\sheet>\textwidth\resizebox{\textwidth}{!}{\usebox{\sheet}}\else\usebox{\sheet}\fi}
"""


def as_latex(content: Content) -> str:
    parts = [_PREAMBLE, r"\begin{document}"]
    sheets = [(table, sheet(table, panel)) for table in content.tables for panel in table.panels if not panel.is_empty]
    ends = [content.summary, content.completeness, *content.collected.complaints]
    if content.command:
        ends.append(f"Made with: {content.command}")
    parts.append(r"\noindent " + plain(" ".join(ends)))
    for index, (table, one) in enumerate(sheets, start=1):
        parts.append(_float(table, one))
        if index % _WAITING == 0:
            parts.append(r"\clearpage")
    parts.append(r"\end{document}")
    return "\n".join(parts) + "\n"


def plain(text: object) -> str:
    """Text that stays text; a character that the usual fonts lack is given by its number."""
    return "".join(_character(c) for c in printable(text)).replace("--", "-{}-").replace("--", "-{}-")


def _character(c: str) -> str:
    if c in _SPECIAL:
        return _SPECIAL[c]
    if c.isascii() or ("\u00c0" <= c <= "\u00ff" and c not in _LACKING):
        return c
    return f"[U+{ord(c):04X}]"


def _float(table: TableResult, one: Sheet) -> str:
    columns = len(one.heads)
    caption = f"{table.title}. {' '.join([*one.legend, *table.notes])}"
    paper = f"In the paper: {table.paper}. " if table.paper else ""
    where = f" {paper}Profile {table.profile}, {table.n_done:,} of {counted(table.n_planned, 'run')} finished."
    lines = [
        r"\begin{table}[!htbp]",
        r"\centering",
        rf"\caption{{{plain(caption + where)}}}",
        r"\medskip",
        r"\begin{lrbox}{\sheet}%",
        rf"\begin{{tabular}}{{l{'r' * columns}r}}",
        r"\toprule",
        *_head(one),
        r"\midrule",
        *[_line(line) for line in one.lines],
        r"\bottomrule",
        r"\end{tabular}%",
        r"\end{lrbox}\fitted",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _head(one: Sheet) -> list[str]:
    groups, rules, at = [], [], 2
    for title, span in one.groups:
        groups.append(rf"\multicolumn{{{span}}}{{c}}{{{plain(title)}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + span - 1}}}")
        at += span
    heads = [plain(head.setting) for head in one.heads]
    rows = [
        rf" & {' & '.join(groups)} & \\",
        "".join(rules),
        rf"Method & {' & '.join(heads)} & {plain(one.average_title)} \\",
    ]
    if any(head.reduced for head in one.heads):
        reduced = [rf"{{\scriptsize {plain(head.reduced)}}}" for head in one.heads]
        rows.append(rf" & {' & '.join(reduced)} & \\")
    return rows


def _line(line: Line) -> str:
    values = [_value(cell) for cell in line.cells]
    average = _gain(line.average) or ("--" if line.is_baseline else OPEN)
    # A bracket at the start of a row would be taken for an argument of the row before.
    rows = [_row([f"{{}}{plain(line.title)}", *values, f"{average} {plain(line.average.n)}".strip()])]
    gains = [_gain(cell) for cell in line.cells]
    if any(gains):
        rows.append(_row(["", *gains, ""]))
    papers = [rf"\paper{{{plain(cell.paper)}}}" if cell.paper else "" for cell in [*line.cells, line.average]]
    if any(papers):
        rows.append(_row(["", *papers]))
    return "\n".join(rows) + r"[2pt]"


def _row(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _value(cell: Words) -> str:
    if cell.is_open:
        return rf"\emph{{{OPEN}}}"
    n = rf"{{\scriptsize {plain(cell.n)}}}"
    return rf"\textbf{{{plain(cell.value)}}} {n} {plain(BEST)}" if cell.is_best else f"{plain(cell.value)} {n}"


def _gain(cell: Words) -> str:
    if cell.gain is None:
        return ""
    colour = {1: "better", -1: "worse", 0: "even"}[cell.gain.tone]
    return rf"\{colour}{{{plain(cell.gain.arrow)} {plain(cell.gain.text)}{plain(cell.gain.star)}}}"
