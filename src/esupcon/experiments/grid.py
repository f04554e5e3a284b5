"""Run all missing runs of a plan, show how far a store is, and estimate what the rest costs."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from statistics import fmean
from typing import Any, get_args

from pydantic import BaseModel

from esupcon._console import Log, count, percent, printable
from esupcon.data import DataOptions
from esupcon.experiments.executors import Event, LocalExecutor, Task
from esupcon.experiments.plan import Plan, Row
from esupcon.experiments.store import State, Store, StoredRun, read_contents
from esupcon.spec import RunSpec, TrainSpec

_POLL_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 2.0
_ATTEMPTS = 2


def run_grid(
    plans: Sequence[Plan],
    store: Store,
    executor: LocalExecutor,
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

    A run that fails is repeated once, then listed as failed while the others continue. A full disk ends the grid
    with an OSError. With `recompute`, stored results of another version of torch are computed again. `watch` receives
    the state several times per second. The rows of the returned state have the keys of the
    stored runs; a plan does not know them before its data are read.
    """
    try:
        store.create()
        earlier = [row for plan in store.plans()[0] for row in plan.rows]
        plans = resolve(plans, data_dir)
        for plan in plans:
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            store.write_plan(plan.model_copy(update={"command": command, "asked": now}))
        options = {"store": str(store.root), "data_dir": data_dir, "keep_models": keep_models, "command": command}
        state = GridState(plans, store, executor, log, options)
        state.find_missing(recompute)
        state.report_changed_data(earlier)
        state.load_data(data_dir)
        state.run(should_stop, watch)
    finally:
        executor.close()
    return state


def resolve(plans: Iterable[Plan], data_dir: str | None = None, *, download: bool = True) -> list[Plan]:
    """Complete the specifications with what their keys need: the digest of the data, the precision for `auto`, and the
    settings of the recipe, for which the data are loaded, if they do not name all settings.

    Data that cannot be read have no digest.
    """
    from esupcon.data import load, source_digest  # noqa: PLC0415 - slow to import
    from esupcon.recipes import photo_side  # noqa: PLC0415
    from esupcon.training.devices import choose_precision  # noqa: PLC0415
    from esupcon.training.pipeline import recommended  # noqa: PLC0415

    here = {"data_dir": data_dir, "download": download}
    precision = cache(lambda: choose_precision("auto")[0])

    @cache
    def digest(source: str, data: DataOptions) -> str | None:
        try:
            return source_digest(source, data.model_copy(update=here))
        except (ValueError, OSError):
            return None

    @cache
    def dataset(source: str, data: DataOptions, side: int) -> Any:
        return load(source, data.model_copy(update=here), log=lambda line: None, photo_side=side)

    def resolved(row: Row) -> Row:
        spec = row.spec.model_copy(update={"content": digest(row.spec.source, row.spec.data)})
        if spec.content is not None and spec.train.model_fields_set < TrainSpec.model_fields.keys():
            side = photo_side(spec.train.encoder, pretrained=spec.train.pretrained)
            spec = recommended(spec, dataset(spec.source, spec.data, side))
        if spec.train.precision == "auto":
            spec = spec.model_copy(update={"train": spec.train.model_copy(update={"precision": precision()})})
        return row.with_spec(spec)

    return [plan.model_copy(update={"rows": tuple(map(resolved, plan.rows))}) for plan in plans]


