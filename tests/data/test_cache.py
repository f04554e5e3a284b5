"""The cache of decoded images: complete or absent, after any interruption and for any number of builders."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from pictures import class_folder, quietly, saved

from esupcon.data import cache, decode
from esupcon.data.cache import cache_root, cached, decoded_root

SHAPE = (6, 1, 2, 2)
ALL = np.arange(24, dtype=np.uint8).reshape(SHAPE)


def fill(rows):
    rows[:] = ALL
    return {"word": "kept", "rows": {3: "x"}}


def build(folder, fill=fill, key="k", log=lambda line: None):
    return cached(folder, key, SHAPE, fill, log)


def test_entry_is_built_once_and_writing_to_the_images_does_not_change_it(tmp_path):
    for builder in (fill, None, None):
        images, record = build(tmp_path, builder)
        np.testing.assert_array_equal(images, ALL)
        assert record == {"word": "kept", "rows": {"3": "x"}}
        assert isinstance(images, np.memmap)
        images[:] = 255
    assert sorted(path.name for path in tmp_path.iterdir()) == [".k.lock", "k.json", "k.u8"]


def test_interrupted_build_leaves_nothing(tmp_path):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, interrupted)
    assert [path.name for path in tmp_path.iterdir()] == [".k.lock"]


def test_full_disk_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(OSError, match=r"need 0\.0 GB .* Pass a smaller image_size"):
        build(tmp_path)


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
    build(tmp_path / "cache", key="other")
    assert left.exists()  # it might be a living one
    os.utime(left, (0, 0))
    build(tmp_path / "cache", key="third")
    assert not left.exists()


@pytest.mark.parametrize("change", ["none", "content", "name", "size", "channels", "new file", "restored time"])
def test_images_are_decoded_again_if_and_only_if_they_may_differ(tmp_path, monkeypatch, change):
    root = class_folder(tmp_path / "set", {"a": 4, "b": 4})
    (root / "a" / "bad.png").write_bytes(b"bad")
    first = quietly(root, tmp_path, image_size=8)
    file, options = root / "a" / "000.png", {"image_size": 8}
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
            before, content = file.stat(), file.read_bytes()
            time.sleep(0.02)  # past the granularity of the file system's clock
            file.write_bytes(content)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    built = []
    real = decode.decode_images
    monkeypatch.setattr(decode, "decode_images", lambda *a, **k: built.append(1) or real(*a, **k))
    second = quietly(root, tmp_path, **options)
    assert built == [1] * (change != "none")
    if change == "none":
        assert (second.skipped, second.fingerprint) == (first.skipped, first.fingerprint)
        loose = quietly(root, tmp_path, cache=False, cache_dir=tmp_path / "unused", image_size=8)
        assert loose.fingerprint == first.fingerprint
        assert not (tmp_path / "unused").exists()


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
