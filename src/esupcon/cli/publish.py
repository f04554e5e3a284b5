"""`esupcon publish`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from esupcon.cli import exit_codes
from esupcon.cli.output import complain, say


def publish(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="Folder that esupcon reproduce filled.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the copy goes; one that is there grows.", show_default=False)
    ],
) -> None:
    """Copy a store of runs without what is large, to be committed beside a paper or a README.

    Specifications, results, histories and the figures of calibration; no weights, no predictions, no embeddings.
    """
    from esupcon.report.publishing import publish as copy  # noqa: PLC0415 - slow to import

    done = copy(store, out)
    for line in done.complaints:
        complain(line)
    say(f"{out} holds {done.n_added + done.n_there:,} runs of {store}, {done.n_added:,} of them new.")
    if done.complaints:
        raise typer.Exit(exit_codes.PARTIAL)
