"""Disks that are full, read-only, forbidden or gone: one line, an exit code, and nothing earlier is destroyed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import TRAIN, assert_one_clear_line, assert_same_runs, contents, small_grid
from warm import Warm

from esupcon.experiments.store import Store
from tiny_images import write_folder, write_npz

pytestmark = pytest.mark.reliability

as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a small disk")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1024k", "tmpfs", str(place)]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take all space but `leave` kilobytes."""
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - leave * 1024)))
    return filler


@as_root
@pytest.mark.parametrize("kilobytes", [0, 12, 40, 72])
def test_disk_full_while_training(warm: Warm, corners: Path, disk: Path, shared_run: Path, kilobytes: int) -> None:
    """Wherever the space ends, a message tells it; with space again the same command ends with the same result."""
    words = ("train", corners, "--out", disk / "run", *TRAIN, "--checkpoint-seconds", "0")
    filler = fill(disk, kilobytes)
    first = warm.esupcon(*words)
    assert_one_clear_line(first, "the disk is full", "run the same command again", disk)
    filler.unlink()
    again = warm.esupcon(*words)
    assert again.code == 0, again.err
    for name in ("predictions.npz", "history.jsonl"):
        assert (disk / "run" / name).read_bytes() == (shared_run / name).read_bytes()


@as_root
@pytest.mark.parametrize("kilobytes", [0, 8])
def test_disk_full_while_calibrating_keeps_the_model(
    warm: Warm, corners: Path, disk: Path, shared_run: Path, kilobytes: int
) -> None:
    model = disk / "model"
    shutil.copytree(shared_run / "model", model)
    before = contents(model)
    fill(disk, kilobytes)
    assert_one_clear_line(warm.esupcon("calibrate", model, corners, "--on", "all"), "the disk is full")
    assert contents(model) == before


@as_root
def test_disk_full_while_decoding(warm: Warm, disk: Path, tmp_path: Path) -> None:
    """The cache cannot be kept, and a message says that it is too large."""
    photos = write_folder(tmp_path / "photos", n_each=20)
    fill(disk, 2)
    ended = warm.esupcon(
        *("train", photos, "--out", tmp_path / "run", *TRAIN, "--image-size", "64"),
        environment={"ESUPCON_DATA": str(disk)},
    )
    assert_one_clear_line(ended, "GB free", "Pass a smaller --image-size, or a cache_dir on another disk")


