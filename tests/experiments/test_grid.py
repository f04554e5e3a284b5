"""The driver, with an executor that does what the test says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from small_grid import small_rows, task_maker

from esupcon.experiments.execution import execute
from esupcon.experiments.executor import Event, Task
from esupcon.experiments.grid import Standing, run_grid
from esupcon.experiments.plan import Choice, make_plan
from esupcon.experiments.profile import read_profile
from esupcon.experiments.reproduce import Request, reproduce
from esupcon.experiments.spec import Row
from esupcon.experiments.store import RESULT_FILE, Store, write_spec
from esupcon.files import write_sealed_json
from in_this_process import InThisProcess


class Scripted:
    """Answers each submission of a key with the next of its script; without one, by storing the run."""

    def __init__(self, store: Store, slots: int = 2, script: dict[str, list[Event]] | None = None) -> None:
        self.slots, self.store, self.script = slots, store, script or {}
        self.sees_store = True
        self.submitted: list[str] = []
        self.closed = self.was_stopped = False
        self._coming: list[Event] = []
        self.in_hand: set[str] = set()
        self.most_at_once = 0

    def submit(self, task: Task) -> None:
        self.submitted.append(task.key)
        self.in_hand.add(task.key)
        self.most_at_once = max(self.most_at_once, len(self.in_hand))
        script = self.script.get(task.key)
        self._coming.append(Event(task.key, "started"))
        if script:
            self._coming.append(script.pop(0))
        else:
            store_quickly(self.store, task)
            self._coming.append(Event(task.key, "finished"))

    def events(self, timeout: float) -> list[Event]:
        found, self._coming = self._coming[:2], self._coming[2:]
        self.in_hand -= {event.key for event in found if event.kind != "started"}
        return found

    def stop(self) -> None:
        self.was_stopped = True
        self._coming = [event for event in self._coming if event.kind != "started"]

    def close(self) -> None:
        self.closed = True


def store_quickly(store: Store, task: Task) -> None:
    """What a run leaves, as far as a driver looks at it."""
    folder = store.work_folder(task.key)
    folder.mkdir(parents=True, exist_ok=True)
    write_spec(folder, task.spec)
    write_sealed_json(folder / RESULT_FILE, {"metrics": {"test": None}, "provenance": {"seconds": 1.0}, "spec": {}})
    store.finish(task.key, folder)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    return made


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    return small_rows(tmp_path, n_seeds=3)


def run(rows: list[Row], store: Store, executor: Scripted, **more: object) -> tuple[Standing, list[str]]:
    said: list[str] = []
    standing = run_grid(rows, store, executor, task_maker(store), say=said.append, **more)  # type: ignore[arg-type]
    assert executor.closed
    places = [*standing.stored, *standing.finished, *standing.failed, *standing.stopped]
    places += [*standing.pending, *standing.running, *standing.elsewhere]
    assert sorted(places) == sorted(row.key for row in rows), "every key in exactly one place"
    return standing, said


def test_everything_is_computed_once(rows: list[Row], store: Store) -> None:
    executor = Scripted(store)
    standing, _ = run(rows, store, executor)
    assert standing.is_complete
    assert sorted(executor.submitted) == sorted(row.key for row in rows)
    assert executor.most_at_once == 2


def test_a_key_in_two_rows_is_one_run(rows: list[Row], store: Store) -> None:
    executor = Scripted(store)
    run_grid([*rows, *rows], store, executor, task_maker(store))
    assert len(executor.submitted) == len(rows)


def test_a_failure_is_tried_once_more(rows: list[Row], store: Store) -> None:
    key = rows[2].key
    executor = Scripted(store, script={key: [Event(key, "failed", "lost")]})
    standing, said = run(rows, store, executor)
    assert standing.is_complete
    assert executor.submitted.count(key) == 2
    assert said == [f"{rows[2].method} on {rows[2].dataset}, full, seed 2 failed and is tried once more: lost"]
    assert store.failure(key) is None


def test_twice_failed_is_listed_and_the_others_go_on(rows: list[Row], store: Store) -> None:
    key = rows[0].key
    executor = Scripted(store, script={key: [Event(key, "failed", "one"), Event(key, "failed", "two")]})
    standing, _ = run(rows, store, executor)
    assert standing.failed == {key: "two"}
    assert standing.n_done == len(rows) - 1
    assert store.failure(key) == "two"
    again, _ = run(rows, store, Scripted(store))
    assert again.is_complete
    assert again.finished == [key]


def test_what_would_fail_again_is_not_tried_again(rows: list[Row], store: Store) -> None:
    key = rows[0].key
    executor = Scripted(store, script={key: [Event(key, "failed", "wrong path", certain=True)]})
    standing, _ = run(rows, store, executor)
    assert standing.failed == {key: "wrong path"}
    assert executor.submitted.count(key) == 1


def test_a_run_elsewhere_is_waited_for(rows: list[Row], store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esupcon.experiments.grid._LOOK_AGAIN_SECONDS", 0.0)
    done, given_up = rows[0].key, rows[1].key
    executor = Scripted(store, script={key: [Event(key, "elsewhere")] for key in (done, given_up)})

    with ExitStack() as of_the_other_command:
        assert of_the_other_command.enter_context(store.locked(done))

        def other_command(standing: Standing) -> None:
            if done in standing.elsewhere:
                store_quickly(store, task_maker(store)(rows[0]))
                of_the_other_command.close()

        standing, _ = run(rows, store, executor, watch=other_command)
    assert standing.is_complete
    assert executor.submitted.count(done) == 1
    assert executor.submitted.count(given_up) == 2


def test_stopping(rows: list[Row], store: Store) -> None:
    keys = [row.key for row in rows]
    executor = Scripted(store, slots=2, script={key: [Event(key, "stopped")] for key in keys})
    asked = iter([False, True])
    standing, _ = run(rows, store, executor, should_stop=lambda: next(asked, True))
    assert executor.was_stopped
    assert standing.stopped == keys[:2]
    assert list(standing.pending) == keys[2:]


def test_unavailable_runs_are_failed_without_being_tried(rows: list[Row], store: Store) -> None:
    key = rows[3].key
    executor = Scripted(store)
    standing, _ = run(rows, store, executor, unavailable={key: "no such folder"})
    assert standing.failed == {key: "no such folder"}
    assert key not in executor.submitted
    assert store.failure(key) == "no such folder"


def test_a_damaged_run_is_put_aside_and_computed_again(rows: list[Row], store: Store) -> None:
    folder = store.work_folder(rows[0].key)
    stop: Callable[[], bool] = lambda: False  # noqa: E731
    execute(rows[0].spec, folder, data_dir=None, keep_model=False, command="x", should_stop=stop, log=print)
    store.finish(rows[0].key, folder)
    executor = Scripted(store)
    standing, said = run(rows[:1], store, executor)
    assert (standing.stored, executor.submitted, said) == ([rows[0].key], [], [])
    (store.run_folder(rows[0].key) / RESULT_FILE).write_text('{"metrics"')
    standing, said = run(rows[:1], store, Scripted(store))
    assert standing.finished == [rows[0].key]
    assert len(said) == 1
    assert "is computed again" in said[0]
    assert len(list((store.root / "damaged").iterdir())) == 1


class Watching(Scripted):
    """Notes which runs were in hand at the same time, and leaves a first stage as a run would."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.together: list[set[str]] = []
        self.stages: dict[str, str | None] = {}

    def submit(self, task: Task) -> None:
        super().submit(task)
        self.stages[task.key] = task.shared_stage
        self.together.append(set(self.in_hand))

    def events(self, timeout: float) -> list[Event]:
        found = super().events(timeout)
        for event in found:
            stage = self.stages.get(event.key)
            if event.kind == "finished" and stage is not None:
                path = self.store.stage_file(stage)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"kept")
        return found


