from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_grid import small_plan, task

from esupcon.experiments.plan import Plan
from esupcon.experiments.store import Store, export_study, import_study, read_contents
from esupcon.experiments.worker import compute
from esupcon.training.result import RESULT_FILE, Result
from stored_results import write_result


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Plan]:
    """A store with one run, to copy."""
    home = tmp_path_factory.mktemp("finished")
    store, plan = Store(home / "store"), small_plan(home, methods=("esupcon",), n_seeds=1)
    store.create()
    store.write_plan(plan)
    assert compute(task(store, plan.rows[0]), lambda: False).kind == "finished"
    return store, plan


@pytest.fixture
def store(finished: tuple[Store, Plan], tmp_path: Path) -> Store:
    shutil.copytree(finished[0].root, tmp_path / "store")
    return Store(tmp_path / "store")


@pytest.fixture
def key(finished: tuple[Store, Plan]) -> str:
    return finished[1].rows[0].key


def test_finished_run_holds_what_is_promised(store: Store, key: str) -> None:
    run = store.read(key)
    assert run.folder is not None
    names = {path.name for path in run.folder.iterdir()}
    assert names >= {"result.json", "history.jsonl", "timing.jsonl", "predictions.npz", "held_out.npz", "embedding.npz"}
    assert "model" not in names
    assert not [name for name in names if name.startswith("checkpoint")]
    provenance = run.result.provenance
    assert provenance.seconds > 0
    assert provenance.train_seconds > 0
    assert (provenance.peak_memory_bytes or 0) > 10_000_000
    assert provenance.versions["torch"]
    assert run.accuracy is not None
    assert len(run.history) == len(run.timing) == 3
    assert store.state(key) == "done"
    assert store.keys() == [key]


def test_second_process_to_finish_changes_nothing(store: Store, key: str) -> None:
    before = (store.run_folder(key) / RESULT_FILE).stat().st_mtime_ns
    shutil.copytree(store.run_folder(key), store.work_folder(key))
    store.finish(key, store.work_folder(key))
    assert (store.run_folder(key) / RESULT_FILE).stat().st_mtime_ns == before
    assert not store.work_folder(key).exists()


def write_other_run(store: Store) -> None:
    """Store a second run, of another seed."""
    (run,) = read_contents(store.root).runs.values()
    spec = run.spec.model_copy(update={"train": run.spec.train.model_copy(update={"seed": 9})})
    folder = store.work_folder(spec.key)
    folder.mkdir()
    write_result(folder, spec)
    store.finish(spec.key, folder)


def test_run_under_another_key_is_refused(store: Store, key: str) -> None:
    store.run_folder(key).rename(store.run_folder("0" * 12))
    with pytest.raises(ValueError, match=f"holds the run {key}, not 000000000000"):
        store.read("0" * 12)


def test_states(store: Store, key: str, tmp_path: Path) -> None:
    store.run_folder(key).rename(tmp_path / "run")
    assert store.state(key) == "open"
    store.work_folder(key).mkdir()
    assert store.state(key) == "begun"
    store.note_failure(key, "it broke")
    assert store.state(key) == "failed"
    assert store.failure(key) == "it broke"
    with store.locked(key) as held:
        assert held is True
        assert store.state(key) == "running"
        with store.locked(key) as second:
            assert second is False
    store.work_folder(key).rmdir()
    (tmp_path / "run").rename(store.work_folder(key))
    store.finish(key, store.work_folder(key))
    assert store.state(key) == "done"
    assert store.failure(key) is None


def test_same_plan_again_is_stored_once(store: Store, finished: tuple[Store, Plan]) -> None:
    store.write_plan(finished[1].model_copy(update={"command": "another command"}))
    ((plan,), problems) = store.plans()
    assert (plan.command, plan.rows, problems) == ("another command", finished[1].rows, [])


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"table": "a", "profile": "b", "rows": [{"key": "c"}]}'])
def test_damaged_plan_is_named_and_left_out(store: Store, content: str) -> None:
    (path,) = (store.root / "plans").iterdir()
    for damaged in (content, path.read_text().replace('"epochs": 3', '"epochs": 4', 1)):
        path.write_text(damaged)
        plans, (problem,) = store.plans()
        assert plans == []
        assert str(path) in problem
        assert "\n" not in problem
        assert len(read_contents(store.root).runs) == 1


