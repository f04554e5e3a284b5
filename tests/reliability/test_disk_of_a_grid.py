"""A grid whose store lies on a disk that gets full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import as_root, assert_one_clear_line, contents, disk_of, fill
from outcomes import outcome
from warm import Warm

from esupcon.experiments.grid import resolve
from esupcon.experiments.plan import make_plan
from esupcon.experiments.store import Store

pytestmark = pytest.mark.reliability

TABLE = """
title = "Corners"
methods = ["ce", "esupcon"]
[[columns]]
dataset = "{data}"
"""
PROFILE = """
title = "Quick"
seeds = 2
validation_fraction = 0.1
[train]
encoder = "mlp-16x1"
epochs = 3
batch_size = 30
precision = "32"
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(1024, tmp_path / "disk") as place:
        yield place


@as_root
def test_disk_full_while_a_grid_runs(warm: Warm, corners: Path, disk: Path, tmp_path: Path) -> None:
    """Wherever the space ends, one line says so and finished runs stay; with space again the command ends the grid."""
    table, profile = tmp_path / "corners.toml", tmp_path / "quick.toml"
    table.write_text(TABLE.format(data=corners))
    profile.write_text(PROFILE)
    store = Store(disk / "store")
    undisturbed = Store(tmp_path / "undisturbed")
    words = ("reproduce", table, "--profile", profile, "--workers", "1", "--store")
    assert warm.esupcon(*words, undisturbed.root).code == 0
    words = (*words, store.root)
    earlier = warm.esupcon(*words, "--method", "ce", "--seeds", "1")
    assert earlier.code == 0, earlier.err
    (first,) = store.keys()
    before = contents(store.run_folder(first))

    for kilobytes in (0, 40):  # no plan can be noted; no run finished
        filler = fill(disk, kilobytes * 1024)
        ended = warm.esupcon(*words)
        assert_one_clear_line(ended, "the disk is full", "run the same command again")
        assert contents(store.run_folder(first)) == before
        stored = [folder.name for folder in (store.root / "runs").iterdir()]
        assert all(store.read(key).accuracy is not None for key in stored)
        filler.unlink()

    ended = warm.esupcon(*words)
    assert ended.code == 0, ended.err
    rows = resolve([make_plan(str(table), str(profile))])[0].rows
    assert store.keys() == sorted(row.key for row in rows)
    assert contents(store.run_folder(first)) == before
    assert not list((store.root / "work").iterdir())
    assert not list((store.root / "failed").iterdir())
    for row in rows:
        assert outcome(store.run_folder(row.key)) == outcome(undisturbed.run_folder(row.key))
