"""The driver of a grid, with an executor that follows a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_grid import small_plan, task

from esupcon.experiments.executors import Event, Task
from esupcon.experiments.grid import GridState, run_grid, seconds_left, status
from esupcon.experiments.plan import Plan, make_plan
from esupcon.experiments.store import Store
from esupcon.experiments.worker import compute
from esupcon.training.result import RESULT_FILE
from in_this_process import InThisProcess
from stored_results import write_result
from tiny_images import write_npz


class Scripted:
    """Answers each submission of a key with the next event of its script; without one it stores a result."""

    def __init__(self, store: Store, slots: int = 2, script: dict[str, list[Event]] | None = None) -> None:
        self.slots, self.store, self.script = slots, store, script or {}
        self.submitted: list[str] = []
        self.together: list[set[str]] = []  # runs that were running at the same time
        self.closed = self.was_stopped = False
        self.is_slow = False  # whether nothing ends before it is stopped
        self._coming: list[Event] = []
        self._running: set[str] = set()

    def submit(self, task: Task) -> None:
        self.submitted.append(task.key)
        self._running.add(task.key)
        self.together.append(set(self._running))
        if script := self.script.get(task.key):
            self._coming.append(script.pop(0))
        else:
            if not self.store.is_done(task.key):
                store_quickly(self.store, task)
            self._coming.append(Event(key=task.key, kind="finished"))

    def events(self, timeout: float) -> list[Event]:
        if self.is_slow and not self.was_stopped:
            return []
        found, self._coming = self._coming[:1], self._coming[1:]
        for event in found:
            self._running.discard(event.key)
        return found

    def stop(self) -> None:
        self.was_stopped = True

    def close(self) -> None:
        self.closed = True


def store_quickly(store: Store, task: Task, **changes: Any) -> None:
    """Store a result without training."""
    folder = store.work_folder(task.key)
    folder.mkdir(parents=True, exist_ok=True)
    write_result(folder, task.spec, **changes)
    store.finish(task.key, folder)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return small_plan(tmp_path, n_seeds=3)


def keys_of(plan: Plan) -> list[str]:
    return [row.key for row in plan.rows]


def run(plan: Plan, store: Store, executor: Scripted, **more: Any) -> tuple[GridState, list[str]]:
    lines: list[str] = []
    state = run_grid([plan], store, executor, log=lines.append, **more)
    assert executor.closed
    places = [*state.stored, *state.finished, *state.failed, *state.stopped]
    places += [*state.pending, *state.running, *state.running_elsewhere]
    assert sorted(places) == sorted(set(keys_of(plan))), "every key in exactly one place"
    return state, lines


def test_every_run_is_computed_once(plan: Plan, store: Store) -> None:
    executor = Scripted(store)
    state, lines = run(plan, store, executor)
    assert state.is_complete
    assert sorted(executor.submitted) == sorted(keys_of(plan))
    assert max(map(len, executor.together)) == 2
    assert lines[-1].startswith("6/6  ")
    assert lines[-1].endswith(": 90.0 %")
    again, lines = run(plan, store, Scripted(store))
    assert again.stored == keys_of(plan)
    assert lines == ["6 of 6 runs are already stored."]


@pytest.mark.parametrize(
    ("errors", "permanent", "n_attempts"), [(["one"], False, 2), (["one", "two"], False, 2), (["one"], True, 1)]
)
def test_failed_run_is_repeated_once_and_the_others_continue(
    plan: Plan, store: Store, errors: list[str], permanent: bool, n_attempts: int
) -> None:
    row = plan.rows[2]
    failures = [Event(key=row.key, kind="failed", error=error, permanent=permanent) for error in errors]
    executor = Scripted(store, script={row.key: failures})
    state, lines = run(plan, store, executor)
    expected = errors[-1] if len(errors) == n_attempts else None
    assert (state.failed.get(row.key), store.failure(row.key)) == (expected, expected)
    assert state.n_done == len(plan.rows) - len(state.failed)
    assert executor.submitted.count(row.key) == n_attempts
    assert (f"{row.name} failed and is repeated once: one" in lines) == (not permanent)
    again, _ = run(plan, store, Scripted(store))
    assert again.is_complete
    assert again.finished == list(state.failed), "the next command tries it again"


def test_full_disk_ends_the_grid(plan: Plan, store: Store) -> None:
    key = plan.rows[0].key
    executor = Scripted(store, script={key: [Event(key=key, kind="failed", error="full", disk_full=True)]})
    with pytest.raises(OSError, match="No space left"):
        run(plan, store, executor)
    assert executor.closed


def test_run_of_another_command_is_waited_for(plan: Plan, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esupcon.experiments.grid._LOOK_AGAIN_SECONDS", 0.05)
    done, given_up = keys_of(plan)[:2]
    executor = Scripted(store, script={key: [Event(key=key, kind="running_elsewhere")] for key in (done, given_up)})

    def other_command(state: GridState) -> None:
        if done in state.running_elsewhere and not store.is_done(done):
            store_quickly(store, task(store, plan.rows[0]), accuracy=0.5)

    state, lines = run(plan, store, executor, watch=other_command)
    assert state.is_complete
    assert executor.submitted.count(given_up) == 2
    assert store.read(done).accuracy == 0.5
    assert any(line.endswith(f"{plan.rows[0].name}: 50.0 %") for line in lines)


def test_stopping(plan: Plan, store: Store) -> None:
    keys = keys_of(plan)
    executor = Scripted(store, script={key: [Event(key=key, kind="stopped")] for key in keys})
    executor.is_slow = True
    state, _ = run(plan, store, executor, should_stop=lambda: bool(executor.submitted))
    assert executor.was_stopped
    assert state.stopped == keys[:2]
    assert list(state.pending) == keys[2:]
    assert not state.failed


def test_run_of_a_terminated_worker_is_continued_by_another(plan: Plan, store: Store) -> None:
    key = plan.rows[0].key
    executor = Scripted(store, script={key: [Event(key=key, kind="stopped")]})
    state, lines = run(plan, store, executor)
    assert state.is_complete
    assert executor.submitted.count(key) == 2
    assert any("was terminated; another one continues the run" in line for line in lines)


def test_damaged_run_is_set_aside_and_computed_again(plan: Plan, store: Store) -> None:
    first = plan.model_copy(update={"rows": plan.rows[:1]})
    key = plan.rows[0].key
    run(first, store, Scripted(store))
    (store.run_folder(key) / RESULT_FILE).write_text('{"metrics"')
    state, lines = run(first, store, Scripted(store))
    assert state.finished == [key]
    assert "is computed again" in lines[0]
    assert len(list((store.root / "aside").iterdir())) == 1


def test_changed_data_are_computed_again_with_the_reason(tmp_path: Path, store: Store) -> None:
    data = tmp_path / "list.npz"
    before = small_plan(tmp_path, source=data)
    content = data.read_bytes()
    run(before, store, Scripted(store))
    write_npz(data, seed=1)
    executor = Scripted(store)
    state = run_grid([before], store, executor, log=(lines := []).append)
    assert len(state.finished) == len(before.rows)
    assert set(state.rows).isdisjoint(keys_of(before))
    assert lines[0] == f"the content of {data} has changed since its runs were stored; 4 runs to repeat."
    data.write_bytes(content)
    state = run_grid([before], store, Scripted(store), log=(lines := []).append)
    assert state.stored == keys_of(before)
    data.rename(tmp_path / "moved.npz")
    moved = small_plan(tmp_path, source=tmp_path / "moved.npz")
    assert keys_of(moved) == keys_of(before), "the path does not matter"


def test_stopped_run_whose_data_changed_starts_again(tmp_path: Path, store: Store) -> None:
    data = tmp_path / "list.npz"
    plan = small_plan(tmp_path, methods=("ce",), n_seeds=1, source=data)
    assert compute(task(store, plan.rows[0]), lambda: True).kind == "stopped"
    assert store.state(plan.rows[0].key) == "begun"
    write_npz(data, seed=1)
    planned_before = compute(task(store, plan.rows[0]), lambda: False)
    assert planned_before.error.endswith("changed since this run was planned. Repeat the command.")
    state = run_grid([plan], store, InThisProcess())
    assert state.is_complete, state.failed
    assert not store.is_done(plan.rows[0].key)


def test_result_that_cannot_be_read_is_a_failed_run(plan: Plan, store: Store) -> None:
    key = plan.rows[0].key

    class Damaging(Scripted):
        def events(self, timeout: float) -> list[Event]:
            if store.is_done(key):
                (store.run_folder(key) / RESULT_FILE).write_text("{}")
            return super().events(timeout)

    state, _ = run(plan, store, Damaging(store))
    assert list(state.failed) == [key]
    assert state.n_done == 5


def test_result_of_another_torch_is_reported_and_repeated_on_request(plan: Plan, store: Store) -> None:
    for row in plan.rows[:2]:
        store_quickly(store, task(store, row), versions={"torch": "1.0"})
    state, lines = run(plan, store, Scripted(store))
    assert state.stored == keys_of(plan)[:2]
    assert any(line.startswith("2 stored runs used torch 1.0. This is torch 2") for line in lines)
    executor = Scripted(store)
    state, lines = run(plan, store, executor, recompute=True)
    assert executor.submitted == keys_of(plan)[:2]
    assert len(state.stored) == 4
    assert not any("used torch" in line for line in lines)


# --- Status and cost -------------------------------------------------------------------------------------------------


def test_status(plan: Plan, store: Store) -> None:
    first, second, third = keys_of(plan)[:3]
    executor = Scripted(store, script={second: [Event(key=second, kind="failed", error="broken", permanent=True)]})
    run(plan, store, executor)
    (store.run_folder(third) / RESULT_FILE).write_text("{}")
    ((table,), problems) = status(store)
    assert (table.table, len(table.runs), len(problems)) == ("small", 6, 1)
    assert (table.counts["done"], table.counts["failed"]) == (5, 1)
    assert table.errors == {second: "broken"}
    assert str(store.run_folder(third)) in problems[0]
    assert table.model_dump()["runs"][first] == "done"
    (store.root / "plans" / "x-y-z.json").write_text("{")
    ((table,), problems) = status(store)
    assert "x-y-z.json" in problems[1]
    assert len(table.runs) == 6


def test_time_left_comes_from_finished_runs(store: Store) -> None:
    ce, spce = make_plan("full", "smoke", methods=("ce", "spce"), seeds=(0,)).rows
    longer = ce.with_spec(ce.spec.model_copy(update={"n_train": 2 * 1437}))
    assert seconds_left([ce], []) is None, "nothing has finished"
    for row, seconds in ((ce, 8.0), (spce, 12.0)):
        store_quickly(store, task(store, row), train_seconds=seconds)
    runs = [store.read(row.key) for row in (ce, spce)]
    assert seconds_left([longer], runs) == pytest.approx(20), "twice as many images"
    assert seconds_left([ce, spce], runs) == pytest.approx(20)
