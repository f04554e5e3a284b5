"""A soak: train, evaluate and predict, over and over for twenty minutes, while memory and open files are watched.

`python scripts/soak.py [--minutes 20] [--folder DIR]`. Every round is a run of its own in one process. The first
quarter is for caches to fill; after it neither the memory in use nor the number of open files may grow. The exit code
is 1 where one does, and what was measured is on standard output, a line a round.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from PIL import Image

from esupcon.cli import main as esupcon

Step = Callable[[], None]
#: Growth from the second quarter to the last that counts as a leak: of memory, and of open files.
MOST_BYTES, MOST_FILES = 24 << 20, 0


def steps(folder: Path, *, n_images: int = 60) -> dict[str, Step]:
    """What a round does, by name, in its order; a further step is a further entry."""
    photos, run, store = _photos(folder / "photos", n_images), folder / "run", folder / "store"

    def command(*words: object) -> None:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = esupcon([str(word) for word in words])
        if code != 0:
            raise RuntimeError(f"{words} ended with {code}:\n{out.getvalue()}{err.getvalue()}")

    def train() -> None:
        shutil.rmtree(run, ignore_errors=True)
        recipe = ("--encoder", "mlp-32x1", "--precision", "32", "--epochs", "3", "--checkpoint-seconds", "0")
        command("train", photos, "--out", run, *recipe, "--workers", "1")

    def reproduce() -> None:
        """The first round computes two runs in a worker; the others find them stored."""
        quick = ("--set", "epochs=1", "--set", "encoder=mlp-16x1", "--seeds", "1", "--workers", "1")
        command("reproduce", "full", "--profile", "smoke", "--method", "ce,esupcon", "--store", store, *quick)

    return {
        "train": train,
        "evaluate": lambda: command("evaluate", run, photos, "--workers", "1", "--plot", folder / "reliability.png"),
        "calibrate": lambda: command("calibrate", run, photos, "--on", "all", "--workers", "1"),
        "predict": lambda: command("predict", run, photos, "--top-k", "2", "--workers", "1"),
        "reproduce": reproduce,
        "report": lambda: command("report", store, "--out", folder / "report.html"),
    }


def soak(
    of: dict[str, Step], *, seconds: float, rounds_at_least: int = 12, say: Callable[[str], None] = print
) -> list[str]:
    """Goes round until the time is over; returns what grew, in words."""
    until = time.monotonic() + seconds
    memory: list[int] = []
    files: list[int] = []
    while time.monotonic() < until or len(memory) < rounds_at_least:
        started = time.monotonic()
        for step in of.values():
            step()
        gc.collect()
        memory.append(_resident())
        files.append(_open_files())
        took = time.monotonic() - started
        say(f"round {len(memory):5}  {took:6.2f} s  memory {memory[-1] / 2**20:8.1f} MB  open files {files[-1]:4}")
    grown = []
    more_memory, more_files = _growth(memory), _growth(files)
    if more_memory > MOST_BYTES:
        grown.append(f"memory grew by {more_memory / 2**20:.1f} MB over {len(memory)} rounds")
    if more_files > MOST_FILES:
        grown.append(f"open files grew by {more_files:g} over {len(files)} rounds")
    return grown


def _growth(values: list[int]) -> float:
    """From the median of the second quarter to that of the last: the first is for caches to fill."""
    quarter = max(1, len(values) // 4)
    return float(np.median(values[-quarter:]) - np.median(values[quarter : 2 * quarter]))


def _resident() -> int:
    """Bytes of memory in use now, not at the peak."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _photos(folder: Path, n: int) -> Path:
    """Two classes of pictures, bright on the left or on the right."""
    rng = np.random.default_rng(0)
    for name, side in (("left", slice(0, 8)), ("right", slice(8, 16))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            pixels = rng.integers(0, 120, (16, 16, 3))
            pixels[:, side] += 100
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder")
    words = parser.parse_args()
    if not Path("/proc/self/statm").exists():
        print("memory is read from /proc, which this system does not have", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = words.folder or Path(temporary)
        os.environ["ESUPCON_DATA"] = str(folder / "cache")
        grown = soak(steps(folder), seconds=60 * words.minutes)
    for line in grown:
        print(line, file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
