"""The cache of decoded images: complete or absent, after any interruption and for any number of builders."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from pictures import class_folder, quietly, saved

from esupcon.data import cache, dataset
from esupcon.data.cache import cache_root, cached, decoded_root

SHAPE = (6, 1, 2, 2)
ALL = np.arange(24, dtype=np.uint8).reshape(SHAPE)


def filler(calls=None):
    def fill(rows):
        rows[:] = ALL
        if calls is not None:
            calls.append(1)
        return {"word": "kept", "rows": {3: "x"}}

    return fill


def silent(line):
    pass


def test_entry_is_built_once(tmp_path):
    calls = []
    for _ in range(3):
        images, record = cached(tmp_path, "k", SHAPE, filler(calls), silent)
        np.testing.assert_array_equal(images, ALL)
        assert record == {"word": "kept", "rows": {"3": "x"}}
    assert len(calls) == 1
    assert isinstance(images, np.memmap)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".k.lock", "k.json", "k.u8"]


def test_writing_to_the_images_does_not_change_the_entry(tmp_path):
    cached(tmp_path, "k", SHAPE, filler(), silent)[0][:] = 255
    np.testing.assert_array_equal(cached(tmp_path, "k", SHAPE, filler(), silent)[0], ALL)


def test_without_a_writable_folder_the_images_are_in_memory(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    lines = []
    for folder in (None, tmp_path / "file" / "cache"):
        images, record = cached(folder, "k", SHAPE, filler(), lines.append)
        np.testing.assert_array_equal(images, ALL)
        assert not isinstance(images, np.memmap)
        assert record == {"word": "kept", "rows": {"3": "x"}}
    assert len(lines) == 1
    assert "is not writable" in lines[0]
    monkeypatch.setattr("esupcon._io.memory_budget", lambda: 10)
    with pytest.raises(ValueError, match="an array of 6 images of 2x2 needs"):
        cached(None, "k", SHAPE, filler(), silent)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_build_leaves_nothing(tmp_path, error):
    def fill(rows):
        rows[:3] = 1
        raise error

    with pytest.raises(error):
        cached(tmp_path, "k", SHAPE, fill, silent)
    assert [path.name for path in tmp_path.iterdir()] == [".k.lock"]
    np.testing.assert_array_equal(cached(tmp_path, "k", SHAPE, filler(), silent)[0], ALL)


def test_images_without_their_record_are_no_entry(tmp_path, monkeypatch):
    """The record is written last: a process killed before it has built nothing."""
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(cache, "write_sealed_json", lambda *arguments: exec("raise KeyboardInterrupt"))
        cached(tmp_path, "k", SHAPE, filler(), silent)
    assert (tmp_path / "k.u8").exists()
    calls = []
    cached(tmp_path, "k", SHAPE, filler(calls), silent)
    assert calls == [1]


@pytest.mark.parametrize("damage", ["truncate", "pixel", "no json", "bad json", "other json", "no images"])
def test_damaged_entry_is_built_again(tmp_path, damage):
    cached(tmp_path, "k", SHAPE, filler(), silent)
    images, record = tmp_path / "k.u8", tmp_path / "k.json"
    match damage:
        case "truncate":
            os.truncate(images, 10)
        case "pixel":
            images.write_bytes(b"x" + images.read_bytes()[1:])
        case "no json":
            record.unlink()
        case "bad json":
            record.write_text('{"shape": [6, 1')
        case "other json":
            record.write_text(json.dumps({"shape": ["a", 1, 2, 2], "record": {}}))
        case "no images":
            images.unlink()
    lines = []
    np.testing.assert_array_equal(cached(tmp_path, "k", SHAPE, filler(), lines.append)[0], ALL)
    assert any("damaged; decoding them again" in line for line in lines) == (damage != "no json")


def test_full_disk_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(OSError, match=r"need 0\.0 GB .* Pass a smaller image_size"):
        cached(tmp_path, "k", SHAPE, filler(), silent)


BUILDER = """
import sys, time
from pathlib import Path
from esupcon.data import cache
folder, ready, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def fill(rows):
    print("building", flush=True)
    ready.touch()
    for i in range(len(rows)):
        rows[i] = i
        time.sleep(pause / len(rows))
    return {}
