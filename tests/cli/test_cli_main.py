"""Help, errors, exit codes, signals, and the commands methods and bench."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esupcon import __version__
from esupcon.cli import app, as_typed, one_line
from esupcon.cli.stopping import Stopped, Stopper
from esupcon.methods import METHODS

COMMANDS = ["train", "evaluate", "predict", "calibrate", "export"]
COMMANDS += ["demo", "reproduce", "status", "report", "bench", "methods"]


def test_every_command_has_an_example(esupcon) -> None:
    nothing = esupcon(code=2)
    assert "Usage: esupcon" in nothing.out + nothing.err
    printed = esupcon("--help")
    assert [command.callback.__name__ for command in app.registered_commands if command.callback] == COMMANDS
    for command in COMMANDS:
        assert command in printed.out
        shown = esupcon(command, "--help")
        assert f"Example: esupcon {command}" in " ".join(shown.out.split())


HELP = "from esupcon.cli import main; main(['{}--help'])"
#: Code, and the modules that it must not import.
IMPORTS = {
    "import esupcon": "torch sklearn",
    "import esupcon.data": "torch sklearn pyarrow rich PIL numpy",
    "import esupcon.data; esupcon.data.load": "torch sklearn pyarrow rich",
    "import esupcon.probability, esupcon.doctor": "torch sklearn scipy matplotlib",
    "import esupcon.spec, esupcon.training.result, esupcon.experiments.store": "torch",
    "from esupcon.experiments.plan import make_plan; make_plan('full', 'paper')": "torch",
    "import esupcon.losses": "sklearn matplotlib lightning_fabric PIL rich typer pydantic torch._dynamo",
    HELP.format(""): "torch scipy sklearn PIL plotly matplotlib",
    HELP.format("train', '"): "torch scipy sklearn PIL plotly matplotlib",
}


@pytest.mark.parametrize("code", IMPORTS)
def test_an_import_brings_nothing_heavy(code: str) -> None:
    program = f"{code}\nimport sys; print(*set({IMPORTS[code].split()}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_good_as_none(closed: str, tmp_path: Path) -> None:
    """Python has no object for it, and the next file that is opened would take its number."""
    for words, code in (("methods", 0), ("predict absent x --format xml", 2)):
        command = f"exec {sys.executable} -P -m esupcon {words} {closed}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
        assert ("esupcon: --format" in done.stderr) == (code == 2 and "2>" not in closed)
        assert "To use one" not in done.stdout, "messages do not go where results go"


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "esupcon", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"esupcon {__version__}\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "/x/y: the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "/x: Permission denied. Choose a writable place"),
        (FileNotFoundError("no model at x. Pass one."), "no model at x. Pass one."),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "/x: No such file or directory"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"), "not enough memory"),
        (ModuleNotFoundError("timm is not installed"), "timm is not installed"),
        (ValueError("a\x1b[31mb\nc\u202e"), "a\N{REPLACEMENT CHARACTER}[31mb c\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_errors_of_the_system_are_one_line(error: Exception, words: str) -> None:
    assert words in (one_line(error) or "")


def test_bugs_keep_their_traceback(esupcon, tmp_path: Path) -> None:
    assert not any(one_line(error) for error in (RuntimeError("x"), KeyError("x"), TypeError("x"), AssertionError()))
    with pytest.raises(FileNotFoundError, match="Did you mean 'digits'"):
        esupcon("--debug", "train", "dogits", "--out", tmp_path)


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("image_column 'a' is not there; pass image_column.", "--image-column 'a' is not there; pass --image-column."),
        ("part must be one of a, b", "--part must be one of a, b"),
        ("Pass strict=True.", "Pass --strict."),
        ("Use part='all' or part=\"a-b\".", "Use --part all or --part a-b."),
        ("Pass strict=False.", "Pass --no-strict."),
        ("Pass image_column=where, or part=all.", "Pass --image-column where, or --part all."),
        *((text, text) for text in ("the strict part of 'image_column' in x/image_column.csv", "my_image_column")),
    ],
)
def test_messages_name_options_as_typed(message: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"image_column": "--image-column", "part": "--part", "strict": "--strict"}
    monkeypatch.setattr("esupcon.cli.output.OPTIONS", names)
    assert as_typed(message) == typed


def test_a_signal_before_training_stops_at_once_and_one_during_it_is_asked_for() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped, Stopper():
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.exit_code == 143
    with pytest.raises(Stopped), Stopper() as stopper:
        assert not stopper()
        signal.raise_signal(signal.SIGTERM)
        assert stopper()
        assert stopper.exit_code == 143
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_after_the_last_step_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring and saving never call the stopper: after a grace period the signal stops them."""
    monkeypatch.setattr("esupcon.cli.stopping.GRACE_SECONDS", 0.05)
    started = time.monotonic()
    with pytest.raises(Stopped), Stopper() as stopper:
        stopper()
        signal.raise_signal(signal.SIGTERM)
        time.sleep(30)
    assert time.monotonic() - started < 10
    monkeypatch.setattr("esupcon.cli.stopping.GRACE_SECONDS", 30)
    with pytest.raises(Stopped), Stopper() as stopper:  # training ends by itself before anything asks
        stopper()
        signal.raise_signal(signal.SIGTERM)


def test_an_answered_signal_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving a checkpoint may take longer than the grace period."""
    monkeypatch.setattr("esupcon.cli.stopping.GRACE_SECONDS", 0.05)
    with pytest.raises(ZeroDivisionError), Stopper() as stopper:
        stopper()
        signal.raise_signal(signal.SIGTERM)
        assert stopper()
        time.sleep(0.2)
        raise ZeroDivisionError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Stopper(), Stopper() as stopper:
            signal.raise_signal(number)
            assert not stopper()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def _default_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # also where the tests themselves run in the background


@pytest.mark.parametrize("delay", [0.03, 0.2])
def test_an_early_signal_gives_no_traceback(delay: float, tmp_path: Path) -> None:
    """The interpreter itself needs about 0.02 s before our first line runs."""
    script = "import signal, sys; from esupcon.__main__ import main; open(sys.argv.pop(), 'w'); sys.exit(main())"
    words = [sys.executable, "-P", "-c", script, "train", "digits", "--out", str(tmp_path), str(tmp_path / "ready")]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=_default_sigint)  # noqa: PLW1509
    while not (tmp_path / "ready").exists():
        time.sleep(0.002)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "esupcon: interrupted."
    assert "Traceback" not in err


def test_bench_and_methods(esupcon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["esupcon.cli.bench"], "SIZES", (40, 60))
    monkeypatch.setattr(sys.modules["esupcon.cli.bench"], "TIMED_SECONDS", 0.01)
    printed = esupcon("bench", "--encoder", "mlp-16x1", "--image-size", "8", "--batch-size", "20")
    assert all(word in printed.out for word in ("ESupCon", "40", "60", "views", "network", "loss", "images/s"))
    printed = esupcon("methods")
    assert all(key in printed.out for key in METHODS)


def test_output_to_a_closed_pipe_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-P", "-m", "esupcon", "methods"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""
