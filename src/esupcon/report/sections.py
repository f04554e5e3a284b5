"""The shape of the drawn part of a report, and the few things all figures share."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from esupcon.report.words import printable, shortened

Figure = dict[str, Any]

# Middle tones that stand out on white and on near-black; no two methods differ by colour alone.
_COLOURS = {
    "ce": "#7b8594",
    "supcon_ce": "#dd8438",
    "supcon_ce_n": "#b99a1e",
    "supcon_tt": "#2f9c77",
    "spce": "#9a6bc4",
    "spce_m": "#d0608a",
    "esupcon": "#2f7fd6",
}
_OTHER_COLOURS = ("#4aa3bf", "#8d7b5f", "#c65b4a", "#6f8f3a", "#5f6fbf")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "hexagon", "bowtie")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
# Colours of the page by name: from its surface to a strong blue, in light and in dark.
SEQUENTIAL = [[0.0, "scale0"], [0.25, "scale1"], [0.5, "scale2"], [0.75, "scale3"], [1.0, "scale4"]]


@dataclass(frozen=True)
class Card:
    """One figure with its title; `method` where it is of one method alone, and is hidden with it."""

    title: str
    figure: Figure
    method: str | None = None
    wide: bool = False


@dataclass(frozen=True)
class Option:
    """What one choice of the select box shows."""

    label: str
    cards: Sequence[Card]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """`hint` says what to look at; without options, `missing` says why there is nothing."""

    key: str
    title: str
    hint: str
    options: Sequence[Option] = field(default_factory=tuple)
    missing: str = ""


def plain(text: object, most: int = 60) -> str:
    """Text for a figure: tags are a markup of its labels, so that `<` and `&` are written as entities."""
    return html.escape(shortened(printable(text), most), quote=False)


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": plain(title)}, **more}


def ticks(names: Sequence[str], most: int = 16) -> dict[str, Any]:
    """Names along an axis by position, so that equal names stay apart and numbers are not read as such."""
    return {
        "type": "linear",
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": [plain(name, most) for name in names],
        "range": [-0.5, len(names) - 0.5],
        "zeroline": False,
    }


@dataclass(frozen=True)
class Style:
    colour: str
    symbol: str
    dash: str


def styles(methods: Sequence[str]) -> Mapping[str, Style]:
    others = [method for method in methods if method not in _COLOURS]
    colours = {**_COLOURS, **{one: _OTHER_COLOURS[i % len(_OTHER_COLOURS)] for i, one in enumerate(others)}}
    return {
        method: Style(colours[method], _SYMBOLS[i % len(_SYMBOLS)], _DASHES[i % len(_DASHES)])
        for i, method in enumerate(methods)
    }


def rounded(values: Any, digits: int = 4) -> list[Any]:
    """Plain numbers; what is not finite becomes a gap."""
    return [None if v is None or not math.isfinite(v) else round(float(v), digits) for v in values]
