"""Progress bars are for terminals only."""

import io
import sys

import pytest

from esupcon._console import progress_bar


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
