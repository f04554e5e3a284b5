"""Decoding on every core: this process works, and so do helper processes that write into the same file."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from esupcon.data.decode import DecodeSpec, Encoded, decode_rows

_CHUNK_SECONDS = 0.02  # long beside the trip to a helper and back, short enough to share out evenly at the end
_FIRST_CHUNK, _LARGEST_CHUNK = 8, 256
# What an image costs, roughly; a helper takes about a tenth of a second to start.
_SECONDS_PER_IMAGE = 1e-4
_SECONDS_PER_BYTE = 1e-8
_WORTH_A_HELPER = 0.4

Chunk = tuple[int, list[Encoded]]


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def helpers_for(n_images: int, n_bytes: int, workers: int | None) -> int:
    """Helper processes beside this one: none for a small job, else one for each further core."""
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, or None for all cores; got {workers}")
    seconds = n_images * _SECONDS_PER_IMAGE + n_bytes * _SECONDS_PER_BYTE
    wanted = (workers or usable_cores()) - 1
    return min(wanted, int(seconds / _WORTH_A_HELPER))


class Findings:
    """What was met while decoding: {row: reason} of the unreadable images, and the number of animations."""

    def __init__(self) -> None:
        self.unreadable: dict[int, str] = {}
        self.animated = 0

    def add(self, start: int, report: tuple[dict[int, str], int]) -> None:
        unreadable, animated = report
        self.unreadable.update({start + i: reason for i, reason in unreadable.items()})
        self.animated += animated


class DecodePool:
    """`helpers` further processes, started on entering and ended on leaving the `with` block.

    A helper that cannot start or dies costs speed, not images: its chunk is taken up by this process.
    """

    def __init__(self, helpers: int) -> None:
        self._wanted = helpers
        self._helpers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        here = str(Path.cwd())
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path or here for path in sys.path))
        for _ in range(self._wanted if sys.executable else 0):
            with suppress(OSError):
                self._helpers.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "esupcon.data.decode_worker"],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        env=environment,
                    )
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for helper in self._helpers:
            helper.kill()  # between chunks there is nothing to lose
        for helper in self._helpers:
            helper.wait()
            for pipe in (helper.stdin, helper.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()
        self._helpers.clear()

    def decode(
        self,
        images: Iterable[Encoded],
        file: Path,
        rows: NDArray[np.uint8],
        spec: DecodeSpec,
        advance: Callable[[int], None],
    ) -> Findings:
        """Decode images[i] into rows[i]; `rows` is the memory map of `file`, from its first byte."""
        job = _Job(images, file, rows, spec, advance)
        threads = [threading.Thread(target=job.through, args=(helper,)) for helper in self._helpers]
        for thread in threads:
            thread.start()
        try:
            job.here()
        except BaseException:
            job.stop()
            for helper in self._helpers:
                helper.kill()  # wakes its thread
            raise
        finally:
            for thread in threads:
                thread.join()
        job.take_up_the_rest()
        return job.findings


class _Job:
    def __init__(
        self,
        images: Iterable[Encoded],
        file: Path,
        rows: NDArray[np.uint8],
        spec: DecodeSpec,
        advance: Callable[[int], None],
    ) -> None:
        self._images = iter(images)
        self._file, self._rows, self._spec, self._advance = file, rows, spec, advance
        self._lock = threading.Lock()
        self._start, self._length = 0, _FIRST_CHUNK
        self._returned: list[Chunk] = []
        self._failure: BaseException | None = None
        self.findings = Findings()

    def here(self) -> None:
        while (chunk := self._next()) is not None:
            self._decode_here(chunk)

    def through(self, helper: "subprocess.Popen[bytes]") -> None:
        assert helper.stdin is not None
        assert helper.stdout is not None
        while (chunk := self._next()) is not None:
            start, encoded = chunk
            try:
                request = (str(self._file), self._rows.shape, start, encoded, self._spec)
                pickle.dump(request, helper.stdin)
                helper.stdin.flush()
                report = pickle.load(helper.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):  # it has died
                with self._lock:
                    self._returned.append(chunk)
                return
            self._record(chunk, report)

    def stop(self) -> None:
        with self._lock:
            self._images = iter(())

    def take_up_the_rest(self) -> None:
        if self._failure is not None:
            raise self._failure
        for chunk in self._returned:
            self._decode_here(chunk)

    def _decode_here(self, chunk: Chunk) -> None:
        start, encoded = chunk
        began = time.perf_counter()
        report = decode_rows(encoded, self._rows[start : start + len(encoded)], self._spec)
        self._record(chunk, report)
        # Photographs are then taken a few at a time, thumbnails by the hundred.
        fitting = len(encoded) * _CHUNK_SECONDS / (time.perf_counter() - began)
        self._length = max(1, min(int(fitting), 4 * len(encoded), _LARGEST_CHUNK))

    def _record(self, chunk: Chunk, report: tuple[dict[int, str], int]) -> None:
        with self._lock:
            self.findings.add(chunk[0], report)
            self._advance(len(chunk[1]))

    def _next(self) -> Chunk | None:
        with self._lock:
            try:
                encoded = list(islice(self._images, self._length))
            except Exception as error:  # reading the images failed: for the caller to know
                self._failure, self._images = error, iter(())
                return None
            start, self._start = self._start, self._start + len(encoded)
            return (start, encoded) if encoded else None
