"""The driver of a grid: gives out what is not stored, hears what became of it, and goes on until nothing is left."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from esupcon.experiments.executor import Event, Executor, Task
from esupcon.experiments.spec import Row
from esupcon.experiments.store import Store

_POLL_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 2.0
_ATTEMPTS = 2


@dataclass
class Standing:
    """Where a grid stands. Every key of it is in exactly one of the collections."""

    rows: dict[str, Row]
    pending: deque[str] = field(default_factory=deque)
    running: dict[str, float] = field(default_factory=dict)  # since when
    elsewhere: dict[str, float] = field(default_factory=dict)  # when to look again
    stored: list[str] = field(default_factory=list)  # were there before
    finished: list[str] = field(default_factory=list)  # by this command, or by another while this one ran
    failed: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    shared_stages: dict[str, str] = field(default_factory=dict)  # of the runs that begin as others do

    @property
    def n_done(self) -> int:
        return len(self.stored) + len(self.finished)

    @property
    def done_keys(self) -> list[str]:
        return [*self.stored, *self.finished]

    @property
    def is_complete(self) -> bool:
        return self.n_done == len(self.rows)


def run_grid(
    rows: Sequence[Row],
    store: Store,
    executor: Executor,
    make_task: Callable[[Row], Task],
    *,
    unavailable: dict[str, str] | None = None,
    share_stages: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
    watch: Callable[[Standing], None] = lambda standing: None,
    say: Callable[[str], None] = lambda line: None,
) -> Standing:
    """Computes every row that is not stored; a run that fails is tried once more, then listed while the others go on.
    A full disk ends the grid with an OSError: no other run would find room either.

    `unavailable` names keys that cannot be computed here, with the reason. With `share_stages` runs that begin with one
    first stage train it once, where the executor's processes see the store. `watch` is shown the standing whenever it
    may have changed, several times a second.
    """
    standing = _take_stock(rows, store, unavailable or {}, say)
    if executor.sees_store and share_stages:
        standing.shared_stages = _shared_stages(standing, store)
    attempts: dict[str, int] = {}
    stopping = False
    try:
        while standing.running or (not stopping and (standing.pending or standing.elsewhere)):
            if not stopping and should_stop():
                stopping = True
                executor.stop()
            if not stopping:
                _look_elsewhere(standing, store)
                _give_out(standing, store, executor, make_task)
            watch(standing)
            for event in executor.events(_POLL_SECONDS):
                _take_in(event, standing, store, attempts, stopping, say)
        watch(standing)
    finally:
        executor.close()
    return standing


def _take_stock(rows: Iterable[Row], store: Store, unavailable: dict[str, str], say: Callable[[str], None]) -> Standing:
    standing = Standing({row.key: row for row in rows})
    for key in standing.rows:
        if store.is_done(key):
            try:
                store.read(key)
            except ValueError as error:
                say(f"{error} It was put aside as {store.set_aside(key)} and is computed again.")
            else:
                standing.stored.append(key)
                continue
        if key in unavailable:
            standing.failed[key] = unavailable[key]
            store.note_failure(key, unavailable[key])
        else:
            standing.pending.append(key)
    return standing


def _shared_stages(standing: Standing, store: Store) -> dict[str, str]:
    """First stages that two open runs have in common, or that one of them finds kept, by the key of the run."""
    stages = {key: stage for key in standing.pending if (stage := standing.rows[key].spec.first_stage) is not None}
    n_runs = Counter(stages.values())
    return {key: stage for key, stage in stages.items() if n_runs[stage] > 1 or store.stage_file(stage).exists()}


def _give_out(standing: Standing, store: Store, executor: Executor, make_task: Callable[[Row], Task]) -> None:
    while len(standing.running) < executor.slots and (key := _next(standing, store)) is not None:
        standing.pending.remove(key)
        standing.running[key] = time.monotonic()
        executor.submit(replace(make_task(standing.rows[key]), shared_stage=standing.shared_stages.get(key)))


def _next(standing: Standing, store: Store) -> str | None:
    """The first run that need not wait. One whose first stage another trains, or has to train anyway, is done no later
    for waiting, and cheaper.
    """
    owed = [key for key in standing.pending if not standing.rows[key].spec.takes_first_stage]
    stages = {stage for key in (*standing.running, *owed) if (stage := standing.shared_stages.get(key)) is not None}
    awaited = {stage for stage in stages if not store.stage_file(stage).exists()}
    return next(
        (key for key in standing.pending if key in owed or standing.shared_stages.get(key) not in awaited), None
    )


def _drop_stage(standing: Standing, store: Store, key: str) -> None:
    """Removes a kept first stage once no open run shares it."""
    stage = standing.shared_stages.pop(key, None)
    if stage is not None and stage not in standing.shared_stages.values():
        store.stage_file(stage).unlink(missing_ok=True)


def _look_elsewhere(standing: Standing, store: Store) -> None:
    """A run that another command had in hand may be done by now, or given up."""
    now = time.monotonic()
    for key, when in list(standing.elsewhere.items()):
        if store.is_done(key):
            del standing.elsewhere[key]
            standing.finished.append(key)
        elif now >= when:
            if store.is_running(key):
                standing.elsewhere[key] = now + _LOOK_AGAIN_SECONDS
            else:
                del standing.elsewhere[key]
                standing.pending.append(key)


def _take_in(
    event: Event,
    standing: Standing,
    store: Store,
    attempts: dict[str, int],
    stopping: bool,
    say: Callable[[str], None],
) -> None:
    key = event.key
    if event.kind == "started":
        standing.running[key] = time.monotonic()
        return
    standing.running.pop(key, None)
    match event.kind:
        case "finished":
            standing.finished.append(key)
            _drop_stage(standing, store, key)
        case "elsewhere":
            standing.elsewhere[key] = time.monotonic() + _LOOK_AGAIN_SECONDS
        case "stopped":
            standing.stopped.append(key)
        case "failed" if event.disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(store.root))
        case "failed":
            attempts[key] = attempts.get(key, 0) + 1
            store.note_failure(key, event.error)
            if event.certain or attempts[key] >= _ATTEMPTS or stopping:
                standing.failed[key] = event.error
            else:
                say(f"{name_of(standing.rows[key])} failed and is tried once more: {event.error}")
                standing.pending.appendleft(key)


def name_of(row: Row) -> str:
    return f"{row.method} on {row.dataset}, {row.setting}, seed {row.seed}"
