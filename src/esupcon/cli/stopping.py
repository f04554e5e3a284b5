"""Ctrl-C and SIGTERM while training: the first asks the run to save and stop, the second does not wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from esupcon.cli import exit_codes


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is for SIGINT."""


class Interrupted(BaseException):
    """SIGINT, under a name that the command-line library does not turn into a silent exit."""


@contextmanager
def interruptions_are_ours() -> Iterator[None]:
    """Ctrl-C raises `Interrupted`, unless it is being ignored, as in a job in the background."""
    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


class Stopper:
    """Asked after every step of training whether to stop. Before the first question there is nothing to save, so
    a signal then ends the command at once; so does a second signal at any time."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._was_asked = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        self._was_asked = True
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return exit_codes.TERMINATED if self.signal == signal.SIGTERM else exit_codes.INTERRUPTED

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers from there alone
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.signal is not None
        self.signal = number
        if again or not self._was_asked:
            raise Terminated if number == signal.SIGTERM else Interrupted
