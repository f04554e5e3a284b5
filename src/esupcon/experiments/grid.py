"""Run all missing runs of a plan, show how far a store is, and estimate what the rest costs."""

from __future__ import annotations

import errno
import os
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, get_args

from pydantic import BaseModel

from esupcon._console import Log, count, percent
from esupcon._io import one_line
from esupcon.experiments.executors import Event, Executor, Task
from esupcon.experiments.plan import Plan, Row
from esupcon.experiments.store import State, Store, StoredRun
from esupcon.methods import METHODS
from esupcon.spec import RunSpec

_POLL_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 2.0
_ATTEMPTS = 2


@dataclass
class GridState:
    """Where a grid stands. Every key is in exactly one of the collections."""

    rows: dict[str, Row]
    pending: deque[str] = field(default_factory=deque)
    running: dict[str, float] = field(default_factory=dict)  # since when
    running_elsewhere: dict[str, float] = field(default_factory=dict)  # when to look again
    stored: list[str] = field(default_factory=list)  # before this command
    finished: list[str] = field(default_factory=list)  # by this command, or by another one meanwhile
    failed: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

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
    plans: Sequence[Plan],
    store: Store,
    executor: Executor,
    *,
    data_dir: str | None = None,
    keep_models: bool = False,
    recompute: bool = False,
    command: str = "",
    should_stop: Callable[[], bool] = lambda: False,
    watch: Callable[[GridState], None] = lambda state: None,
    log: Log = lambda line: None,
) -> GridState:
    """Compute every planned run that is not stored.

    A run that fails is repeated once, then listed as failed while the others continue. Runs that begin with the same
    first stage train it once, if the executor is local and no table measures cost. A full disk ends the grid with an
    OSError. With `recompute`, stored results of another version of torch are computed again. `watch` receives the
    state several times per second. The rows of the returned state have the keys of the stored runs; a plan does not
    know them before its data are read.
    """
    try:
        store.create()
        earlier = [row for plan in store.plans()[0] for row in plan.rows]
        plans, unreadable = resolve(plans, data_dir)
        for plan in plans:
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            store.write_plan(plan.model_copy(update={"command": command, "asked": now}))
        driver = _Driver(plans, store, executor, log, data_dir=data_dir, keep_models=keep_models, command=command)
        driver.find_missing(unreadable, recompute)
        driver.report_changed_data(earlier)
        if executor.is_local:
            driver.load_data(data_dir)
            if all(plan.measure != "cost" for plan in plans):
                driver.share_stages()
        driver.run(should_stop, watch)
    finally:
        executor.close()
    return driver.state


def resolve(
    plans: Iterable[Plan], data_dir: str | None = None, *, download: bool = True
) -> tuple[list[Plan], dict[str, str]]:
    """Complete the specifications with what their keys need: the digest of the data, and the precision for `auto`.

    Return the plans, and for each run whose data cannot be read the reason, by key. Images are not decoded.
    """
    from esupcon.data import source_digest  # noqa: PLC0415 - slow to import
    from esupcon.training.devices import choose_precision  # noqa: PLC0415 - slow to import

    precision = ""
    digests: dict[str, str | Exception] = {}
    resolved, unreadable = [], {}
    for plan in plans:
        rows = []
        for row in plan.rows:
            spec, name = row.spec, _data_name(row)
            if name not in digests:
                options = spec.data.model_copy(update={"data_dir": data_dir, "download": download})
                try:
                    digests[name] = source_digest(spec.source, options)
                except (ValueError, OSError) as error:
                    digests[name] = error
            if spec.train.precision == "auto":
                precision = precision or choose_precision("auto")[0]
                spec = spec.model_copy(update={"train": spec.train.model_copy(update={"precision": precision})})
            digest = digests[name]
            if isinstance(digest, str):
                spec = spec.model_copy(update={"content": digest})
            else:
                unreadable[spec.key] = one_line(digest)
            rows.append(row.with_spec(spec))
        resolved.append(plan.model_copy(update={"rows": tuple(rows)}))
    return resolved, unreadable


def _data_name(row: Row) -> str:
    return f"{row.spec.source} {row.spec.data!r}"


