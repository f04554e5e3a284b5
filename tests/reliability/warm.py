"""Commands in forks of a warm process, which can be killed, starved of memory and stripped of rights.

Starting Python with torch takes seconds; a fork of a process that has imported everything takes milliseconds, so a
test can afford to kill dozens. The process runs this file and reads requests as lines of JSON; its answers are the pid
of the fork, then its exit code. Processes of Python that a command starts, such as workers, are forks, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

COMMAND = Path(sys.executable).with_name("esupcon")


@dataclass
class Request:
    """`words` for `esupcon`, or a `script`. `more_memory` bounds what it may still allocate; it `obeys_permissions`
    even as root; it is killed before the file operation `die_at`, {"folder", "number", "torn"}."""

    words: list[str] = field(default_factory=list)
    script: str | None = None
    more_memory: int | None = None
    obeys_permissions: bool = False
    die_at: dict[str, Any] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    out: str = ""
    err: str = ""


class Ended(NamedTuple):
    """`code` is negative where a signal ended it, as in subprocess."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.splitlines()[-1] if self.err.strip() else ""


class Warm:
    """Runs requests one after the other; `kill_after` sends a signal after that many seconds."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def close(self) -> None:
        self._process.kill()  # it waits for a request and has nothing to lose
        self._process.communicate(timeout=60)

    def esupcon(self, *words: object, **options: Any) -> Ended:
        return self._run(Request([str(word) for word in words]), **options)

    def script(self, text: str, **options: Any) -> Ended:
        return self._run(Request(script=text), **options)

    def _run(
        self,
        request: Request,
        *,
        kill_after: float | None = None,
        send: signal.Signals = signal.SIGKILL,
        once: Path | None = None,
        lines: int = 1,
        **options: Any,
    ) -> Ended:
        """`once`: the clock of `kill_after` starts when this file has that many `lines`."""
        for name, value in options.items():
            setattr(request, name, value)
        with TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            request.out, request.err = request.out or f"{folder}/out", f"{folder}/err"
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(asdict(request)) + "\n")
            self._process.stdin.flush()
            pid, ended = self._answer(), threading.Event()
            if kill_after is not None:
                later = threading.Thread(target=_signal_later, args=(pid, send, kill_after, once, lines, ended))
                later.start()
            code = self._answer()
            ended.set()
            out = Path(request.out)
            return Ended(code, out.read_text() if out.is_file() else "", Path(request.err).read_text())

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the warm process has ended"
        return int(line)


def _signal_later(
    pid: int, number: signal.Signals, seconds: float, once: Path | None, lines: int, ended: threading.Event
) -> None:
    while once is not None and not (once.is_file() and once.read_bytes().count(b"\n") >= lines):
        if ended.wait(0.002):
            return
    if not ended.wait(seconds):
        for one in [*children_of(pid), pid] if number == signal.SIGKILL else [pid]:  # as if the machine went down
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(one, number)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process and its children started; threads have children of their own."""
    files = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for text in files for child in text.split()]
    return [*(each for child in children for each in children_of(child)), *children]


# --- Inside the warm process -----------------------------------------------------------------------------------------


def _serve() -> None:
    # Imported once, before the forks.
    import filelock  # noqa: F401
    import lightning_fabric  # noqa: F401
    import sklearn.covariance
    import sklearn.datasets  # noqa: F401
    import torch

    import esupcon.classifier.evaluation
    import esupcon.cli
    import esupcon.estimator
    import esupcon.experiments.measures
    import esupcon.experiments.worker
    import esupcon.report.run
    import esupcon.training.pipeline  # noqa: F401

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    subprocess.Popen = _ForkingPopen  # type: ignore[misc]
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _end_with(partial(_obey, Request(**json.loads(line))))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _end_with(program: Callable[[], int]) -> None:
    """End this process with the exit code that a program returns."""
    code = 70  # an unexpected error
    try:
        code = program()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 74
        os._exit(code)


def _obey(request: Request) -> int:
    from esupcon.cli import main

    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, request.out, 1 | 64), (2, request.err, 1 | 64)):
        os.dup2(os.open(name, flags, 0o644), number)
    os.environ.update(request.environment)
    if request.more_memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + request.more_memory,) * 2)
    if request.obeys_permissions:
        _give_up_overriding_permissions()
    if request.die_at is not None:
        _die_at_file_operation(**request.die_at)
    if request.script is not None:
        exec(request.script, {"__name__": "__main__"})
        return 0
    sys.argv = [str(COMMAND), *request.words]  # from which further processes of a run are started
    return main(request.words)


class _ForkingPopen(subprocess.Popen[Any]):
    """Start workers, and further processes of a run, as forks of this process; other programs as ever."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        if "esupcon.experiments.worker" in words or str(COMMAND) in words:
            options["preexec_fn"] = partial(_become, words, options.get("env") or dict(os.environ))
        super().__init__(words, **options)


def _become(words: Sequence[str], environment: dict[str, str]) -> None:
    """Do what Python would do with these words; called in a new process, which never returns from here."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.closerange(3, 1024)  # among them the pipe over which the parent waits for another program
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    if str(COMMAND) not in words:
        from esupcon.experiments.worker import main as work

        _end_with(lambda: work() or 0)
    from esupcon.cli import main

    sys.argv = list(words[words.index(str(COMMAND)) :])
    _end_with(lambda: main(sys.argv[1:]))


def _die_at_file_operation(folder: str, number: int, torn: bool) -> None:
    """SIGKILL before the operation of this number that changes files below `folder`; what is `torn` loses its second
    half. Opening a file to read it changes nothing, so that a kill before it is one after the operation before."""
    count, events = 0, ("os.rename",) if torn else ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in events or not str(arguments[0]).startswith(folder):
            return
        if event == "open" and not (arguments[2] or 0) & writes:
            return
        count += 1
        if count == number:
            file = Path(arguments[0])
            if torn and file.is_file():
                os.truncate(file, file.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _give_up_overriding_permissions() -> None:
    """Root may read and write everything; without these capabilities it is restricted like other users."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    for i in range(3):
        sets[i] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


if __name__ == "__main__":
    _serve()
