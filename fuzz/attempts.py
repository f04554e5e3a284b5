"""One case after the other, each in an empty folder, within bounds on time and memory; crashes are kept, once each."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import resource
import shutil
import time
import traceback
from pathlib import Path

from reader import Reader, check

MORE_MEMORY = 1 << 30
MOST_SECONDS = 20.0
#: The case that is being tried and what came of the others, in the folder that the cases have; for who looks after.
CURRENT, OUTCOME = "current", "outcome.json"


class Attempts:
    """Cases of one reader. Of crashes at the same place the smallest is kept."""

    def __init__(self, name: str, reader: Reader, folder: Path, keep_in: Path) -> None:
        self._name, self._reader, self._folder, self._keep_in = name, reader, folder, keep_in
        self.n_cases = self.n_taken = 0
        self.slowest = 0.0
        self._smallest: dict[str, Path] = {}

    @property
    def n_crashes(self) -> int:
        """Different ones."""
        return len(self._smallest)

    def take_seeds(self) -> list[bytes]:
        """Reads the sound files, so that whatever is made once for all is made before memory is bounded."""
        seeds = self._reader.seeds()
        for number, content in enumerate(seeds):
            place = self._folder / f"seed-{number}"
            place.mkdir()
            if not check(self._reader, place, content):
                raise AssertionError(f"{self._name}: seed {number} is refused")
            shutil.rmtree(place)
        return seeds

    def attempt(self, content: bytes) -> BaseException | None:
        """The crash, if it is one. The case is on disk before it is tried: a reader may take the process with it."""
        (self._folder / CURRENT).write_bytes(content)
        place = self._folder / f"case-{self.n_cases}"  # a place of its own, lest a reader remembers the last one
        place.mkdir()
        self.n_cases += 1
        started = time.monotonic()
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        try:
            self.n_taken += check(self._reader, place, content)
        except Exception as error:  # whatever it is, it is a crash
            self._keep(content, error)
            return error
        finally:
            faulthandler.cancel_dump_traceback_later()
            self.slowest = max(self.slowest, time.monotonic() - started)
            shutil.rmtree(place)
        return None

    def write_outcome(self) -> None:
        outcome = {
            "cases": self.n_cases,
            "taken": self.n_taken,
            "crashes": self.n_crashes,
            "slowest": self.slowest,
        }
        (self._folder / OUTCOME).write_text(json.dumps(outcome))
        (self._folder / CURRENT).unlink(missing_ok=True)

    def _keep(self, content: bytes, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/esupcon/" in frame.filename] or frames
        at = f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
        known = self._smallest.get(at)
        if known is not None and known.stat().st_size <= len(content):
            return
        if known is None:
            print(f"{self._name}: {at}: {str(error)[:300]!r}", flush=True)
        else:
            known.unlink()
        self._smallest[at] = keep(self._keep_in, self._name, content)


def keep(folder: Path, name: str, content: bytes) -> Path:
    """Writes a crash where it can be found again."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    path.write_bytes(content)
    return path


def bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * resource.getpagesize() + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
