"""Try damaged and invented files on every reader: `python fuzz/run.py [--cases N] [READER ...]`.

Each reader runs in its own process with bounded time and memory. A case that causes a fault is written to fuzz/crashes;
`--replay FILE READER` repeats it. Once fixed, the file goes to tests/reliability/crashes/READER/. With --results the
counts of all readers are written to fuzz/results.json, each with the commit that was tried.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from harness import CURRENT, OUTCOME, Attempts, Draws, bound_memory, check, keep  # noqa: E402 - found by the line above
from readers import READERS  # noqa: E402

CRASHES, RESULTS = HERE / "crashes", HERE / "results.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", nargs="*", help="default: all")
    parser.add_argument("--cases", type=int, default=1000, help="per reader; a long run has 20,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=Path, help="read this file only")
    parser.add_argument("--results", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    names = given.reader or list(READERS)
    if unknown := set(names) - set(READERS):
        print(f"no reader {unknown.pop()!r}; there are {', '.join(READERS)}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")  # libraries may warn about hostile files
    if given.replay is not None:
        with tempfile.TemporaryDirectory() as folder:
            print("accepted" if check(READERS[names[0]], Path(folder), given.replay.read_bytes()) else "refused")
        return 0
    outcomes: dict[str, Any] = {}
    words = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    known = json.loads(RESULTS.read_text())["readers"] if RESULTS.exists() and given.reader else {}
    for name in names:
        outcomes[name] = run_in_process(name, given.cases, given.seed) | {"commit": commit}
        if given.results:  # after each reader, so that an interrupted run can continue with the others by name
            readers = {name: one for name, one in {**known, **outcomes}.items() if name in READERS}
            RESULTS.write_text(json.dumps({"seed": given.seed, "readers": readers}, indent=1) + "\n")
    return 0 if all(one["faults"] == 0 and one["cases"] == given.cases for one in outcomes.values()) else 1


def run_in_process(name: str, cases: int, seed: int) -> dict[str, Any]:
    """Fork, so that nothing is imported twice; keep the files of the cases in memory if possible."""
    started, memory = time.monotonic(), Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="esupcon-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _as_child(name, cases, seed, folder)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        outcome = {"cases": 0, "accepted": 0, "faults": 1, "slowest_seconds": 0.0}
        if (folder / OUTCOME).is_file():
            outcome = json.loads((folder / OUTCOME).read_text())
        elif (folder / CURRENT).is_file():
            print(f"{name}: the process ended with {code} on {keep(CRASHES, name, (folder / CURRENT).read_bytes())}")
    finally:
        shutil.rmtree(folder)
    print(f"{name:18} {outcome} in {time.monotonic() - started:.1f} s", flush=True)
    return outcome


def _as_child(name: str, cases: int, seed: int, folder: Path) -> None:
    code = 1
    try:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        attempts = Attempts(name, READERS[name], folder, CRASHES)
        draws = Draws(attempts.read_seeds(), seed)
        bound_memory()
        for number in range(cases):
            attempts.attempt(draws.draw(number))
        attempts.write_outcome()
        code = 0
    except BaseException:  # nothing may return into the parent's code
        traceback.print_exc(limit=-3)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
