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
COMMON = (100, "simclr")  # batch size and augmentation of the study
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
    gains = [100 * (_share(a) - _share(b)) for a, b in pairs]
    if len(gains) == 1:
        variance = sum(_share(run) * (1 - _share(run)) / run.result["metrics"]["test"]["n"] for run in pairs[0])
        return Difference(gains[0], 100 * 1.96 * math.sqrt(variance), 1)
    spread = statistics.stdev(gains) / math.sqrt(len(gains))
    return Difference(statistics.fmean(gains), float(student.ppf(0.975, len(gains) - 1)) * spread, len(gains))


def _share(run: StoredRun) -> float:
    assert run.accuracy is not None, f"{run.key} has no test accuracy"
    return run.accuracy


def headline(content: Content) -> str:
    """A line for every column of the three settings: CE, ours, the difference."""
    rows = [
        f"| | images | seeds | {method_title(BASELINE)} | {method_title(OURS)} | difference |",
        "|---|--:|--:|--:|--:|--:|",
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
            rows.append(f"| {name} | {_images(ours[0])} | {found.n} | {means[0]:.1f} | {means[1]:.1f} | {found} |")
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


def costs(content: Content) -> str:
    """Time of a training step of every method and batch size, relative to CE's."""
    table = next(table for table in content.tables if table.name == "complexity")
    batches = [column.grid["batch_size"] for column in table.columns]
    rows = [
        f"| method | {' | '.join(f'batch {size}' for size in batches)} |",
        f"|---|{'--:|' * len(batches)}",
    ]
    steps = table.panels[0]
    for method in table.methods:
        cells = []
        for mine, base in zip(steps.cells[method], steps.cells[BASELINE], strict=True):
            if mine.summary is None or base.summary is None:
                cells.append("open")
            else:
                cells.append(
                    f"{mine.summary.mean / base.summary.mean:.2f}"
                    if method != BASELINE
                    else f"{mine.summary.mean:.0f} ms"
                )
        rows.append(f"| {method_title(method)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def search(content: Content) -> str:
    """Every run of the search with the common batch and augmentation, the best of each method and length in bold."""
    runs = sorted(
        common(content),
        key=lambda run: (run.spec.train.epochs, _order(content, run), -_held_out(run), run.key),
    )
    best = {}
    for run in runs:
        best.setdefault((run.spec.train.epochs, run.spec.train.method), run.key)
    rows = [
        "| epochs | method | rate | temperature | prototypes: weight | rate | weight decay | held out |",
        f"|--:|---|{'--:|' * 6}",
    ]
    for run in runs:
        train = run.spec.train
        uses_head = train.method == OURS
        figure = f"{_held_out(run):.1f}"
        if best[train.epochs, train.method] == run.key:
            figure = f"**{figure}**"
        rows.append(
            f"| {train.epochs} | {method_title(train.method)} | {train.lr:g} | "
            f"{'–' if train.method == BASELINE else f'{train.temperature:g}'} | "
            f"{f'{train.prototype_weight:g} | {train.lr * train.prototype_lr:g}' if uses_head else '– | –'} | "
            f"{train.weight_decay:g} | {figure} |"
        )
    return "\n".join(rows)


def common(content: Content) -> list[StoredRun]:
    """Runs with the study's batch and augmentation, of which settings of a method's own can be compared."""
    return [run for run in content.collected.runs.values() if _surroundings(run) == COMMON]


def _surroundings(run: StoredRun) -> tuple[int, str]:
    """What is no method's own, and the same for all of them in the study."""
    return run.spec.train.batch_size, run.spec.train.augmentation


def surroundings(content: Content) -> str:
    """The best of CE and ours under each batch size and augmentation that was tried, at the shortest length."""
    epochs = min(run.spec.train.epochs for run in content.collected.runs.values())
    found: dict[tuple[int, str], dict[str, float]] = {}
    for run in content.collected.runs.values():
        if run.spec.train.epochs == epochs:
            best = found.setdefault(_surroundings(run), {})
            method = run.spec.train.method
            best[method] = max(best.get(method, 0.0), _held_out(run))
    rows = [f"| batch | augmentation | {method_title(BASELINE)} | {method_title(OURS)} |", "|--:|---|--:|--:|"]
    for place in sorted(found, key=lambda place: (place != COMMON, place)):
        best = found[place]
        rows.append(f"| {place[0]} | `{place[1]}` | {best[BASELINE]:.1f} | {best[OURS]:.1f} |")
    return "\n".join(rows)


def tries(content: Content) -> str:
    """How many settings each method has had, by length, and its best."""
    lengths = sorted({run.spec.train.epochs for run in content.collected.runs.values()})
    rows = [
        f"| method | {' | '.join(f'{n} epochs: tries | best held out' for n in lengths)} |",
        f"|---|{'--:|' * (2 * len(lengths))}",
    ]
    for method in content.methods:
        cells = []
        for n in lengths:
            found = [
                _held_out(r) for r in common(content) if r.spec.train.method == method and r.spec.train.epochs == n
            ]
            cells += [str(len(found)), f"{max(found):.1f}" if found else "–"]
        rows.append(f"| {method_title(method)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _order(content: Content, run: StoredRun) -> int:
    return content.methods.index(run.spec.train.method)


def _held_out(run: StoredRun) -> float:
    return 100 * float(run.result["metrics"]["held_out"]["accuracy"])


def _images(run: StoredRun) -> str:
    return f"{run.spec.n_train:,}" if run.spec.n_train else "all"


def _mean(runs: Sequence[StoredRun]) -> float:
    return 100 * statistics.fmean(_share(run) for run in runs)


def _cell(runs: Sequence[StoredRun], found: Difference | None) -> str:
    if not runs:
        return "open"
    shares = [100 * _share(run) for run in runs]
    text = f"{statistics.fmean(shares):.1f}"
    if len(shares) > 1:
        text += f" ± {statistics.stdev(shares):.1f}"
    return text if found is None else f"{text} ({_signed(found.mean)})"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
