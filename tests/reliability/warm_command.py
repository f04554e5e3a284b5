"""A process that has everything imported and runs one request after the other, each in a fork of its own.

Starting Python with torch takes seconds; a fork takes milliseconds, so a test can afford to kill dozens. A request is
a line of JSON (see `Request` in warm.py); the answers are the pid of the fork, then its exit code.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import lightning_fabric
import sklearn.covariance
import sklearn.datasets
import torch

import esupcon.classifier.evaluation
import esupcon.cli
import esupcon.estimator
import esupcon.training.pipeline
from esupcon.cli import main

_FOR_THE_FORKS = (esupcon, lightning_fabric, sklearn)  # imported once, before the forks
_FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")


def _die_at_file_operation(folder: str, number: int, torn: bool) -> None:
    """SIGKILL before the operation of this number on files below `folder`; what is `torn` loses its second half."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in _FILE_EVENTS or not str(arguments[0]).startswith(folder):
            return
        if torn and event != "os.rename":
            return
        count += 1
        if count == number:
            file = Path(arguments[0])
            if torn and file.is_file():
                os.truncate(file, file.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _give_up_overriding_permissions() -> None:
    """Root reads and writes what nobody may; without the capabilities for it, root is bound like everyone."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    override, read_search = 1 << 1, 1 << 2
    for i in range(3):
        sets[i] &= ~(override | read_search)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _run(request: dict[str, Any]) -> int:
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, request["out"], 1 | 64), (2, request["err"], 1 | 64)):
        os.dup2(os.open(name, flags, 0o644), number)
    os.environ.update(request["environment"])
    if request["more_memory"] is not None:
        limit = _address_space() + request["more_memory"]
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if request["obeys_permissions"]:
        _give_up_overriding_permissions()
    if request["die_at"] is not None:
        _die_at_file_operation(**request["die_at"])
    if request["script"] is not None:
        exec(request["script"], {"__name__": "__main__"})
        return 0
    sys.argv = ["esupcon", *request["words"]]
    return main(request["words"])


def _in_fork(request: dict[str, Any]) -> None:
    code = 70  # an error that nobody expected
    try:
        code = _run(request)
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


def serve() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _in_fork(request)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
