"""The cache of decoded images: whole or absent, whoever is interrupted and however many build it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import class_folder, quietly, said, saved

from esupcon.data import assemble, cache
from esupcon.data.locking import exclusive

SHAPE = (6, 1, 2, 2)
ALL = np.arange(24, dtype=np.uint8).reshape(SHAPE)


def filler(left_out=(), calls=None):
    def fill(file, rows):
        rows[:] = ALL
        if calls is not None:
            calls.append(1)
        return list(left_out), {"word": "kept"}

    return fill


def silent(line):
    pass


def temporary(folder):
    return [path.name for path in folder.iterdir() if path.suffix in (".tmp", ".lock")]


def test_an_entry_is_built_once(tmp_path):
    calls = []
    for _ in range(3):
        found = cache.entry(tmp_path, "k", SHAPE, filler(calls=calls), silent)
        np.testing.assert_array_equal(found.images, ALL)
        assert found.record == {"word": "kept"}
    assert len(calls) == 1
    assert isinstance(found.images, np.memmap)
    assert temporary(tmp_path) == []


def test_writing_into_the_images_leaves_the_entry_alone(tmp_path):
    found = cache.entry(tmp_path, "k", SHAPE, filler(), silent)
    found.images[:] = 255
    np.testing.assert_array_equal(cache.entry(tmp_path, "k", SHAPE, filler(), silent).images, ALL)


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 5)))
def test_rows_left_out_leave_no_gap(tmp_path_factory, left_out):
    folder = tmp_path_factory.mktemp("gaps")
    found = cache.entry(folder, "k", SHAPE, filler(sorted(left_out)), silent)
    np.testing.assert_array_equal(found.images, np.delete(ALL, sorted(left_out), axis=0))


def test_without_a_folder_the_images_are_in_memory():
    found = cache.entry(None, "k", SHAPE, filler([2]), silent)
    np.testing.assert_array_equal(found.images, np.delete(ALL, 2, axis=0))
    assert not isinstance(found.images, np.memmap)


def test_a_folder_that_takes_nothing_is_named(tmp_path):
    (tmp_path / "file").touch()
    lines = []
    found = cache.entry(tmp_path / "file" / "cache", "k", SHAPE, filler(), lines.append)
    np.testing.assert_array_equal(found.images, ALL)
    assert len(lines) == 1
    assert "nothing can be kept" in lines[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_build_leaves_nothing(tmp_path, error):
    def fill(file, rows):
        rows[:3] = 1
        raise error

    with pytest.raises(error):
        cache.entry(tmp_path, "k", SHAPE, fill, silent)
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(cache.entry(tmp_path, "k", SHAPE, filler(), silent).images, ALL)


def test_an_entry_appears_by_a_single_renaming(tmp_path, monkeypatch):
    """Interrupted at the very last step, with everything written, there is still no entry."""

    def interrupted(self, target):
        assert sorted(path.name for path in self.iterdir()) == ["entry.json", "images.u8"]
        assert not target.exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(cache.Path, "rename", interrupted)
        cache.entry(tmp_path, "k", SHAPE, filler(), silent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncate", "no json", "bad json", "other json", "no images"])
def test_a_damaged_entry_is_built_again(tmp_path, damage):
    cache.entry(tmp_path, "k", SHAPE, filler(), silent)
    images, record = tmp_path / "k" / "images.u8", tmp_path / "k" / "entry.json"
    match damage:
        case "truncate":
            os.truncate(images, 10)
        case "no json":
            record.unlink()
        case "bad json":
            record.write_text('{"shape": [6, 1')
        case "other json":
            record.write_text(json.dumps({"shape": ["a", 1, 2, 2], "record": {}}))
        case "no images":
            images.unlink()
    np.testing.assert_array_equal(cache.entry(tmp_path, "k", SHAPE, filler(), silent).images, ALL)


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(OSError, match=r"need 0\.0 GB .* Pass a smaller image_size"):
        cache.entry(tmp_path, "k", SHAPE, filler(), silent)


def test_whoever_comes_second_without_locks_takes_the_first_ones_entry(tmp_path):
    """The other builder finishes while this one is at work."""

    def fill(file, rows):
        rows[:] = 9
        cache._build(tmp_path, "k", SHAPE, filler())
        return [], {}

    found = cache.entry(tmp_path, "k", SHAPE, fill, silent)
    np.testing.assert_array_equal(found.images, ALL)
    assert temporary(tmp_path) == []


BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from esupcon.data import cache
folder, ready, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def fill(file, rows):
    print("building", flush=True)
    ready.touch()
    for i in range(len(rows)):
        rows[i] = i
        time.sleep(pause / len(rows))
    return [], {}
found = cache.entry(folder, "k", (6, 1, 2, 2), fill, lambda line: print(line, flush=True))
assert [int(row.mean()) for row in found.images] == list(range(6))
print("whole", flush=True)
"""


