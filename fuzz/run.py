"""Throws damaged and invented files at every reader: `python fuzz/run.py [--cases N] [READER]`.

Each reader runs in processes of its own with bounded time and memory. Most cases are drawn by a seeded generator; one
in twenty is Hypothesis's, which shrinks what it finds; where atheris is installed half are its own, guided by
coverage. A crash is written to fuzz/crashes and comes back with `--replay FILE READER`; once mended, the file goes to
tests/reliability/crashes/READER/.
"""

from __future__ import annotations

import argparse
import importlib.util
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

HERE = Path(__file__).parent
CRASHES = HERE / "crashes"
DEFAULT_CASES, LONG_CASES = 1000, 20_000
IN_MEMORY = Path("/dev/shm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", nargs="*", help="some of them; all, if none is named")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help=f"for each reader; long: {LONG_CASES}")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--replay", type=Path, help="read this file and nothing else")
    parser.add_argument("--engine", choices=("drawn", "hypothesis", "atheris"), help="all cases by this one")
    words = parser.parse_args()
    from engines import followed  # noqa: PLC0415 - the folder of this file is on the path only when it is run

    with followed(words.engine):
        from readers import READERS  # noqa: PLC0415 - what atheris follows must not have been imported before
    names = words.reader or list(READERS)
    if unknown := set(names) - set(READERS):
        print(f"no reader {unknown.pop()!r}; there are {', '.join(READERS)}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")  # of a hostile file a library may warn as it likes
    if words.replay is not None:
        return _replay(names[0], words.replay)
    if words.engine is not None:
        return 0 if _each_in_a_process(names, words.engine, words.cases, words.seed) else 1
    guided = words.cases // 2 if importlib.util.find_spec("atheris") is not None else 0
    shrunk = words.cases // 20
    sound = _each_in_a_process(names, "drawn", words.cases - guided - shrunk, words.seed)
    sound = _each_in_a_process(names, "hypothesis", shrunk, words.seed) and sound
    if guided:
        command = [sys.executable, __file__, "--engine=atheris", f"--cases={guided}", f"--seed={words.seed}"]
        ended = subprocess.run([*command, *words.reader], check=False)
        sound = ended.returncode == 0 and sound
    return 0 if sound else 1


def _replay(name: str, file: Path) -> int:
    from reader import check  # noqa: PLC0415
    from readers import READERS  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        print("taken" if check(READERS[name], Path(folder), file.read_bytes()) else "refused")
    return 0


def _each_in_a_process(names: list[str], engine: str, cases: int, seed: int) -> bool:
    """Whether no reader crashed."""
    verdicts = [_in_a_process(name, engine, cases, seed) for name in names if cases]
    return all(verdicts)


def _in_a_process(name: str, engine: str, cases: int, seed: int) -> bool:
    """Says what came of it. The folder of the cases is in memory where that can be, and no import is made twice."""
    from attempts import CURRENT, OUTCOME, keep  # noqa: PLC0415

    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="esupcon-fuzz-", dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _as_child(name, engine, cases, seed, folder)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if (folder / CURRENT).is_file():  # it has not come to its end
            kept = keep(CRASHES, name, (folder / CURRENT).read_bytes())
            print(f"{name}: the process ended with {code} on {kept}")
        outcome = json.loads((folder / OUTCOME).read_text()) if (folder / OUTCOME).is_file() else None
    finally:
        shutil.rmtree(folder)
    sound = code == 0 and outcome is not None and outcome["crashes"] == 0
    verdict = "ok" if sound else f"FAILED ({code})"
    if outcome is not None:
        verdict += f", {outcome['crashes']} crashes, {outcome['taken']:,} taken, slowest {outcome['slowest']:.2f} s"
    done = 0 if outcome is None else outcome["cases"]
    print(f"{name:18} {engine:11} {done:7,} cases {time.monotonic() - started:7.1f} s  {verdict}", flush=True)
    return sound


def _as_child(name: str, engine: str, cases: int, seed: int, folder: Path) -> None:
    from attempts import Attempts  # noqa: PLC0415
    from engines import ENGINES  # noqa: PLC0415
    from readers import READERS  # noqa: PLC0415

    code = 1
    try:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        ENGINES[engine](Attempts(name, READERS[name], folder, CRASHES), cases, seed)
        code = 0
    except BaseException:  # Hypothesis raises what it found; nothing may come back into the parent
        traceback.print_exc(limit=-3)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(HERE))
    sys.exit(main())