def test_folder_of_others_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a store of runs"):
        read_contents(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="runs"):
        Store(tmp_path).create()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


# --- Studies ---------------------------------------------------------------------------------------------------------


def without_folder(result: Result) -> dict[str, Any]:
    """Return a result without the place of its data."""
    content = result.model_dump()
    for part, name in (("run", "source"), ("data", "name"), ("provenance", "source")):
        content[part][name] = Path(content[part][name]).name
    return content


def test_study_holds_what_a_store_holds(store: Store, key: str, tmp_path: Path) -> None:
    write_other_run(store)
    path = tmp_path / "study.jsonl"
    assert export_study(store, path) == 2
    stored, study = read_contents(store.root), read_contents(path)
    assert [[row.key for row in plan.rows] for plan in study.plans] == [
        [row.key for row in plan.rows] for plan in stored.plans
    ]
    assert list(study.runs) == list(stored.runs)
    assert (study.problems, study.failures) == ([], {})
    for one, other in zip(study.runs.values(), stored.runs.values(), strict=True):
        assert without_folder(one.result) == without_folder(other.result)
        assert one.spec.source == "corners.npz", "no path of this machine is published"
        assert (one.history, one.timing) == (other.history, other.timing)
        assert one.folder is None
    assert path.stat().st_size < 20_000


def test_study_names_no_folder_of_this_machine(store: Store, key: str, tmp_path: Path) -> None:
    path = store.root / "runs" / key
    result = Result.read(path)
    command = "esupcon reproduce /home/me/t.toml --source a=/home/me/a.npz --store runs"
    result.model_copy(update={"provenance": result.provenance.model_copy(update={"command": command})}).write(path)
    export_study(store, tmp_path / "study.jsonl")
    assert "/home" not in (text := (tmp_path / "study.jsonl").read_text())
    assert '"command":"esupcon reproduce t.toml --source a=a.npz --store runs"' in text


def test_study_is_enough_to_resume(store: Store, key: str, tmp_path: Path) -> None:
    export_study(store, tmp_path / "study.jsonl")
    other = Store(tmp_path / "other")
    assert import_study(tmp_path / "study.jsonl", other) == 1
    assert import_study(tmp_path / "study.jsonl", other) == 0
    assert without_folder(other.read(key).result) == without_folder(store.read(key).result)
    assert other.read(key).history == store.read(key).history
    assert [row.key for row in other.plans()[0][0].rows] == [row.key for row in store.plans()[0][0].rows]
    assert compute(task(other, other.plans()[0][0].rows[0]), lambda: True).kind == "finished"


@pytest.mark.parametrize("damage", ["", "{}", "[1]", "\x00", '{"run": {}, "sha256_of_the_rest": "0"}', "[" * 100_000])
def test_damaged_line_of_a_study_costs_one_run(store: Store, tmp_path: Path, damage: str) -> None:
    write_other_run(store)
    path = tmp_path / "study.jsonl"
    export_study(store, path)
    lines = path.read_text().splitlines()
    changed = lines[1].replace('"accuracy":0.9', '"accuracy":0.99', 1)
    for line in (damage, changed if changed != lines[1] else lines[1][:-9]):
        path.write_text("\n".join([lines[0], line, lines[2]]))
        contents = read_contents(path)
        assert len(contents.runs) == 1
        assert [f"line 2 of {path}" in problem for problem in contents.problems] == [True]
    path.write_text("\n".join(["{}", *lines[1:]]))
    assert len(read_contents(path).runs) == 2


def test_file_that_is_no_study(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match="must hold finished runs or a plan; it holds neither"):
        read_contents(path)
    with pytest.raises(ValueError, match=r"named \*\.jsonl"):
        export_study(store, tmp_path / "study.json")
