"""`esupcon methods`."""

from __future__ import annotations

from esupcon.cli import options as shared
from esupcon.cli.output import answer, answer_json, say, table
from esupcon.methods import METHODS


def methods(as_json: shared.Json = False) -> None:
    """List the training methods, each with its objective and what it trains."""
    if as_json:
        answer_json(
            [
                {"key": one.key, "title": one.title, "summary": one.summary, "stages": len(one.stages)}
                for one in METHODS.values()
            ]
        )
        return
    made = table(["key", "name", "what it does"], [])
    made.columns[1].justify = made.columns[2].justify = "left"
    made.columns[0].no_wrap = made.columns[1].no_wrap = True
    for one in METHODS.values():
        made.add_row(one.key, one.title, one.summary)
    answer(made)
    say("To use one: esupcon train DATA --method KEY --out DIR")