def builder(tmp_path, pause):
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, tmp_path / "cache", tmp_path / "ready", str(pause)],
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_processes_at_once_build_one_whole_entry(tmp_path):
    (tmp_path / "cache").mkdir()
    both = [builder(tmp_path, 0.6) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert all(process.returncode == 0 for process in both)
    assert all(lines[-1] == "whole" for lines in outputs)
    assert sum("building" in lines for lines in outputs) == 1  # the other one waited
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["k"]


def test_a_killed_build_is_no_entry_and_is_swept_up(tmp_path):
    (tmp_path / "cache").mkdir()
    victim = builder(tmp_path, 60)
    wait_for(tmp_path / "ready")
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert not (tmp_path / "cache" / "k").exists()
    left = temporary(tmp_path / "cache")
    assert any(name.endswith(".tmp") for name in left)
    # Building another entry clears it away too: nobody holds the lock of its key any more.
    cache.entry(tmp_path / "cache", "other", SHAPE, filler(), silent)
    assert temporary(tmp_path / "cache") == []


def test_a_living_build_is_not_swept_up(tmp_path):
    (tmp_path / "cache").mkdir()
    living = builder(tmp_path, 1.0)
    wait_for(tmp_path / "ready")
    cache.entry(tmp_path / "cache", "other", SHAPE, filler(), silent)
    output, _ = living.communicate(timeout=60)
    assert living.returncode == 0
    assert output.splitlines()[-1] == "whole"


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    """Many threads, each with a file description of its own, count under the lock."""
    inside, most = [], []

    def work():
        for _ in range(20):
            with exclusive(tmp_path / "lock", lambda: None) as held:
                assert held
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert max(most) == 1
    assert not (tmp_path / "lock").exists()


def test_a_lock_may_be_asked_for_without_waiting(tmp_path):
    with exclusive(tmp_path / "lock") as first, exclusive(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
    with exclusive(tmp_path / "absent" / "lock") as held:
        assert not held


def test_a_second_start_decodes_nothing(tmp_path, monkeypatch):
    root = class_folder(tmp_path / "set", {"a": 5, "b": 5})
    (root / "a" / "bad.png").write_bytes(b"bad")
    first = quietly(root, tmp_path)

    def never(*arguments):
        raise AssertionError("decoded again")

    monkeypatch.setattr(assemble, "DecodePool", never)
    second = quietly(root, tmp_path)
    np.testing.assert_array_equal(first.x_train, second.x_train)
    assert second.skipped == first.skipped
    assert second.fingerprint == first.fingerprint
    other_seed = quietly(root, tmp_path, seed=5)  # a split is drawn from the same decoded images
    assert other_seed.fingerprint != first.fingerprint


@pytest.mark.parametrize("change", ["content", "name", "size", "channels", "new file", "restored time"])
def test_what_changes_the_images_changes_the_key(tmp_path, monkeypatch, change):
    root = class_folder(tmp_path / "set", {"a": 4, "b": 4})
    quietly(root, tmp_path, image_size=8)
    options = {"image_size": 8}
    file = root / "a" / "000.png"
    match change:
        case "content":
            saved(file)
        case "name":
            file.rename(root / "a" / "zzz.png")
        case "size":
            options["image_size"] = 9
        case "channels":
            options["channels"] = 1
        case "new file":
            saved(root / "b" / "new.png")
        case "restored time":
            before = file.stat()
            content = bytearray(file.read_bytes())
            time.sleep(0.02)  # past the granularity of the file system's clock
            file.write_bytes(content)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    built = []
    real = assemble.DecodePool
    monkeypatch.setattr(assemble, "DecodePool", lambda helpers: built.append(1) or real(helpers))
    quietly(root, tmp_path, **options)
    assert built == [1]


def test_without_cache_nothing_is_kept(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 4, "b": 4})
    kept = quietly(root, tmp_path)
    loose = quietly(root, tmp_path, cache=False, cache_dir=tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    assert loose.fingerprint == kept.fingerprint


def test_a_large_part_is_mapped_not_copied(tmp_path, monkeypatch):
    root = class_folder(tmp_path / "set", {"a": 6, "b": 6})
    small = quietly(root, tmp_path)
    assert not isinstance(small.x_train, np.memmap)
    monkeypatch.setattr(assemble, "_IN_MEMORY", 100)
    large = quietly(root, tmp_path)
    assert isinstance(large.x_train, np.memmap)
    assert large.fingerprint == small.fingerprint
    assert not said(large, "left out")
