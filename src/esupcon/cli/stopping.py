"""Exit codes, Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

PARTIAL, MISTAKE, INTERRUPTED, TERMINATED = 1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM
#: What each exit code means.
EXIT_CODES = {
    0: "done",
    PARTIAL: "partly done: some runs failed or some files could not be read; each is named on standard error",
    MISTAKE: "an error that the caller can correct, described in one line on standard error; or all runs failed",
    INTERRUPTED: "stopped by Ctrl-C; a training run saves a checkpoint, and the same command continues it",
    TERMINATED: "stopped by SIGTERM; otherwise the same as Ctrl-C",
}
GRACE_SECONDS = 2.0


class Stopped(BaseException):
    """A signal asked the command to end. Not an Exception, so that no handler swallows it."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number


class Stopper:
    """Raise `Stopped` on Ctrl-C and SIGTERM inside a `with` block, or let training stop between two steps.

    Training calls the stopper, its `should_stop`, after every step. From then on the first signal is only recorded, and
    training saves and stops at the next call. If no call follows within `GRACE_SECONDS` (while measuring, while
    saving), or if a second signal arrives, `Stopped` is raised. A signal that the caller ignores stays ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._in_training = False
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        self._in_training = True
        if self.signal is not None:
            self._cancel()
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal or 0)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers from there only
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None and self.signal is not None:  # it arrived too late to stop anything, and is still obeyed
            raise Stopped(self.signal)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.signal is not None
        self.signal = number
        if again or not self._in_training:
            raise Stopped(number)
        self._timer = threading.Timer(GRACE_SECONDS, os.kill, (os.getpid(), number))
        self._timer.daemon = True
        self._timer.start()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