def test_failed_write_of_output_gives_nonzero_exit_code(warm: Warm, shared_run: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    photos = write_folder(tmp_path / "photos", n_each=2)
    for words in (("predict", shared_run, photos), ("predict", shared_run, photos, "--format", "jsonl")):
        assert_one_clear_line(warm.esupcon(*words, out="/dev/full"), "the disk is full")


WRITABLE = "Choose a writable place"


@pytest.mark.parametrize(
    ("forbidden", "words", "said"),
    [
        (".", ("train", "{root}/corners.npz", "--out", "{root}/run", *TRAIN), WRITABLE),
        ("model", ("calibrate", "{root}/model", "{root}/corners.npz", "--on", "all"), WRITABLE),
        (".", ("export", "{root}/model", "--format", "torch", "--out", "{root}/m.pt2"), WRITABLE),
        ("corners.npz", ("evaluate", "{root}/model", "{root}/corners.npz"), "corners.npz"),
        ("model/config.json", ("evaluate", "{root}/model", "{root}/corners.npz"), "config.json"),
    ],
)
def test_missing_permission(
    warm: Warm, shared_run: Path, tmp_path: Path, forbidden: str, words: tuple[str, ...], said: str
) -> None:
    shutil.copytree(shared_run / "model", tmp_path / "model")
    write_npz(tmp_path / "corners.npz")
    before, place = contents(tmp_path), tmp_path / forbidden
    for path in (place, tmp_path) if place.is_dir() else (place,):
        path.chmod(0o555 if place.is_dir() else 0)
    ended = warm.esupcon(*(word.format(root=tmp_path) for word in words), obeys_permissions=True)
    assert_one_clear_line(ended, tmp_path, "Permission denied", said)
    tmp_path.chmod(0o755)
    assert contents(tmp_path) == before


def test_inaccessible_home_only_disables_the_cache(warm: Warm, corners: Path, shared_run: Path, tmp_path: Path) -> None:
    """As in a container that runs as somebody else: it costs the cache of decoded images, and nothing more."""
    photos = write_folder(tmp_path / "photos", n_each=4)
    home = tmp_path / "home"
    home.mkdir(mode=0)
    for source in (corners, photos):
        ended = warm.esupcon(
            *("evaluate", shared_run, source, "--part", "all"),
            obeys_permissions=True,
            environment={"HOME": str(home), "XDG_CACHE_HOME": ""},
        )
        assert ended.code == 0, ended.err
    assert "the images are decoded again at every start" in ended.err


@as_root
def test_read_only_disk(warm: Warm, corners: Path, disk: Path, shared_run: Path) -> None:
    shutil.copytree(shared_run / "model", disk / "model")
    before = contents(disk)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    ended = warm.esupcon("train", corners, "--out", disk / "run", *TRAIN)
    assert_one_clear_line(ended, "Read-only file system", "Choose a writable place")
    ended = warm.esupcon("calibrate", disk / "model", corners, "--on", "all")
    assert_one_clear_line(ended, "Read-only file system")
    assert contents(disk) == before
    assert warm.esupcon("evaluate", disk / "model", corners).code == 0


DELETE_BEFORE = """
import sys
from pathlib import Path
from esupcon.data import {module}
from esupcon.cli import main
before = {module}.{function}
def after_deletion(*arguments, **options):
    for name in {names!r}:
        Path(name).unlink(missing_ok=True)
    return before(*arguments, **options)
{module}.{function} = after_deletion
sys.exit(main({words!r}))
"""


def test_images_deleted_while_predicting(warm: Warm, tmp_path: Path, shared_run: Path) -> None:
    """They are gone when their turn comes: named, left out, and the rest is predicted."""
    photos = write_folder(tmp_path / "photos", n_each=3)
    names, words = [str(photos / "ne" / f"{i}.png") for i in (0, 1)], ["predict", str(shared_run), str(photos)]
    ended = warm.script(DELETE_BEFORE.format(module="decode", function="decode_images", names=names, words=words))
    assert_one_clear_line(ended, "2 could not be read, 7 predicted", code=1)
    assert ended.err.count("no such file") == 2
    assert len(ended.out.splitlines()) == 1 + 7


def test_image_deleted_while_decoding(warm: Warm, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", n_each=12)
    gone, words = str(photos / "nw" / "0.png"), ["train", str(photos), "--out", str(tmp_path / "run"), *TRAIN]
    script = DELETE_BEFORE.format(module="dataset", function="cached", names=[gone], words=words)
    ended = warm.script(script, environment={"ESUPCON_DATA": str(tmp_path / "cache")})
    assert ended.code == 0, ended.err
    assert f"skipped {gone} (no such file, or a broken link)" in ended.err
    assert "1 of 36 files were skipped" in ended.err


def test_data_deleted_between_two_starts(warm: Warm, tmp_path: Path) -> None:
    """The run cannot go on, and what it has learnt stays; with the data back it ends as it would have."""
    source = write_npz(tmp_path / "corners.npz")
    words = ("train", source, "--out", tmp_path / "run", *TRAIN[:-1], "60")
    first = warm.esupcon(*words, kill_after=0, send=signal.SIGINT, once=tmp_path / "run" / "history.jsonl")
    assert first.code == 130, first.err
    source.rename(tmp_path / "elsewhere.npz")
    before = contents(tmp_path / "run")
    assert_one_clear_line(warm.esupcon(*words), "there is no file or folder", str(source))
    assert contents(tmp_path / "run") == before
    (tmp_path / "elsewhere.npz").rename(source)
    again = warm.esupcon(*words)
    assert again.code == 0, again.err
    assert "Continuing at epoch" in again.err


@as_root
def test_disk_full_while_a_grid_runs(warm: Warm, corners: Path, disk: Path, tmp_path: Path) -> None:
    """Wherever the space ends, one line tells it and finished runs stay; with space again the command ends the grid."""
    store, undisturbed = Store(disk / "store"), Store(tmp_path / "undisturbed")
    words, keys = small_grid(tmp_path, corners, seeds=2, epochs=3)
    assert warm.esupcon(*words, undisturbed.root, "--workers", "1").code == 0
    words = [*words, str(store.root), "--workers", "1"]
    earlier = warm.esupcon(*words, "--method", "ce", "--seeds", "1")
    assert earlier.code == 0, earlier.err
    (first,) = store.keys()
    before = contents(store.run_folder(first))

    for kilobytes in (0, 40):  # no plan can be noted; no run finished
        filler = fill(disk, kilobytes)
        ended = warm.esupcon(*words)
        assert_one_clear_line(ended, "the disk is full", "run the same command again")
        assert contents(store.run_folder(first)) == before
        stored = [folder.name for folder in (store.root / "runs").iterdir()]
        assert all(store.read(key).accuracy is not None for key in stored)
        filler.unlink()

    ended = warm.esupcon(*words)
    assert ended.code == 0, ended.err
    assert contents(store.run_folder(first)) == before
    assert not list((store.root / "failed").iterdir())
    assert_same_runs(store, undisturbed, keys)
