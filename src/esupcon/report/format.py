"""Format numbers, names and table cells, and escape text for each medium.

Text that comes from files is escaped once, by the function of its medium: `printable` for terminals, `csv_text` and
`markdown_text` (all in `esupcon._console`); here `html_text` for labels of figures (the page itself is escaped by
jinja).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from esupcon._console import percent, printable
from esupcon.methods import METHODS

if TYPE_CHECKING:
    from esupcon.report.aggregate import Cell, Measure, Panel, ResultTable

_DATASETS = {
    **{"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "Tiny ImageNet"},
    **{"caltech256": "Caltech-256", "digits": "Digits"},
}

# --- Escaping --------------------------------------------------------------------------------------------------------


def html_text(value: object, most: int = 60) -> str:
    """Return a label of a figure. Plotly reads tags in labels, so `<` and `&` become entities."""
    text = printable(value)
    return html.escape(text if len(text) <= most else text[: most - 1].rstrip() + "…", quote=False)


# --- Names and numbers -----------------------------------------------------------------------------------------------


def method_title(key: str) -> str:
    """Return the name of a method as the paper writes it."""
    return METHODS[key].title if key in METHODS else printable(key)


def dataset_title(name: str) -> str:
    """Return the name of a data set as it is usually written."""
    return _DATASETS.get(name) or printable(name)


def method_order(keys: Iterable[str]) -> list[str]:
    """Sort methods as the paper's tables do. If there are others, such as contestants of a study, keep the order."""
    given = list(dict.fromkeys(keys))
    return sorted(given, key=list(METHODS).index) if METHODS.keys() >= set(given) else given


def listed(words: Sequence[str], most: int = 8) -> str:
    """Return `a, b, c`; of many words the first few and how many more there are."""
    more = [f"and {len(words) - most:,} more"] if len(words) > most else []
    return ", ".join([*words[:most], *more])


def number(value: float, digits: int) -> str:
    """Return fixed digits with a real minus sign; a zero has no sign."""
    return signed(value, digits).removeprefix("+").removeprefix("±")


def signed(value: float, digits: int) -> str:
    """Return `+1.2`, `−0.3`, or `±0.0` for a value that rounds to zero."""
    text = f"{abs(value):,.{digits}f}"
    sign = "±" if not text.strip("0.,") else "+" if value > 0 else "−"
    return sign + text


def range_text(bounds: Sequence[float | None]) -> str:
    """Return an interval of shares in per cent: `70.1 to 74.3`."""
    return " to ".join(percent(end).removesuffix(" %") for end in bounds)


# --- Cells of tables: filters of the templates -----------------------------------------------------------------------


def value_text(cell: Cell, measure: Measure) -> str:
    """Return mean and deviation: `74.1 ± 0.4`; `open` if runs are planned, a dash if not."""
    if cell.summary is None:
        return "open" if cell.n_planned else "–"
    deviation = cell.summary.deviation
    plus_minus = "" if deviation is None else f" ± {number(deviation, measure.digits)}"
    return number(cell.summary.mean, measure.digits) + plus_minus


def n_text(cell: Cell) -> str:
    """Return the number of seeds: `(n=3)`, or `(n=2 of 3)` if some are missing."""
    n = cell.summary.n if cell.summary else 0
    return f"(n={n} of {cell.n_planned})" if n < cell.n_planned else f"(n={n})"


def gain_text(cell: Cell, measure: Measure) -> str:
    """Return the gain over the baseline with its direction and its interval: `▲ +3.0 [+2.8, +3.2]`."""
    if cell.gain is None:
        return ""
    text = signed(cell.gain.mean, measure.digits)
    arrow = {"+": "▲ ", "−": "▼ "}.get(text[0], "")
    interval = f" [{', '.join(signed(end, measure.digits) for end in cell.interval)}]" if cell.interval else ""
    return arrow + text + (" %" if measure.relative else "") + interval


def gain_tone(cell: Cell, measure: Measure) -> str:
    """Return whether the gain is `better`, `worse` or `even`, as rounded."""
    moved = signed(cell.gain.mean, measure.digits)[0] if cell.gain else "±"
    return "even" if moved == "±" else "better" if (moved == "+") != measure.lower_is_better else "worse"


def paper_text(cell: Cell) -> str:
    """Return the published figure with the digits it was printed with, and its gain."""
    gain = "" if cell.paper_gain is None else signed(cell.paper_gain, 2)
    if cell.paper is None:
        return gain
    return f"{cell.paper:.6g} ({gain})" if gain else f"{cell.paper:.6g}"


def columns_text(average: Cell) -> str:
    """Return over how many columns an average is taken, if not over all."""
    n = average.gain.n if average.gain else average.n_planned
    return f"({n} of {average.n_planned} columns)" if n < average.n_planned else ""


def legend(table: ResultTable, panel: Panel) -> list[str]:
    """Explain every mark that occurs in a table."""
    measure = panel.measure
    cells = [cell for row in panel.cells.values() for cell in row]
    better = "lower is better" if measure.lower_is_better else "higher is better"
    difference = "in per cent of it" if measure.relative else "on the same seeds"
    has_paper = any(cell.paper is not None for cell in cells)
    entries = {
        f"{measure.title} in {measure.unit}, {better}: mean ± standard deviation over n seeds.": True,
        f"▲ ▼: difference to {method_title(table.plan.baseline)} {difference}.": any(cell.gain for cell in cells),
        "● bold: best of its column.": any(cell.is_best for cell in cells),
        "[…]: its 95 % interval by a paired t-test over n seeds, not corrected for the number of comparisons.": any(
            cell.interval for cell in cells
        ),
        "“paper”: the published figure, with its own network and schedule, and its gain.": has_paper,
        "Columns that give a number of samples are smaller than the paper's setting: there only the signs of the "
        "gains can be compared.": has_paper and any(column.reduced for column in table.columns),
        "“open”: planned, not finished.": any(cell.summary is None and cell.n_planned for cell in cells),
    }
    return [text for text, occurs in entries.items() if occurs]
