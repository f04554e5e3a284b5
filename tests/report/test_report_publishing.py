"""A published store says what the store says, from small files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from report_stores import Left, note_plan, row, write_run

from esupcon.experiments.store import Store
from esupcon.report.build import render
from esupcon.report.content import read_content
from esupcon.report.kept_calibration import KEPT, calibration
from esupcon.report.publishing import publish


def tables_of(store: Path) -> str:
    return re.sub(r"store: .*", "", render(read_content(store), "markdown"))


@pytest.fixture
def filled(store: Store) -> Store:
    rows = [row(method, seed) for method in ("ce", "esupcon") for seed in range(2)]
    note_plan(store, rows, measure="ece")
    for one in rows:
        write_run(store, one)
    return store


def test_the_copy_reports_the_same_tables_and_diagrams(filled: Store, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    done = publish(filled.root, out)
    assert (done.n_added, done.n_there, done.complaints) == (4, 0, [])
    assert tables_of(out) == tables_of(filled.root)
    for key in sorted(filled.keys()):
        ours, kept = calibration(filled.run_folder(key)), calibration(Store(out).run_folder(key))
        assert ours == kept
        assert ours is not None
        assert kept is not None
        np.testing.assert_array_equal(ours.bins_after.confidence, kept.bins_after.confidence)
        assert kept.bins_after.expected_calibration_error == pytest.approx(kept.ece_after)


def test_nothing_large_is_copied(filled: Store, tmp_path: Path) -> None:
    (filled.run_folder(filled.keys()[0]) / "model").mkdir()
    publish(filled.root, tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy" / "runs").glob("*/*")}
    assert names == {"spec.json", "result.json", "history.jsonl", "timing.jsonl", KEPT}
    assert not list((tmp_path / "copy").glob(".publishing-*"))


def test_a_copy_grows_with_its_store(filled: Store, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    publish(filled.root, out)
    more = row("spce", 0)
    write_run(filled, more)
    done = publish(filled.root, out)
    assert (done.n_added, done.n_there) == (1, 4)
    assert Store(out).read(more.key).spec == more.spec


def test_another_result_of_the_same_run_is_refused(filled: Store, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    publish(filled.root, out)
    write_run(filled, row("ce", 0), Left(accuracy=0.9))
    before = tables_of(out)
    with pytest.raises(ValueError, match="another result"):
        publish(filled.root, out)
    assert tables_of(out) == before


def test_a_folder_of_something_else_is_left_alone(filled: Store, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="neither empty nor a store"):
        publish(filled.root, tmp_path / "photos")


def test_damaged_runs_are_named_and_left_out(filled: Store, tmp_path: Path) -> None:
    key = filled.keys()[0]
    (filled.run_folder(key) / "result.json").write_text("{}")
    done = publish(filled.root, tmp_path / "copy")
    assert done.n_added == 3
    assert key in done.complaints[0]


@pytest.mark.parametrize("damage", ["digit", "empty", "lengths"])
def test_a_changed_figure_of_calibration_is_not_shown(filled: Store, tmp_path: Path, damage: str) -> None:
    publish(filled.root, tmp_path / "copy")
    folder = Store(tmp_path / "copy").run_folder(filled.keys()[0])
    text = (folder / KEPT).read_text()
    changed = {"digit": text.replace("0.", "0.1", 1), "empty": "", "lengths": text.replace("[", "[0,", 1)}[damage]
    (folder / KEPT).write_text(changed)
    assert calibration(folder) is None


def test_the_newest_settings_stay_the_newest_whatever_the_times_of_the_files(store: Store, tmp_path: Path) -> None:
    for epochs, accuracy in ((90, 0.5), (30, 0.7)):  # asked for in this order; the names of the files say nothing of it
        one = row("ce", 0, epochs=epochs)
        note_plan(store, [one])
        write_run(store, one, Left(accuracy=accuracy))
    shown = read_content(store.root).tables[0].panels[0].cells["ce"][0].summary
    assert shown is not None and shown.mean == pytest.approx(70)
    publish(store.root, tmp_path / "copy")
    for copy in (store.root, tmp_path / "copy"):
        paths = sorted((copy / "plans").iterdir())
        for times in ((1, 2), (2, 1)):
            for path, when in zip(paths, times, strict=True):
                os.utime(path, (when, when))
            summary = read_content(copy).tables[0].panels[0].cells["ce"][0].summary
            assert summary == shown
