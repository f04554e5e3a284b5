"""The helper process of `DecodePool`: chunks of images come in on stdin, go into a shared file, reports go out.

It is started as a fresh interpreter rather than forked or spawned by `multiprocessing`: forking a process
that runs torch's threads may deadlock, and spawning runs the user's script again where it has no main guard.
"""

import os
import pickle
import signal
import sys

import numpy as np
from numpy.typing import NDArray

from esupcon.data.decode import decode_rows


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    reports = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # C libraries that print must not write into the reports
    os.dup2(silence, 2)
    mapped_path, rows = "", np.empty(0, np.uint8)
    while True:
        try:
            # The pipe is the parent's own: nothing from outside reaches this pickle but as str and bytes.
            path, shape, start, encoded, spec = pickle.load(sys.stdin.buffer)
        except EOFError:  # the parent is done, or gone
            return
        if path != mapped_path:
            mapped_path, rows = path, _mapped(path, shape)
        report = decode_rows(encoded, rows[start : start + len(encoded)], spec)
        pickle.dump(report, reports)
        reports.flush()


def _mapped(path: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.memmap(path, np.uint8, mode="r+", shape=shape)


if __name__ == "__main__":
    main()
