"""Damaged files of single runs: a report leaves out what they would show, and names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_grid import small_rows

from esupcon.experiments.execution import execute
from esupcon.experiments.store import Store
from esupcon.report.build import FORMATS, render
from esupcon.report.content import read_content
from esupcon.report.kept_calibration import KEPT, keep_calibration

pytestmark = pytest.mark.reliability


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    (row,) = small_rows(tmp_path, methods=("esupcon",), n_seeds=1)
    execute(
        row.spec,
        made.work_folder(row.key),
        data_dir=None,
        keep_model=False,
        command=None,
        should_stop=lambda: False,
        log=lambda line: None,
    )
    made.finish(row.key, made.work_folder(row.key))
    made.note_plan([row], title="t", notes=[], extra={"measure": "ece"})
    return made


@pytest.mark.parametrize("name", ["predictions.npz", "embedding.npz", KEPT])
def test_a_report_names_the_damaged_files_of_runs(store: Store, name: str) -> None:
    (key,) = store.keys()
    folder = store.run_folder(key)
    if name == KEPT:
        keep_calibration(folder, folder)
        (folder / "predictions.npz").unlink()
    sound = read_content(store.root)
    assert sound.collected.complaints == []
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    found = read_content(store.root)
    (line,) = found.collected.complaints
    assert str(folder / name) in line
    assert "cannot be read" in line
    for form in FORMATS:
        text = render(found, form)
        assert form == "csv" or name.partition(".")[0] in text  # rows of figures have no place for words
        assert text != render(sound, form) or form == "csv"
