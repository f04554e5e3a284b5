"""Throws damaged and invented files at every reader: `python fuzz/run.py [--cases N] [READER]`.

Each reader runs in a process of its own with bounded memory. Where atheris is installed half of the cases are its own,
guided by coverage; the others are Hypothesis's, which shrinks what it finds. A crash is written to fuzz/crashes and
comes back with `--replay FILE READER`; once mended, the file goes to tests/reliability/crashes/READER/.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).parent
MORE_MEMORY = 1 << 30
DEFAULT_CASES, LONG_CASES = 1000, 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", nargs="?", help="one of them; all, if none is named")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help=f"for each reader; long: {LONG_CASES}")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--replay", type=Path, help="read this file and nothing else")
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), help="all cases by this one, in this process")
    words = parser.parse_args()
    if words.engine is None and words.replay is None:
        return _each_in_a_process(words)
    warnings.simplefilter("ignore")  # of a hostile file a library may warn as it likes
    if words.engine == "atheris":
        return _with_atheris(words)
    from readers import READERS, check  # noqa: PLC0415 - slow to import, and to be instrumented first

    reader = READERS[words.reader]
    with tempfile.TemporaryDirectory() as folder:
        if words.replay is not None:
            print("taken" if check(reader, Path(folder), words.replay.read_bytes()) else "refused")
            return 0
        return _with_hypothesis(words, Path(folder))


def _each_in_a_process(words: argparse.Namespace) -> int:
    from readers import READERS  # noqa: PLC0415

    names = list(READERS) if words.reader is None else [words.reader]
    if unknown := set(names) - set(READERS):
        print(f"no reader {unknown.pop()!r}; there are {', '.join(READERS)}", file=sys.stderr)
        return 2
    guided = importlib.util.find_spec("atheris") is not None
    engines = {"hypothesis": words.cases - words.cases // 2, "atheris": words.cases // 2} if guided else {}
    failed = []
    for name in names:
        for engine, cases in (engines or {"hypothesis": words.cases}).items():
            started = time.monotonic()
            command = [sys.executable, __file__, name, f"--cases={cases}", f"--engine={engine}", f"--seed={words.seed}"]
            ended = subprocess.run(command, check=False)
            verdict = "ok" if ended.returncode == 0 else f"FAILED ({ended.returncode})"
            print(f"{name:18} {engine:11} {cases:7,} cases {time.monotonic() - started:7.1f} s  {verdict}", flush=True)
            failed += [name] * (ended.returncode != 0)
    return 1 if failed else 0


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * resource.getpagesize() + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _attempt(name: str, folder: Path, content: bytes) -> None:
    """One case in an empty folder. It is on disk before it is tried: a reader may take the process with it."""
    from readers import READERS, check  # noqa: PLC0415

    kept = HERE / "crashes" / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(content)
    place = folder / "case"
    place.mkdir()
    try:
        check(READERS[name], place, content)
    finally:
        shutil.rmtree(place)
    kept.unlink()


def _with_hypothesis(words: argparse.Namespace, folder: Path) -> int:
    from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: PLC0415
    from mutations import inputs  # noqa: PLC0415
    from readers import READERS, check  # noqa: PLC0415

    seeds = READERS[words.reader].seeds()
    place = folder / "seed"
    for content in seeds:
        place.mkdir()
        check(READERS[words.reader], place, content)  # whatever is made once for all is made before memory is bounded
        shutil.rmtree(place)
    _bound_memory()

    @seed(words.seed)
    @settings(
        max_examples=words.cases,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(seeds))
    def attempt(content: bytes) -> None:
        _attempt(words.reader, folder, content)

    attempt()
    return 0


def _with_atheris(words: argparse.Namespace) -> int:
    import atheris  # noqa: PLC0415 - where it is installed

    with atheris.instrument_imports(include=["esupcon", "zipfile", "tarfile", "csv", "pickle"]):
        from readers import READERS  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as name:
        corpus, folder = Path(name) / "corpus", Path(name)
        corpus.mkdir()
        for i, content in enumerate(READERS[words.reader].seeds()):
            (corpus / str(i)).write_bytes(content)
        options = [f"-runs={words.cases}", f"-seed={words.seed + 1}", "-max_len=65536", "-rss_limit_mb=4096"]
        quiet = ["-verbosity=0", "-print_final_stats=0", f"-artifact_prefix={folder}/"]
        atheris.Setup([sys.argv[0], *options, *quiet, str(corpus)], lambda data: _attempt(words.reader, folder, data))
        atheris.Fuzz()  # ends the process
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