class _Driver:
    """The state of a grid while it runs, and the steps that change it."""

    def __init__(self, plans: Sequence[Plan], store: Store, executor: Executor, log: Log, **options: Any) -> None:
        self.store, self.executor, self.log = store, executor, log
        self.state = GridState({row.key: row for plan in plans for row in plan.rows})
        self.tasks = {
            row.key: Task(spec=row.spec, store=str(store.root), plugins=plan.plugins, **options)
            for plan in plans
            for row in plan.rows
        }
        self.attempts: Counter[str] = Counter()

    def find_missing(self, unreadable: Mapping[str, str], recompute: bool) -> None:
        state, here = self.state, metadata.version("torch")
        versions: Counter[str] = Counter()
        for key in state.rows:
            if (run := self._read(key)) is not None:
                version = run.result.provenance.versions.get("torch", "unknown")
                if version == here or not recompute:
                    state.stored.append(key)
                    versions[version] += 1
                    continue
                self.store.set_aside(key)
            if key in unreadable:
                self._fail(key, unreadable[key])
            else:
                state.pending.append(key)
        if state.stored:
            verb = "is" if len(state.stored) == 1 else "are"
            self.log(f"{len(state.stored)} of {count(len(state.rows), 'run')} {verb} already stored.")
        for version in versions.keys() - {here}:
            self.log(
                f"{count(versions[version], 'stored run')} used torch {version}. This is torch {here}, which may give "
                "other last digits; --recompute repeats them."
            )

    def _read(self, key: str) -> StoredRun | None:
        if not self.store.is_done(key):
            return None
        try:
            return self.store.read(key)
        except ValueError as error:
            self.log(f"{error} It was moved to {self.store.set_aside(key)} and is computed again.")
            return None

    def report_changed_data(self, earlier: Iterable[Row]) -> None:
        """Tell that runs are computed again if the same runs are stored with other content of the data."""
        stored = {_key_without_content(row.spec) for row in earlier if row.spec.content and self.store.is_done(row.key)}
        rows = [self.state.rows[key] for key in self.state.pending]
        changed = Counter(row.dataset for row in rows if _key_without_content(row.spec) in stored)
        for dataset, n in changed.items():
            self.log(f"the content of {dataset} has changed since its runs were stored; {count(n, 'run')} to repeat.")

    def load_data(self, data_dir: str | None) -> None:
        """Read each data set once: downloads it, fills the cache for the workers, and finds unusable data at once."""
        from esupcon.data import load  # noqa: PLC0415 - slow to import

        problems: dict[str, str] = {}
        for key in list(self.state.pending):
            row = self.state.rows[key]
            name = _data_name(row)
            if name not in problems:
                try:
                    load(row.spec.source, row.spec.data.model_copy(update={"data_dir": data_dir}), log=self.log)
                    problems[name] = ""
                except (ValueError, OSError) as error:
                    problems[name] = one_line(error)
            if problems[name]:
                self.state.pending.remove(key)
                self._fail(key, problems[name])

    def share_stages(self) -> None:
        """Let runs share a first stage that two open runs need, or that is in the store."""
        rows = [self.state.rows[key] for key in self.state.pending]
        n_runs = Counter(row.spec.stage_key for row in rows)
        for row in rows:
            stage = row.spec.stage_key
            if stage is not None and (n_runs[stage] > 1 or self.store.has_stage(stage)):
                self.tasks[row.key] = self.tasks[row.key].model_copy(update={"shared_stage": stage})

    def run(self, should_stop: Callable[[], bool], watch: Callable[[GridState], None]) -> None:
        state, stopping = self.state, False
        while state.running or (not stopping and (state.pending or state.running_elsewhere)):
            if not stopping and should_stop():
                stopping = True
                self.executor.stop()
            if not stopping:
                self._submit()
            watch(state)
            for event in self.executor.events(_POLL_SECONDS):
                self._handle(event, stopping)
        watch(state)

    def _submit(self) -> None:
        state, now = self.state, time.monotonic()
        for key in [key for key, when in state.running_elsewhere.items() if when <= now]:
            del state.running_elsewhere[key]
            state.pending.append(key)
        while len(state.running) < self.executor.slots and (ready := self._next()) is not None:
            state.pending.remove(ready)
            state.running[ready] = now
            self.executor.submit(self.tasks[ready])

    def _next(self) -> str | None:
        """Return the first run that need not wait for another run to train its first stage."""
        state = self.state
        trainers = [key for key in state.pending if not state.rows[key].spec.reuses_first_stage]
        stages = {self.tasks[key].shared_stage for key in (*state.running, *trainers)} - {None}
        awaited = {stage for stage in stages if stage and not self.store.has_stage(stage)}
        ready = (key for key in state.pending if key in trainers or self.tasks[key].shared_stage not in awaited)
        return next(ready, None)

    def _handle(self, event: Event, stopping: bool) -> None:
        state, key = self.state, event.key
        if event.kind == "started":
            state.running[key] = time.monotonic()
            return
        state.running.pop(key, None)
        match event.kind:
            case "finished":
                try:
                    accuracy = percent(self.store.read(key).accuracy)
                except ValueError as error:  # of a worker with another version of esupcon, for example
                    self._fail(key, str(error))
                    return
                state.finished.append(key)
                self._release_stage(key)
                self.log(f"{state.n_done}/{len(state.rows)}  {state.rows[key].name}: {accuracy}")
            case "running_elsewhere":
                state.running_elsewhere[key] = time.monotonic() + _LOOK_AGAIN_SECONDS
            case "stopped" if stopping:
                state.stopped.append(key)
            case "stopped":  # only its worker was terminated, and has saved the run
                self.log(f"the worker of {state.rows[key].name} was terminated; another one continues the run.")
                state.pending.appendleft(key)
            case "failed" if event.disk_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.store.root))
            case "failed":
                self.attempts[key] += 1
                if event.permanent or self.attempts[key] >= _ATTEMPTS or stopping:
                    self._fail(key, event.error)
                else:
                    self.log(f"{state.rows[key].name} failed and is repeated once: {event.error}")
                    state.pending.appendleft(key)

    def _fail(self, key: str, reason: str) -> None:
        self.state.failed[key] = reason
        self.store.note_failure(key, reason)
        self._release_stage(key)

    def _release_stage(self, key: str) -> None:
        """Remove a shared first stage after the last run that needs it."""
        stage, state = self.tasks[key].shared_stage, self.state
        still_open = (*state.pending, *state.running, *state.running_elsewhere)
        if stage is not None and all(self.tasks[one].shared_stage != stage for one in still_open):
            self.store.remove_stage(stage)


