from __future__ import annotations

import errno
import subprocess
import sys
import time

import pytest

from esupcon import __version__
from esupcon.cli import app
from esupcon.cli.mistakes import is_mistake, one_line
from esupcon.cli.output import printable
from esupcon.methods import METHODS

COMMANDS = (
    "train",
    "evaluate",
    "predict",
    "calibrate",
    "demo",
    "export",
    "methods",
    "reproduce",
    "status",
    "report",
    "bench",
)


def test_every_command_has_an_example(esupcon) -> None:
    said = esupcon("--help")
    assert said.code == 0
    assert {command.callback.__name__ for command in app.registered_commands if command.callback} == set(COMMANDS)
    for command in COMMANDS:
        assert command in said.out
        shown = esupcon(command, "--help")
        assert shown.code == 0
        assert f"Example: esupcon {command}" in " ".join(shown.out.split())


def test_no_words_show_help_and_are_a_mistake(esupcon) -> None:
    said = esupcon()
    assert said.code == 2
    assert "Usage: esupcon" in said.out + said.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("trian",), "No such command 'trian'"),
        (("train",), "Missing argument 'DATA'. See esupcon train --help."),
        (("train", "digits"), "Missing option '--out'"),
        (("train", "digits", "--out", "x", "--epoch", "3"), "No such option: --epoch"),
        (("methods", "--colour"), "No such option"),
    ],
)
def test_usage_mistakes_are_one_line(esupcon, words: tuple[str, ...], complaint: str) -> None:
    said = esupcon(*words)
    assert said.code == 2
    assert said.err.startswith("esupcon: ")
    assert said.err.count("\n") == 1
    assert complaint in said.err


def test_methods(esupcon) -> None:
    said = esupcon("methods")
    assert all(key in said.out for key in METHODS)
    assert [one["key"] for one in esupcon("methods", "--json").json] == list(METHODS)


def test_version_is_quick_and_needs_no_torch() -> None:
    code = (
        "import sys; from esupcon.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'pydantic'} & set(sys.modules); print(sorted(heavy)); sys.exit(code)"
    )
    for words, expected in ((["--version"], f"esupcon {__version__}"), (["train", "--help"], "Usage: esupcon train")):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert expected in done.stdout
        assert "torch" not in done.stdout.splitlines()[-1]


def test_the_module_is_the_command() -> None:
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "esupcon", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"esupcon {__version__}\n"
    assert time.monotonic() - started < 10  # a second, on a machine that is not shared


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "/x/y: the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "/x: Permission denied. Choose a place"),
        (FileNotFoundError("no model at x. Pass one."), "no model at x. Pass one."),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "/x: No such file or directory"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"), "not enough memory"),
        (ModuleNotFoundError("timm is not installed"), "timm is not installed"),
    ],
)
def test_what_the_system_refuses(error: Exception, words: str) -> None:
    assert is_mistake(error)
    assert words in one_line(error)


def test_our_own_mistakes_keep_their_traceback() -> None:
    assert not any(is_mistake(error) for error in (RuntimeError("x"), KeyError("x"), TypeError("x"), AssertionError()))


def test_names_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31mb\nc\x07") == "a\N{REPLACEMENT CHARACTER}[31mb c\N{REPLACEMENT CHARACTER}"
