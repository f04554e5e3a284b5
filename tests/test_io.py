"""Files: atomic, sealed, owned, bounded, locked."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from esupcon import _io
from esupcon._console import progress_bar


def test_failed_write_leaves_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    _io.write_bytes(tmp_path / "a", b"old")

    def fail(file: io.BufferedIOBase) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        _io.write_whole(tmp_path / "a", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_write_replaces_a_link_and_append_refuses_it(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("kept")
    for name in ("whole", "lines"):
        (tmp_path / name).symlink_to(foreign)
    _io.write_json(tmp_path / "whole", {"a": 1})
    with pytest.raises(ValueError, match="symbolic link"):
        _io.append_line(tmp_path / "lines", {"a": 1})
    assert foreign.read_text() == "kept"


def test_every_changed_character_of_a_sealed_file_is_noticed(tmp_path: Path) -> None:
    path = _io.write_sealed_json(tmp_path / "a.json", {"accuracy": 0.5, "names": ("x", "y"), "by": {1: 2}})
    assert _io.read_sealed_json(path) == {"accuracy": 0.5, "names": ["x", "y"], "by": {"1": 2}}
    text = path.read_text()
    for position, character in enumerate(text):
        if character.isalnum():
            path.write_text(text[:position] + ("7" if character != "7" else "8") + text[position + 1 :])
            with pytest.raises(ValueError, match=r"a\.json"):
                _io.read_sealed_json(path)


OURS = ("run.json", "checkpoint-*.pt", "model/config.json")


@pytest.mark.parametrize("name", ["run.json", "checkpoint-best.pt", "model/config.json"])
def test_foreign_files_under_our_names_are_refused_by_name_and_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("foreign")
    with pytest.raises(ValueError, match=name):
        _io.OwnedFolder(tmp_path, OURS).claim()
    _io.OwnedFolder(tmp_path, OURS).clear()
    assert (tmp_path / name).read_text() == "foreign"


def test_clear_removes_what_the_manifest_lists_and_nothing_else(tmp_path: Path) -> None:
    folder = _io.OwnedFolder(tmp_path / "run", OURS)
    folder.claim()
    temporary = [".run.json.0123abcd", "model/.config.json.0123abcd"]
    ours = ["run.json", "checkpoint-000001.pt", "model/config.json", *temporary]
    foreign = ["notes.txt", "checkpoint.pt.bak", "model/notes.txt", ".settings.json.deadbeef"]
    (tmp_path / "run/model").mkdir()
    for name in ours + foreign:
        (tmp_path / "run" / name).write_text("x")
    folder.claim()  # a second process of the same run
    assert (tmp_path / "run/run.json").exists()
    folder.clear()
    left = sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file())
    assert left == sorted([*foreign, _io.OWNED])


@pytest.mark.parametrize("greedy", ["*", "**/*", "runs", "photos/*.jpg"])
def test_clear_removes_nothing_for_a_manifest_that_lists_more(tmp_path: Path, greedy: str) -> None:
    """It may come with the folder of a stranger, or be that of a store of runs."""
    run = tmp_path / "run"
    for name in ("thesis.tex", ".thesis.tex.0123abcd", "photos/a.jpg", "runs/0123/result.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine")
    _io.write_sealed_json(run / _io.OWNED, {"files": [greedy]})
    folder = _io.OwnedFolder(run, OURS)
    folder.claim()
    folder.clear()
    assert sum(path.is_file() and path.read_text() == "mine" for path in run.rglob("*")) == 4


def test_link_in_place_of_a_folder_of_ours_is_refused(tmp_path: Path) -> None:
    folder = _io.OwnedFolder(tmp_path / "run", OURS)
    folder.claim()
    (tmp_path / "elsewhere").mkdir()
    (folder.path / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"files or links .* did not write: model\."):
        folder.claim()


@pytest.mark.parametrize("names", [["../x"], ["/etc/passwd"], [1], "run.json", [""]])
def test_forged_manifest_removes_nothing(tmp_path: Path, names: object) -> None:
    (tmp_path / "x").write_text("kept")
    (tmp_path / "run").mkdir()
    _io.write_sealed_json(tmp_path / "run" / _io.OWNED, {"files": names})
    with pytest.raises(ValueError, match="does not list file names"):
        _io.OwnedFolder(tmp_path / "run", OURS).clear()
    assert (tmp_path / "x").exists()


def test_lock_is_exclusive_and_ends_with_its_process(tmp_path: Path) -> None:
    code = f"""
import sys, time
from esupcon._io import locked
with locked({str(tmp_path / "lock")!r}) as held:
    print(held, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "True"
        with _io.locked(tmp_path / "lock") as held:
            assert held is False
        holder.kill()
        holder.wait()
        with _io.locked(tmp_path / "lock") as held:
            assert held is True


def test_arrays_are_bounded_by_memory_in_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.zeros(600, np.uint8), b=np.zeros(600, np.uint8))
    monkeypatch.setattr(_io, "memory_budget", lambda: 1000)
    assert set(_io.read_arrays(path, ["a"])) == {"a"}
    with pytest.raises(_io.NotPlainArrays, match="more than fits into memory"):
        _io.read_arrays(path, ["a", "b"])
    with pytest.raises(ValueError, match=r"the table needs .* GB of memory; this machine allows"):
        _io.check_memory(1001, "the table")


@pytest.mark.parametrize(
    ("own", "file", "content", "allowed"),
    [
        ("0::/\n", "memory.max", "1000\n", 1000),
        ("0::/a/b\n", "a/b/memory.max", "1000\n", 1000),
        ("0::/a/b\n", "a/memory.max", "1000\n", 1000),
        ("0::/a/b\n", "a/b/memory.max", "max\n", None),
        ("0::/a/b\n", "a/c/memory.max", "1000\n", None),
        ("5:memory:/a\n3:cpu:/\n", "memory/a/memory.limit_in_bytes", "1000\n", 1000),
        ("0::/../..\n", "memory.max", "1000\n", 1000),
        (None, "memory/memory.limit_in_bytes", "1000\n", 1000),
    ],
)
def test_memory_is_bounded_by_the_cgroup_and_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, file: str, content: str, allowed: int | None
) -> None:
    machine = _io.os.sysconf("SC_PAGE_SIZE") * _io.os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(_io, "_CGROUPS", tmp_path / "fs")
    monkeypatch.setattr(_io, "_OWN_CGROUPS", tmp_path / "own")
    (tmp_path / "fs" / file).parent.mkdir(parents=True)
    (tmp_path / "fs" / file).write_text(content)
    if own is not None:
        (tmp_path / "own").write_text(own)
    assert _io.memory_budget() == (allowed or machine)


# --- Progress bars are for terminals only ----------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("total", [10, None])
def test_progress_bar_is_shown_on_a_terminal(monkeypatch, capsys, in_bytes, total):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_bar("decoding", total, in_bytes=in_bytes) as advance:
        advance(4)
        advance(6)
    assert "decoding" in sys.stderr.getvalue()
    assert capsys.readouterr().out == ""


def test_progress_bar_is_not_written_to_a_file(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("decoding", 10) as advance:
        advance(10)
    assert sys.stderr.getvalue() == ""