def _key_without_content(spec: RunSpec) -> str:
    return spec.model_copy(update={"content": None}).key


# --- Status ----------------------------------------------------------------------------------------------------------


class TableStatus(BaseModel):
    """How far the runs of a table under a profile are."""

    table: str
    profile: str
    runs: dict[str, State] = {}
    errors: dict[str, str] = {}
    damaged: list[str] = []
    seconds_left: float | None = None  # one run at a time

    @property
    def n_runs(self) -> int:
        return len(self.runs)

    @property
    def counts(self) -> dict[State, int]:
        return {state: list(self.runs.values()).count(state) for state in get_args(State)}

    @property
    def n_left(self) -> int:
        return len(self.runs) - self.counts["done"]


def status(store: Store) -> tuple[list[TableStatus], list[str]]:
    """Return the status of every table that was planned in a store, and one line for each unreadable plan.

    Plans of the same table and profile are counted together.
    """
    store.require()
    tables: dict[tuple[str, str], TableStatus] = {}
    rows: dict[str, Row] = {}
    finished: dict[str, StoredRun] = {}
    plans, problems = store.plans()
    for plan in plans:
        table = tables.setdefault((plan.table, plan.profile), TableStatus(table=plan.table, profile=plan.profile))
        for row in plan.rows:
            if row.key in table.runs:
                continue
            state = table.runs[row.key] = store.state(row.key)
            rows[row.key] = row
            if state == "failed":
                table.errors[row.key] = store.failure(row.key) or ""
            elif state == "done":
                try:
                    finished[row.key] = store.read(row.key)
                except ValueError as error:
                    table.damaged.append(f"{error} The command that computed it computes it again.")
    for table in tables.values():
        remaining = [rows[key] for key, state in table.runs.items() if state != "done"]
        table.seconds_left = seconds_left(remaining, finished.values())
    return list(tables.values()), problems


# --- Cost ------------------------------------------------------------------------------------------------------------

# Training samples of the named sets.
_SIZES: Mapping[str, int] = {
    "digits": 1437,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "tiny_imagenet": 100_000,
    "caltech256": 256 * 60,
}
_FORWARD_SHARE = 1 / 3  # of a training step: what a frozen encoder costs


def shared_encoders(rows: Sequence[Row]) -> dict[str, Row]:
    """Return, for each run whose encoder another run of the grid trains, that other run."""
    trainers: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.spec.reuses_first_stage):  # those that must train it come first
        if row.spec.stage_key is not None:
            trainers.setdefault(row.spec.stage_key, row)
    return {
        row.key: trainer
        for row in rows
        if row.spec.reuses_first_stage and (trainer := trainers[row.spec.stage_key or ""]).key != row.key
    }


def seconds_left(rows: Sequence[Row], finished: Iterable[StoredRun]) -> float | None:
    """Return the seconds that runs take at the rates of finished runs with the same encoder; None if one is unknown."""
    rates: dict[str, list[float]] = {}
    for run in finished:
        if images := _images_seen(run.spec):
            rates.setdefault(run.spec.train.encoder, []).append(run.seconds / images)
    shared, total = shared_encoders(rows), 0.0
    for row in rows:
        images = _images_seen(row.spec, reuses_first_stage=row.key in shared)
        if images is None or row.spec.train.encoder not in rates:
            return None
        total += images * statistics.fmean(rates[row.spec.train.encoder])
    return total


def _images_seen(spec: RunSpec, *, reuses_first_stage: bool = False) -> float | None:
    """Return how many images a run trains on in all epochs, in units of full training steps; None if unknown."""
    n: float | None = spec.n_train
    if n is None and spec.source in _SIZES:
        n = _SIZES[spec.source] * (1.0 if spec.imbalance_rate is None else (1 + spec.imbalance_rate) / 2)
    if n is not None:
        n *= 1 - spec.validation_fraction
    train = spec.train
    if train.steps is not None:
        images = float(train.steps * min(train.batch_size, n or train.batch_size))
    elif n is not None:
        images = n * train.epochs
    else:
        return None
    if train.method not in METHODS:
        return images  # a custom method that this process does not know: most have one stage
    stages = METHODS[train.method].stages[reuses_first_stage:]
    return sum(images * stage.epochs * (1.0 if "encoder" in stage.trains else _FORWARD_SHARE) for stage in stages)