def test_runs_that_begin_alike_wait_for_each_other(tmp_path: Path, store: Store) -> None:
    rows = small_rows(tmp_path, methods=("supcon_ce", "supcon_ce_n", "esupcon"), n_seeds=2)
    executor = Watching(store)
    standing, _ = run(rows, store, executor)
    assert standing.is_complete
    pairs = [{row.key for row in rows if row.seed == seed and row.method != "esupcon"} for seed in (0, 1)]
    for pair in pairs:
        assert len({executor.stages[key] for key in pair} - {None}) == 1
        assert not any(pair <= at_once for at_once in executor.together)
    assert executor.most_at_once == 2, "the others were not held up"
    assert all(executor.stages[row.key] is None for row in rows if row.method == "esupcon")
    assert not list((store.root / "stages").iterdir()), "no run is left that would take one"


def test_who_must_train_a_stage_goes_first(tmp_path: Path, store: Store) -> None:
    rows = small_rows(tmp_path, methods=("supcon_ce", "supcon_ce_n", "supcon_tt", "spce_m", "spce"), n_seeds=1)
    executor = Watching(store)
    standing, _ = run(rows, store, executor)
    assert standing.is_complete
    order = {key: place for place, key in enumerate(executor.stages)}
    place = {row.method: order[row.key] for row in rows}
    assert place["supcon_tt"] < min(place["supcon_ce"], place["supcon_ce_n"])
    assert place["spce"] < place["spce_m"]
    assert executor.most_at_once == 2
    assert not list((store.root / "stages").iterdir())


