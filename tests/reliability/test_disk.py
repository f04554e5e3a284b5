"""Disks that are full, read-only, forbidden or gone: one line, an exit code, and nothing earlier is destroyed."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import as_root, assert_one_clear_line, contents, disk_of, fill
from warm import Warm

from conftest import TRAIN
from tiny_images import write_folder, write_npz

pytestmark = pytest.mark.reliability


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(256, tmp_path / "disk") as place:
        yield place


@as_root
@pytest.mark.parametrize("kilobytes", [0, 4, 12, 24, 40, 56, 72])
def test_disk_full_while_training(
    warm: Warm, corners: Path, small_disk: Path, shared_run: Path, kilobytes: int
) -> None:
    """Wherever the space ends, the run says so, and with space again the same command ends as if nothing had been."""
    words = ("train", corners, "--out", small_disk / "run", *TRAIN, "--checkpoint-seconds", "0")
    filler = fill(small_disk, kilobytes * 1024)
    first = warm.esupcon(*words)
    assert_one_clear_line(first, "the disk is full", "run the same command again")
    filler.unlink()
    again = warm.esupcon(*words)
    assert again.code == 0, again.err
    for name in ("predictions.npz", "history.jsonl"):
        assert (small_disk / "run" / name).read_bytes() == (shared_run / name).read_bytes()


@as_root
@pytest.mark.parametrize("kilobytes", [0, 4, 8, 12])
def test_disk_full_while_calibrating_keeps_the_model(
    warm: Warm, corners: Path, small_disk: Path, shared_run: Path, kilobytes: int
) -> None:
    model = small_disk / "model"
    shutil.copytree(shared_run / "model", model)
    before = contents(model)
    fill(small_disk, kilobytes * 1024)
    assert_one_clear_line(warm.esupcon("calibrate", model, corners, "--on", "all"), "the disk is full")
    assert contents(model) == before


@as_root
def test_disk_full_while_decoding(warm: Warm, small_disk: Path, tmp_path: Path) -> None:
    """The cache cannot be kept; what it would have held is said to be too large."""
    photos = write_folder(tmp_path / "photos", n_each=20)
    fill(small_disk, 2048)
    ended = warm.esupcon(
        *("train", photos, "--out", tmp_path / "run", *TRAIN, "--image-size", "64"),
        environment={"ESUPCON_DATA": str(small_disk)},
    )
    assert_one_clear_line(ended, "GB free", "Pass a smaller --image-size, or a cache_dir on another disk")


def test_failed_write_of_output_gives_nonzero_exit_code(warm: Warm, shared_run: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    photos = write_folder(tmp_path / "photos", n_each=2)
    for words in (("predict", shared_run, photos), ("predict", shared_run, photos, "--format", "jsonl")):
        assert_one_clear_line(warm.esupcon(*words, out="/dev/full"), "the disk is full")


def test_unwritable_folder(warm: Warm, corners: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    ended = warm.esupcon("train", corners, "--out", tmp_path / "run", *TRAIN, obeys_permissions=True)
    assert_one_clear_line(ended, str(tmp_path / "run"), "Permission denied", "Choose a writable place")
    tmp_path.chmod(0o755)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["calibrate", "export"])
def test_read_only_model(warm: Warm, corners: Path, shared_run: Path, tmp_path: Path, command: str) -> None:
    model = Path(shutil.copytree(shared_run / "model", tmp_path / "model"))
    before = contents(tmp_path)
    for folder in (model, tmp_path):
        folder.chmod(0o555)
    more = (corners, "--on", "all") if command == "calibrate" else ("--format", "torch", "--out", tmp_path / "m.pt2")
    ended = warm.esupcon(command, model, *more, obeys_permissions=True)
    assert_one_clear_line(ended, "Permission denied", "Choose a writable place")
    assert contents(tmp_path) == before
    assert warm.esupcon("evaluate", model, corners, obeys_permissions=True).code == 0
    tmp_path.chmod(0o755)


def test_unreadable_data(warm: Warm, shared_run: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(shared_run / "model", tmp_path / "model"))
    source = write_npz(tmp_path / "corners.npz")
    source.chmod(0)
    ended = warm.esupcon("evaluate", model, source, obeys_permissions=True)
    assert_one_clear_line(ended, str(source), "Permission denied")
    (model / "config.json").chmod(0)
    ended = warm.esupcon("evaluate", model, source, obeys_permissions=True)
    assert_one_clear_line(ended, "config.json", "Permission denied")


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
def test_read_only_disk(warm: Warm, corners: Path, small_disk: Path, shared_run: Path) -> None:
    shutil.copytree(shared_run / "model", small_disk / "model")
    before = contents(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    ended = warm.esupcon("train", corners, "--out", small_disk / "run", *TRAIN)
    assert_one_clear_line(ended, "Read-only file system", "Choose a writable place")
    ended = warm.esupcon("calibrate", small_disk / "model", corners, "--on", "all")
    assert_one_clear_line(ended, "Read-only file system")
    assert contents(small_disk) == before
    assert warm.esupcon("evaluate", small_disk / "model", corners).code == 0


def test_images_deleted_while_predicting(warm: Warm, tmp_path: Path, shared_run: Path) -> None:
    """They are gone when their turn comes: named, left out, and the rest is predicted."""
    photos = write_folder(tmp_path / "photos", n_each=3)
    script = f"""
import sys
from pathlib import Path
from esupcon.data import decode
from esupcon.cli import main
before = decode.decode_images
def decode_images(paths, *more, **options):
    for name in paths[:2]:
        Path(name).unlink()
    return before(paths, *more, **options)
decode.decode_images = decode_images
sys.exit(main(["predict", {str(shared_run)!r}, {str(photos)!r}]))
"""
    ended = warm.script(script)
    assert_one_clear_line(ended, "2 could not be read, 7 predicted", code=1)
    assert ended.err.count("no such file") == 2
    assert len(ended.out.splitlines()) == 1 + 7


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


def test_image_deleted_while_decoding(warm: Warm, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", n_each=12)
    script = f"""
import sys
from pathlib import Path
from esupcon.data import dataset
from esupcon.cli import main
before = dataset.cached
def cached(*arguments):
    Path({str(photos / "nw" / "0.png")!r}).unlink(missing_ok=True)
    return before(*arguments)
dataset.cached = cached
sys.exit(main(["train", {str(photos)!r}, "--out", {str(tmp_path / "run")!r}, *{TRAIN!r}, *sys.argv[1:]]))
"""
    environment = {"ESUPCON_DATA": str(tmp_path / "cache")}
    ended = warm.script(script, environment=environment)
    assert ended.code == 0, ended.err
    assert f"skipped {photos / 'nw' / '0.png'} (no such file, or a broken link)" in ended.err
    assert "1 of 36 files were skipped" in ended.err
