"""Commands in processes that can be killed, starved of memory, stripped of rights, and that start at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple


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
    """Runs requests one after the other; `kill_after` sends a signal after so many seconds."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("warm_command.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()  # it waits for a request and has nothing to lose
        self._process.wait(timeout=60)
        self._process.stdin.close()
        self._process.stdout.close()

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
        **options: Any,
    ) -> Ended:
        """`once`: the clock of `kill_after` starts when this file is there and not empty."""
        for name, value in options.items():
            setattr(request, name, value)
        with TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            if not request.out:
                request.out = f"{folder}/out"
            request.err = f"{folder}/err"
            pid = int(self._ask(request))
            ended = threading.Event()
            if kill_after is not None:
                later = threading.Thread(target=_signal_later, args=(pid, send, kill_after, once, ended), daemon=True)
                later.start()
            code = int(self._answer())
            ended.set()
            out = Path(request.out)
            return Ended(code, out.read_text() if out.is_file() else "", Path(request.err).read_text())

    def _ask(self, request: Request) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the warm process has ended"
        return line


def _signal_later(pid: int, number: signal.Signals, seconds: float, once: Path | None, ended: threading.Event) -> None:
    while once is not None and not (once.is_file() and once.stat().st_size):
        if ended.wait(0.002):
            return
    if not ended.wait(seconds):
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)
