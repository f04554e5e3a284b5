"""The tables of what was changed once test figures had been seen: each old figure beside the new one."""

from __future__ import annotations

from typing import Any

from study_tables import OURS, SETTINGS, image_count, share

from esupcon.experiments.store import StoredRun
from esupcon.report.content import Content
from esupcon.report.words import dataset_title, method_title


def temperatures(content: Content) -> str:
    """Ours at every temperature that the study has run, where the rest of the run is the same."""
    found: dict[str, dict[float, StoredRun]] = {}
    for run in content.collected.runs.values():
        if run.spec.train.method == OURS:
            found.setdefault(_key_without(run, temperature=1.0), {})[run.spec.train.temperature] = run
    several = [runs for runs in found.values() if len(runs) > 1]
    values = sorted({temperature for runs in several for temperature in runs})
    heads = " | ".join(f"temperature {value:g}" for value in values)
    rows = [f"| {method_title(OURS)} | epochs | {heads} |", f"|---|{'--:|' * (1 + len(values))}"]
    for runs in sorted(several, key=lambda runs: _place(next(iter(runs.values())))):
        one = next(iter(runs.values()))
        cells = [f"{100 * share(runs[value]):.1f}" if value in runs else "–" for value in values]
        rows.append(f"| {_setting(one)} | {one.spec.train.epochs} | {' | '.join(cells)} |")
    return "\n".join(rows)


def schedules(content: Content, longer: Content) -> str:
    """All methods where a column of the study was run with the recipe at other lengths, too, there or beside it."""
    planned = {
        _key_without(run, epochs=1): (i, table.name)
        for table in content.tables
        if table.name in SETTINGS
        for i in range(len(table.columns))
        for method in table.methods
        for run in table.runs(i, method, content.collected.runs)
    }
    columns: dict[tuple[int, str], dict[int, dict[str, StoredRun]]] = {}
    for run in (*content.collected.runs.values(), *longer.collected.runs.values()):
        column = planned.get(_key_without(run, epochs=1))
        if column is not None and run.spec.train.seed == 0:
            lengths = columns.setdefault(column, {})
            lengths.setdefault(run.spec.train.epochs, {})[run.spec.train.method] = run
    heads = " | ".join(method_title(method) for method in content.methods)
    rows = [f"| | epochs | {heads} |", f"|---|{'--:|' * (1 + len(content.methods))}"]
    for column in sorted(columns, key=list(planned.values()).index):
        lengths = columns[column]
        for epochs in sorted(lengths) if len(lengths) > 1 else ():
            runs = lengths[epochs]
            cells = [f"{100 * share(runs[name]):.1f}" if name in runs else "–" for name in content.methods]
            rows.append(f"| {_setting(next(iter(runs.values())))} | {epochs} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _key_without(run: StoredRun, **fixed: Any) -> str:
    """Equal for two runs that differ in these fields of their training alone."""
    return run.spec.model_copy(update={"train": run.spec.train.model_copy(update=fixed)}).key


def _place(run: StoredRun) -> tuple[float, float, int]:
    spec = run.spec
    return spec.noise_rate or 0.0, spec.imbalance_rate or 0.0, spec.train.epochs


def _setting(run: StoredRun) -> str:
    spec = run.spec
    name = (
        f"NR={spec.noise_rate:g}" if spec.noise_rate else f"IR={spec.imbalance_rate:g}" if spec.imbalance_rate else ""
    )
    return f"{dataset_title(spec.dataset)}, {name or f'N={image_count(run)}'}"
