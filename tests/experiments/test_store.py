from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from small_grid import small_rows

from esupcon.experiments.execution import execute
from esupcon.experiments.spec import Row
from esupcon.experiments.store import Store, write_spec


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Row]:
    """A complete folder of one run, to be copied."""
    home = tmp_path_factory.mktemp("finished")
    row = small_rows(home)[0]
    execute(row.spec, home / "run", data_dir=None, keep_model=False, command="x", should_stop=lambda: False, log=print)
    return home / "run", row


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    return made


def put(store: Store, finished: tuple[Path, Row]) -> str:
    folder, row = finished
    work = store.work_folder(row.key)
    shutil.copytree(folder, work)
    assert store.finish(row.key, work)
    return row.key


def test_a_finished_run_holds_what_is_promised(finished: tuple[Path, Row], store: Store) -> None:
    key = put(store, finished)
    run = store.read(key)
    names = {path.name for path in run.folder.iterdir()}
    assert names >= {"spec.json", "result.json", "history.jsonl", "predictions.npz", "held_out.npz", "embedding.npz"}
    assert "model" not in names
    assert not [name for name in names if name.startswith("checkpoint")]
    provenance = run.result["provenance"]
    assert provenance["seconds"] > 0
    assert provenance["train_seconds"] > 0
    assert provenance["peak_memory_bytes"] > 10_000_000
    assert provenance["versions"]["torch"]
    assert run.accuracy == run.result["metrics"]["test"]["accuracy"]
    assert store.state(key) == "done"
    assert store.keys() == [key]


def test_the_second_to_finish_changes_nothing(finished: tuple[Path, Row], store: Store) -> None:
    key = put(store, finished)
    before = (store.run_folder(key) / "result.json").stat().st_mtime_ns
    shutil.copytree(finished[0], store.work_folder(key))
    assert not store.finish(key, store.work_folder(key))
    assert (store.run_folder(key) / "result.json").stat().st_mtime_ns == before
    assert not store.work_folder(key).exists()


@pytest.mark.parametrize("name", ["spec.json", "result.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"x"', "[" * 100_000])
def test_damage_is_named(finished: tuple[Path, Row], store: Store, name: str, content: str) -> None:
    key = put(store, finished)
    path = store.run_folder(key) / name
    path.write_text(content)
    with pytest.raises(ValueError, match=str(path)):
        store.read(key)
    aside = store.set_aside(key)
    assert (aside / name).read_text() == content
    assert not store.is_done(key)


def test_a_run_under_a_foreign_key_is_refused(finished: tuple[Path, Row], store: Store) -> None:
    key = put(store, finished)
    store.run_folder(key).rename(store.run_folder("0" * 12))
    with pytest.raises(ValueError, match=f"holds the run {key}, not 000000000000"):
        store.read("0" * 12)


def test_an_altered_specification_is_found_by_its_key(finished: tuple[Path, Row], store: Store) -> None:
    key = put(store, finished)
    altered = finished[1].spec.model_copy(update={"noise_rate": 0.25})
    write_spec(store.run_folder(key), altered)
    with pytest.raises(ValueError, match=f"holds the run {altered.key}"):
        store.read(key)


def test_states(finished: tuple[Path, Row], store: Store) -> None:
    key = finished[1].key
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
    put(store, finished)
    assert store.state(key) == "done"
    assert store.failure(key) is None


def test_one_lock_for_many_threads(store: Store) -> None:
    inside, most, together = 0, 0, threading.Lock()
    taken = []

    def compute() -> None:
        nonlocal inside, most
        with store.locked("k") as held:
            if held:
                with together:
                    inside += 1
                    most = max(most, inside)
                    taken.append(1)
                with together:
                    inside -= 1

    threads = [threading.Thread(target=compute) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert taken


def test_plans_are_remembered_once(finished: tuple[Path, Row], store: Store) -> None:
    for command in ("a", "b"):
        store.note_plan([finished[1]], title="t", notes=["n"], extra={"command": command})
    plans = store.plans()
    assert [plan["command"] for plan in plans] == ["b"]
    assert plans[0]["rows"][0]["key"] == finished[1].key
    path = next((store.root / "plans").iterdir())
    path.write_text(json.dumps({"table": "x"}))
    with pytest.raises(ValueError, match=f"{path} is not a plan"):
        store.plans()


def test_a_folder_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no store of runs"):
        Store(tmp_path).require()