class GridState:
    """The progress of a grid. Every key is in exactly one of the collections."""

    def __init__(
        self, plans: Sequence[Plan], store: Store, executor: LocalExecutor, log: Log, options: dict[str, Any]
    ) -> None:
        self.plans, self.store, self.executor, self.log = plans, store, executor, log
        self.rows: dict[str, Row] = {}
        self.tasks: dict[str, Task] = {}
        for plan in plans:
            for row in plan.rows:
                self.rows[row.key] = row
                self.tasks[row.key] = Task(spec=row.spec, second=row.second, plugins=plan.plugins, **options)
        self.attempts = Counter[str]()
        self.pending = deque[str]()
        self.running = set[str]()
        self.running_elsewhere: dict[str, float] = {}  # when to look again
        self.stored: list[str] = []  # before this command
        self.finished: list[str] = []  # by this command, or by another one meanwhile
        self.failed: dict[str, str] = {}
        self.stopped: list[str] = []

    @property
    def n_done(self) -> int:
        return len(self.stored) + len(self.finished)

    @property
    def is_complete(self) -> bool:
        return self.n_done == len(self.rows)

    def find_missing(self, recompute: bool) -> None:
        """Divide the runs into stored and pending ones."""
        here, versions = metadata.version("torch"), Counter[str]()
        for key in self.rows:
            if (run := self._read(key)) is not None:
                version = run.result.provenance.versions.get("torch", "unknown")
                if version == here or not recompute:
                    self.stored.append(key)
                    versions[version] += 1
                    continue
                self.store.set_aside(key)
            self.pending.append(key)
        if n := len(self.stored):
            self.log(f"{n} of {count(len(self.rows), 'run')} {'is' if n == 1 else 'are'} already stored.")
        for version in versions.keys() - {here}:
            self.log(
                f"{count(versions[version], 'stored run')} used torch {version}. This is torch {here}, which may give "
                "other last digits; --recompute repeats them."
            )

    def _read(self, key: str) -> StoredRun | None:
        try:
            return self.store.read(key) if self.store.is_done(key) else None
        except ValueError as error:
            self.log(f"{error} It was moved to {self.store.set_aside(key)} and is computed again.")
            return None

    def report_changed_data(self, earlier: Iterable[Row]) -> None:
        """Print how many runs are computed again because the content of their data has changed."""
        stored = {_key_without_content(row) for row in earlier if row.spec.content and self.store.is_done(row.key)}
        pending = [self.rows[key] for key in self.pending]
        changed = Counter(row.dataset for row in pending if _key_without_content(row) in stored)
        for dataset, n in changed.items():
            self.log(f"the content of {dataset} has changed since its runs were stored; {count(n, 'run')} to repeat.")

    def load_data(self, data_dir: str | None) -> None:
        """Read each data set once, to download it, to fill the cache and to find what is unusable."""
        from esupcon.data import load  # noqa: PLC0415 - slow to import

        @cache
        def problem(source: str, data: DataOptions) -> str:
            try:
                load(source, data.model_copy(update={"data_dir": data_dir}), log=self.log)
            except (ValueError, OSError) as error:
                return printable(error)
            return ""

        for key in [*self.pending]:
            spec = self.rows[key].spec
            if found := problem(spec.source, spec.data):
                self.pending.remove(key)
                self._fail(key, found)

    def run(self, should_stop: Callable[[], bool], watch: Callable[[GridState], None]) -> None:
        """Compute what is pending, until it is done or a stop is asked for."""
        stopping = False
        while self.running or (not stopping and (self.pending or self.running_elsewhere)):
            if not stopping and should_stop():
                stopping = True
                self.executor.stop()
            if not stopping:
                self._submit()
            watch(self)
            for event in self.executor.events(_POLL_SECONDS):
                self._handle(event, stopping)
        watch(self)

    def _submit(self) -> None:
        for key in [key for key, when in self.running_elsewhere.items() if when <= time.monotonic()]:
            del self.running_elsewhere[key]
            self.pending.append(key)
        while self.pending and len(self.running) < self.executor.slots:
            key = self.pending.popleft()
            self.running.add(key)
            self.executor.submit(self.tasks[key])

    def _handle(self, event: Event, stopping: bool) -> None:
        key = event.key
        self.running.remove(key)
        match event.kind:
            case "finished":
                try:
                    accuracy = percent(self.store.read(key).accuracy)
                except ValueError as error:  # of a worker with another version of esupcon, for example
                    self._fail(key, str(error))
                    return
                self.finished.append(key)
                self.log(f"{self.n_done}/{len(self.rows)}  {self.rows[key].name}: {accuracy}")
            case "running_elsewhere":
                self.running_elsewhere[key] = time.monotonic() + _LOOK_AGAIN_SECONDS
            case "stopped" if stopping:
                self.stopped.append(key)
            case "stopped":  # only its worker was terminated, and has saved the run
                self.log(f"the worker of {self.rows[key].name} was terminated; another one continues the run.")
                self.pending.appendleft(key)
            case "failed" if event.disk_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.store.root))
            case "failed":
                self.attempts[key] += 1
                if event.permanent or self.attempts[key] >= _ATTEMPTS or stopping:
                    self._fail(key, event.error)
                else:
                    self.log(f"{self.rows[key].name} failed and is repeated once: {event.error}")
                    self.pending.appendleft(key)

    def _fail(self, key: str, reason: str) -> None:
        self.failed[key] = reason
        self.store.note_failure(key, reason)


def _key_without_content(row: Row) -> str:
    return row.spec.model_copy(update={"content": None}).key


# --- Status ----------------------------------------------------------------------------------------------------------


class TableStatus(BaseModel):
    """How far the runs of a table under a profile are."""

    table: str
    profile: str
    runs: dict[str, State]
    errors: dict[str, str]
    seconds_left: float | None  # one run at a time

    @property
    def counts(self) -> dict[State, int]:
        return {state: list(self.runs.values()).count(state) for state in get_args(State)}


def status(store: Store) -> tuple[list[TableStatus], list[str]]:
    """Return the status of every planned table of a store, and a line for each plan or run that cannot be read.

    Plans of the same table and profile are counted together.
    """
    found = read_contents(store.root)
    planned: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in (row for plan in found.plans for row in plan.rows):
        planned[row.table, row.profile][row.key] = row
    tables = []
    for (table, profile), rows in planned.items():
        runs = {key: store.state(key) for key in rows}
        errors = {key: found.failures[key] for key, state in runs.items() if state == "failed"}
        left = seconds_left([rows[key] for key, state in runs.items() if state != "done"], found.runs.values())
        tables.append(TableStatus(table=table, profile=profile, runs=runs, errors=errors, seconds_left=left))
    return tables, found.problems


def seconds_left(rows: Iterable[Row], finished: Iterable[StoredRun]) -> float | None:
    """Return the seconds that runs take at the rate of finished runs with their encoder; None without such runs."""
    rates: dict[str, list[float]] = defaultdict(list)
    for run in finished:
        rates[run.spec.train.encoder].append(run.seconds / _images_seen(run.spec))
    specs = [row.spec for row in rows]
    if any(spec.train.encoder not in rates for spec in specs):
        return None
    return sum(_images_seen(spec) * fmean(rates[spec.train.encoder]) for spec in specs)


def _images_seen(spec: RunSpec) -> float:
    """Return how many images a run is trained on; data of unknown size count as 10,000 images."""
    if spec.train.steps:
        return spec.train.steps * spec.train.batch_size
    sizes = {"digits": 1437, "cifar10": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000, "caltech256": 15_360}
    scarce = 1.0 if spec.imbalance_rate is None else (1 + spec.imbalance_rate) / 2
    return spec.train.epochs * (spec.n_train or sizes.get(spec.source, 10_000) * scarce)
