"""The bar is for terminals."""

import io
import sys

import pytest
from pictures import class_folder, quietly

from esupcon.data.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("total", [10, None])
def test_a_terminal_sees_a_bar(monkeypatch, in_bytes, total):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_bar("decoding", total, in_bytes=in_bytes) as advance:
        advance(4)
        advance(6)
    assert "decoding" in sys.stderr.getvalue()


def test_a_file_sees_none(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("decoding", 10) as advance:
        advance(10)
    assert sys.stderr.getvalue() == ""


def test_nothing_goes_to_standard_output(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    quietly(class_folder(tmp_path / "set", {"a": 5, "b": 5}), tmp_path)
    assert "decoding images" in sys.stderr.getvalue()
    assert capsys.readouterr().out == ""
