"""The tables of docs/results.md and of the README, from the stored runs of a study."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

from esupcon.experiments.store import StoredRun
from esupcon.report.content import Content
from esupcon.report.kept_calibration import calibration
from esupcon.report.words import dataset_title, method_title

BASELINE, OURS = "ce", "esupcon"
SETTINGS = {"low_sample": "Few samples", "imbalanced": "Imbalanced", "noisy": "Wrong labels"}


@dataclass(frozen=True)
class Difference:
    """Ours less CE in points, with a 95 % interval.

    Of two seeds or more: Student's interval of the differences seed by seed. Of one seed: that of the two shares as
    the test images give them, which knows nothing of other seeds.
    """

    mean: float
    half_width: float
    n: int

    def __str__(self) -> str:
        return f"{_signed(self.mean)} ± {self.half_width:.1f}"


def difference(ours: Sequence[StoredRun], base: Sequence[StoredRun]) -> Difference | None:
    by_seed = {run.spec.train.seed: run for run in base}
    pairs = [(run, by_seed[run.spec.train.seed]) for run in ours if run.spec.train.seed in by_seed]
    if not pairs:
        return None
    gains = [100 * (share(a) - share(b)) for a, b in pairs]
    if len(gains) == 1:
        variance = sum(share(run) * (1 - share(run)) / run.result["metrics"]["test"]["n"] for run in pairs[0])
        return Difference(gains[0], 100 * 1.96 * math.sqrt(variance), 1)
    spread = statistics.stdev(gains) / math.sqrt(len(gains))
    return Difference(statistics.fmean(gains), float(student.ppf(0.975, len(gains) - 1)) * spread, len(gains))


def share(run: StoredRun) -> float:
    assert run.accuracy is not None, f"{run.key} has no test accuracy"
    return run.accuracy


def headline(content: Content) -> str:
    """A line for every column of the three settings: CE, ours, the difference, and the paper's."""
    rows = [
        f"| | images | seeds | {method_title(BASELINE)} | {method_title(OURS)} | difference | in the paper |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for table in (table for table in content.tables if table.name in SETTINGS):
        for i, column in enumerate(table.columns):
            ours, base = (table.runs(i, method, content.collected.runs) for method in (OURS, BASELINE))
            found = difference(ours, base)
            name = f"{SETTINGS[table.name]}: {dataset_title(column.dataset)}, {column.setting}"
            if found is None:
                continue
            common = {run.spec.train.seed for run in ours} & {run.spec.train.seed for run in base}
            means = [_mean([run for run in runs if run.spec.train.seed in common]) for runs in (base, ours)]
            printed = table.panels[0].cells[OURS][i].paper_gain
            paper = "–" if printed is None else _signed(printed)
            rows.append(
                f"| {name} | {image_count(ours[0])} | {found.n} | {means[0]:.1f} | {means[1]:.1f} | {found} | {paper} |"
            )
    return "\n".join(rows)


def accuracies(content: Content, name: str) -> str:
    """All methods in all columns of one setting, with the average difference to CE."""
    table = next(table for table in content.tables if table.name == name)
    heads = [f"{dataset_title(column.dataset)}, {column.setting}" for column in table.columns]
    rows = [f"| method | {' | '.join(heads)} | mean difference to CE |", f"|---|{'--:|' * (len(heads) + 1)}"]
    for method in table.methods:
        cells, gains = [], []
        for i in range(len(heads)):
            runs = table.runs(i, method, content.collected.runs)
            base = table.runs(i, BASELINE, content.collected.runs)
            found = difference(runs, base) if method != BASELINE else None
            gains += [found.mean] if found else []
            cells.append(_cell(runs, found))
        whole = len(gains) == len(heads)
        average = (
            f"{_signed(statistics.fmean(gains))}" + ("" if whole else f" ({len(gains)} of {len(heads)})")
            if gains
            else "–"
        )
        rows.append(f"| {method_title(method)} | {' | '.join(cells)} | {average} |")
    return "\n".join(rows)


def calibrations(content: Content) -> str:
    table = next(table for table in content.tables if table.name == "calibration")
    rows = ["| method | seeds | accuracy | T | ECE before | ECE after | NLL after |", "|---|--:|--:|--:|--:|--:|--:|"]
    for method in table.methods:
        runs = table.runs(0, method, content.collected.runs)
        reports = [report for run in runs if (report := calibration(run.folder)) is not None]
        if not reports:
            rows.append(f"| {method_title(method)} | 0 | open | open | open | open | open |")
            continue
        before, after = (
            100 * statistics.fmean(getattr(one, f"ece_{side}") for one in reports) for side in ("before", "after")
        )
        temperature = statistics.fmean(one.temperature for one in reports)
        nll = statistics.fmean(one.nll_after for one in reports)
        rows.append(
            f"| {method_title(method)} | {len(reports)} | {_mean(runs):.1f} | {temperature:.2f} | {before:.1f} | "
            f"{after:.1f} | {nll:.2f} |"
        )
    return "\n".join(rows)


def image_count(run: StoredRun) -> str:
    return f"{run.spec.n_train:,}" if run.spec.n_train else "all"


def _mean(runs: Sequence[StoredRun]) -> float:
    return 100 * statistics.fmean(share(run) for run in runs)


def _cell(runs: Sequence[StoredRun], found: Difference | None) -> str:
    if not runs:
        return "open"
    shares = [100 * share(run) for run in runs]
    text = f"{statistics.fmean(shares):.1f}"
    if len(shares) > 1:
        text += f" ± {statistics.stdev(shares):.1f}"
    return text if found is None else f"{text} ({_signed(found.mean)})"


def _signed(value: float) -> str:
    text = f"{value:+.1f}".replace("-", "−")
    return text if any(digit in text for digit in "123456789") else "0.0"