found = cache.cached(folder, "k", (6, 1, 2, 2), fill, lambda line: print(line, flush=True))
assert [int(row.mean()) for row in found[0]] == list(range(6))
print("whole", flush=True)
"""


def builder(tmp_path, pause):
    command = [sys.executable, "-P", "-c", BUILDER, tmp_path / "cache", tmp_path / "ready", str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_build_one_entry(tmp_path):
    (tmp_path / "cache").mkdir()
    both = [builder(tmp_path, 0.6) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert all(process.returncode == 0 for process in both)
    assert all(lines[-1] == "whole" for lines in outputs)
    assert sum("building" in lines for lines in outputs) == 1  # the other one waited
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".k.lock", "k.json", "k.u8"]


def test_killed_build_is_no_entry_and_is_removed_later(tmp_path):
    (tmp_path / "cache").mkdir()
    victim = builder(tmp_path, 60)
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    (left,) = (tmp_path / "cache").glob(".*.tmp")
    cached(tmp_path / "cache", "other", SHAPE, filler(), silent)
    assert left.exists()  # it might be a living one
    os.utime(left, (0, 0))
    cached(tmp_path / "cache", "third", SHAPE, filler(), silent)
    assert not left.exists()


def test_second_start_decodes_nothing(tmp_path, monkeypatch):
    root = class_folder(tmp_path / "set", {"a": 5, "b": 5})
    (root / "a" / "bad.png").write_bytes(b"bad")
    first = quietly(root, tmp_path)
    monkeypatch.setattr(dataset, "decode_images", None)
    second = quietly(root, tmp_path)
    assert second.skipped == first.skipped
    assert second.fingerprint == first.fingerprint
    assert quietly(root, tmp_path, split_seed=5).fingerprint != first.fingerprint  # drawn from the same images


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
    real = dataset.decode_images
    monkeypatch.setattr(dataset, "decode_images", lambda *a, **k: built.append(1) or real(*a, **k))
    quietly(root, tmp_path, **options)
    assert built == [1]


def test_without_cache_nothing_is_kept(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 4, "b": 4})
    kept = quietly(root, tmp_path)
    loose = quietly(root, tmp_path, cache=False, cache_dir=tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    assert loose.fingerprint == kept.fingerprint


def test_places_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("ESUPCON_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "esupcon"
    assert decoded_root(None) == tmp_path / "esupcon" / "decoded"
    monkeypatch.setenv("ESUPCON_DATA", str(tmp_path / "data"))
    assert decoded_root(None) == tmp_path / "data" / "decoded"
    assert decoded_root(tmp_path / "mine") == tmp_path / "mine"
    monkeypatch.delenv("ESUPCON_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == tmp_path / ".cache" / "esupcon"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_root() == tmp_path / "Library" / "Caches" / "esupcon"


def test_without_a_home_folder_images_are_decoded_and_named_sets_need_a_folder(tmp_path, monkeypatch):
    """As in a container whose user has no entry in the list of users."""
    root = class_folder(tmp_path / "set", {"a": 4, "b": 4})
    for variable in ("HOME", "XDG_CACHE_HOME", "ESUPCON_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: exec("raise KeyError(uid)"))
    assert cache_root() is None
    assert decoded_root(None) is None
    data = quietly(root, tmp_path, cache_dir=None, data_dir=None)
    assert any("Set ESUPCON_DATA" in line for line in data.notes)
    for source, message in (
        ("cifar10", "Pass data_dir, or set ESUPCON_DATA"),
        ("~/photos", "the home folder is unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            quietly(source, tmp_path, data_dir=None)
