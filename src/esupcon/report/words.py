"""How numbers and names are written in every format of the report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from esupcon.methods import METHODS

_DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "Tiny ImageNet",
    "caltech256": "Caltech-256",
    "digits": "Digits",
}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def method_title(key: str) -> str:
    return METHODS[key].title if key in METHODS else printable(key)


def dataset_title(name: str) -> str:
    return _DATASETS.get(name) or printable(name)


def method_order(keys: Sequence[str]) -> list[str]:
    """Ours in the order of the paper's tables, then the others as they came."""
    given = list(dict.fromkeys(keys))
    return [*(key for key in METHODS if key in given), *(key for key in given if key not in METHODS)]


def printable(value: object) -> str:
    """One line without control characters, lone surrogates or marks that turn the direction of writing."""
    return "".join(c if c.isprintable() else _REPLACEMENT for c in " ".join(str(value).split()))


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def number(value: float, digits: int) -> str:
    """Fixed digits, thousands apart, and a real minus sign; a zero has no sign."""
    text = f"{abs(value):,.{digits}f}"
    return f"−{text}" if value < 0 and float(text.replace(",", "")) != 0 else text


def signed(value: float, digits: int) -> str:
    """+1.2, −0.3, and ±0.0 for whatever rounds to nothing."""
    text = f"{abs(value):,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        return f"±{text}"
    return f"{'+' if value > 0 else '−'}{text}"


def direction(value: float, digits: int) -> int:
    """1, -1, or 0 for whatever rounds to nothing at these digits."""
    return 0 if round(abs(value), digits) == 0 else (1 if value > 0 else -1)


def as_printed(value: float) -> str:
    """A figure of the paper with the digits it was printed with."""
    return f"{value:.6g}"


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def command_line(command: object) -> str:
    """A command as it would be typed: given as such, or as its words."""
    words = command if isinstance(command, list | tuple) else None
    return printable(command if words is None else shlex.join(str(word) for word in words))


def counted(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(words: Sequence[str], most: int = 8) -> str:
    """a, b and c; of many the first few and how many more."""
    shown = list(words[:most])
    if len(words) > most:
        return f"{', '.join(shown)} and {len(words) - most:,} more"
    return shown[0] if len(shown) == 1 else " and ".join([", ".join(shown[:-1]), shown[-1]]) if shown else ""
