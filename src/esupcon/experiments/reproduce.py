"""From tables and a store to finished runs: what `esupcon reproduce` does, without its words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from esupcon.experiments.executor import Executor, Task
from esupcon.experiments.grid import Standing, run_grid
from esupcon.experiments.plan import Plan
from esupcon.experiments.spec import Row
from esupcon.experiments.store import Store


@dataclass(frozen=True)
class Request:
    """What is to be computed, and where it is kept."""

    plans: tuple[Plan, ...]
    store: Store
    data_dir: str | None = None
    keep_models: bool = False
    command: Sequence[str] = ()

    @property
    def rows(self) -> list[Row]:
        return [row for plan in self.plans for row in plan.rows]


def reproduce(
    request: Request,
    executor: Executor,
    *,
    data_are_here: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
    watch: Callable[[Standing], None] = lambda standing: None,
    say: Callable[[str], None] = lambda line: None,
) -> Standing:
    """Runs what is not yet stored. With `data_are_here` data sets are looked at first: the runs of one that cannot be
    read are listed as failed at once, with one reason, instead of each finding out for itself."""
    store, command = request.store, shlex.join(request.command)
    store.create()
    for plan in request.plans:
        table = plan.table
        about = {"paper": table.paper, "measure": table.measure, "baseline": table.baseline, "command": command}
        store.note_plan(plan.rows, title=table.title, notes=[*table.notes, *plan.profile.notes], extra=about)
    rows = request.rows
    modules = {row.key: plan.modules for plan in request.plans for row in plan.rows}

    def make_task(row: Row) -> Task:
        return Task(row.spec, str(store.root), request.data_dir, request.keep_models, command, modules[row.key])

    unavailable = _unavailable(rows, store, request.data_dir, say) if data_are_here else {}
    return run_grid(
        rows,
        store,
        executor,
        make_task,
        unavailable=unavailable,
        share_stages=all(plan.table.measure != "cost" for plan in request.plans),  # what a run costs by itself
        should_stop=should_stop,
        watch=watch,
        say=say,
    )


def _unavailable(rows: Iterable[Row], store: Store, data_dir: str | None, say: Callable[[str], None]) -> dict[str, str]:
    """Keys whose data cannot be read, with the reason. Reading also decodes images into the cache, once for all."""
    from esupcon.experiments.execution import data_options  # noqa: PLC0415 - slow to import

    reasons: dict[str, str | None] = {}
    found: dict[str, str] = {}
    for row in rows:
        if store.is_done(row.key):
            continue
        source = f"{row.dataset} {sorted(row.spec.data.items())}"
        if source not in reasons:
            try:
                data_options(row.spec, data_dir, workers=None).load(row.spec.dataset, say)
                reasons[source] = None
            except (ValueError, OSError) as error:
                reasons[source] = " ".join(str(error).split())
        reason = reasons[source]
        if reason is not None:
            found[row.key] = reason
    return found
