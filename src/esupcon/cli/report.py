"""`esupcon report`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from esupcon.cli import exit_codes
from esupcon.cli.output import complain, say


def report(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="Folder that esupcon reproduce filled.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where it goes: .html, .md, .csv or .tex. Left out, all but HTML go to standard output.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="html, markdown, csv or latex.", show_default="by the end of --out, else html"),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="NAME", help="Only this table; may be given several times.", show_default="all"
        ),
    ] = None,
) -> None:
    """Write what a store of runs says: tables, figures, findings, on one page that opens offline.

    Nothing is trained. Runs that cannot be read are left out, and named in the report and here.
    """
    from esupcon.files import write_bytes  # noqa: PLC0415 - slow to import, as is the next
    from esupcon.report.build import FORMATS, encoded, format_of, render  # noqa: PLC0415
    from esupcon.report.content import read_content  # noqa: PLC0415

    chosen = next((known for known in FORMATS if known == format), None)
    if format is not None and chosen is None:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}; got {format!r}.")
    wanted = chosen or ("html" if out is None else format_of(out))
    if out is None and wanted == "html":
        raise ValueError("a page needs a file: pass --out report.html, or --format markdown for standard output.")
    content = read_content(store, tables or (), shlex.join(["esupcon", *sys.argv[1:]]))
    for line in content.collected.complaints:
        complain(line)
    text = encoded(render(content, wanted))
    if out is None:
        sys.stdout.write(text.decode())
    else:
        write_bytes(out, text)
        say(f"{content.completeness} The report is in {out}.")
    if content.collected.complaints:
        raise typer.Exit(exit_codes.PARTIAL)
