"""The fuzz harness in small: every reader accepts its seeds and survives damage and every former fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
if not FUZZ.is_dir():
    pytest.skip("the harness is not part of this copy of the sources", allow_module_level=True)
sys.path.append(str(FUZZ))

from harness import Draws, Reader, check  # noqa: E402 - found by the line above
from readers import READERS  # noqa: E402

pytestmark = [pytest.mark.reliability, pytest.mark.filterwarnings("ignore")]  # libraries may warn about hostile files

CRASHES = sorted((Path(__file__).parent / "crashes").glob("*/*"))


@pytest.mark.parametrize("name", READERS)
def test_reader_accepts_its_seeds_and_survives_damage(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    reader = READERS[name]
    seeds = reader.seeds()
    assert seeds
    for seed in seeds:
        assert check(reader, tmp_path_factory.mktemp("seed"), seed)
    draws = Draws(seeds, 0)
    for number in range(25):
        check(reader, tmp_path_factory.mktemp("drawn"), draws.draw(number))


@pytest.mark.parametrize("file", CRASHES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_former_faults_stay_fixed(file: Path, tmp_path: Path) -> None:
    """It is refused in one line, or read without the damaged part if that is possible; otherwise `check` raises."""
    check(READERS[file.parent.name], tmp_path, file.read_bytes())


def fails(folder: Path, content: bytes) -> object:
    return {}[content]


def test_the_harness_notices_faults(tmp_path: Path) -> None:
    def refuses(message: str, cause: Exception | None) -> Reader:
        def read(folder: Path, content: bytes) -> object:
            raise ValueError(message.format(folder)) from cause

        return Reader(list, read)

    for reader, complaint in (
        (refuses("{}\nis of two lines", None), "a refusal is one line"),
        (refuses("something is wrong", None), "a refusal names the file or its folder"),
        (refuses("{} is too large", MemoryError()), "no more memory"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            check(reader, tmp_path, b"x")
    with pytest.raises(KeyError):
        check(Reader(list, fails), tmp_path, b"x")
    with_checksum = Reader(lambda: [b"sound"], lambda folder, content: content, essence=bytes)
    assert check(with_checksum, tmp_path, b"sound")
    with pytest.raises(AssertionError, match="damaged content was accepted"):
        check(with_checksum, tmp_path, b"found")


def test_results_cover_every_reader_without_faults() -> None:
    """The generated file of the last long run; `python fuzz/run.py --cases 20000 --results` writes it."""
    if not (FUZZ / "results.json").exists():
        pytest.skip("no long run yet")
    found = json.loads((FUZZ / "results.json").read_text())["readers"]
    assert set(found) == set(READERS)
    assert all(one["faults"] == 0 and one["cases"] >= 20_000 for one in found.values())
