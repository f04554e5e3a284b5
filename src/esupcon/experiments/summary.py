"""Means so far: what the runs of a grid say, by column and method."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from esupcon.experiments.spec import Row


@dataclass
class Line:
    """One column of a table: the accuracies (shares) of each method, by seed."""

    table: str
    dataset: str
    setting: str
    accuracies: dict[str, dict[int, float]] = field(default_factory=dict)
    n_planned: int = 0

    @property
    def name(self) -> str:
        return f"{self.dataset} {self.setting}"


def summarise(rows: Iterable[Row], accuracies: dict[str, float | None]) -> list[Line]:
    """Lines in the order of the rows; `accuracies` by key, of the runs that are done."""
    lines: dict[tuple[str, str, str], Line] = {}
    for row in rows:
        line = lines.setdefault((row.table, row.dataset, row.setting), Line(row.table, row.dataset, row.setting))
        line.n_planned += 1
        accuracy = accuracies.get(row.key)
        if accuracy is not None:
            line.accuracies.setdefault(row.method, {})[row.seed] = accuracy
    return list(lines.values())


def spread(values: Sequence[float]) -> str:
    """Shares as `74.1 ± 0.4 (n=3)` per cent; one value has no deviation, and says so by not showing one."""
    if not values:
        return "–"
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} (n=1)" if len(values) == 1 else f"{mean} ± {100 * statistics.stdev(values):.1f} (n={len(values)})"


def paired_gains(line: Line, method: str, baseline: str) -> list[float]:
    """The method's accuracy less the baseline's, seed by seed."""
    own, base = line.accuracies.get(method, {}), line.accuracies.get(baseline, {})
    return [own[seed] - base[seed] for seed in own if seed in base]