def test_nobody_waits_for_a_run_that_fails(tmp_path: Path, store: Store) -> None:
    rows = small_rows(tmp_path, methods=("spce_m", "spce"), n_seeds=1)
    executor = Watching(store)
    executor.script[rows[1].key] = [Event(rows[1].key, "failed", "no")] * 2
    standing, _ = run(rows, store, executor)
    assert list(standing.failed) == [rows[1].key]
    assert standing.finished == [rows[0].key]


def test_one_run_of_its_kind_keeps_no_stage(tmp_path: Path, store: Store) -> None:
    executor = Watching(store)
    run(small_rows(tmp_path, methods=("supcon_ce", "ce"), n_seeds=2), store, executor)
    assert set(executor.stages.values()) == {None}


def test_runs_elsewhere_share_nothing(tmp_path: Path, store: Store) -> None:
    executor = Watching(store)
    executor.sees_store = False
    run(small_rows(tmp_path, methods=("supcon_ce", "supcon_ce_n"), n_seeds=1), store, executor)
    assert set(executor.stages.values()) == {None}
    assert executor.most_at_once == 2


def test_a_shared_stage_changes_nothing_but_the_time(tmp_path: Path) -> None:
    rows = small_rows(tmp_path, methods=("supcon_ce", "supcon_tt", "spce", "spce_m"), n_seeds=1)
    shared, alone = Store(tmp_path / "shared"), Store(tmp_path / "alone")
    for store, share_stages in ((shared, True), (alone, False)):
        store.create()
        run_grid(rows, store, InThisProcess(), task_maker(store), share_stages=share_stages)
    for one in rows:
        results = [store.read(one.key).result for store in (shared, alone)]
        histories = [(store.run_folder(one.key) / "history.jsonl").read_bytes() for store in (shared, alone)]
        assert [result["metrics"] for result in results] == [results[0]["metrics"]] * 2
        assert histories[0] == histories[1]
        taken, trained = (result["provenance"]["taken_seconds"] for result in results)
        assert (taken > 0) == (one.method in {"supcon_ce", "spce_m"})
        assert trained == 0
    assert not list((shared.root / "stages").iterdir())
    assert not (alone.root / "stages").exists()


@pytest.mark.parametrize(("table", "shares"), [("full", True), ("complexity", False)])
def test_what_a_run_costs_is_measured_whole(store: Store, table: str, shares: bool) -> None:
    choice = Choice(seeds=(0,), methods=("supcon_ce", "supcon_ce_n"))
    executor = Watching(store)
    reproduce(Request((make_plan(table, read_profile("smoke"), choice),), store), executor, data_are_here=False)
    assert executor.stages
    assert any(stage is not None for stage in executor.stages.values()) == shares
