"""The fuzz harness in small: every reader takes its own seeds, survives some cases, and every crash there ever was."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

FUZZ = Path(__file__).parents[2] / "fuzz"
if not FUZZ.is_dir():
    pytest.skip("the harness is not part of this copy of the sources", allow_module_level=True)
sys.path.append(str(FUZZ))

from attempts import CURRENT, OUTCOME, Attempts  # noqa: E402 - found by the line above
from draws import Draws  # noqa: E402
from reader import Reader, check  # noqa: E402
from readers import READERS  # noqa: E402
from shrinking import inputs  # noqa: E402

pytestmark = pytest.mark.reliability

CRASHES = sorted((Path(__file__).parent / "crashes").glob("*/*"))


@pytest.mark.filterwarnings("ignore")  # of a hostile file a library may warn as it likes
@pytest.mark.parametrize("name", READERS)
def test_reader_takes_its_seeds_and_survives_damage(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    reader = READERS[name]
    seeds = reader.seeds()
    assert seeds
    for seed in seeds:
        assert check(reader, tmp_path_factory.mktemp("seed"), seed)

    @settings(max_examples=15, database=None)
    @given(inputs(seeds))
    def attempt(content: bytes) -> None:
        check(reader, tmp_path_factory.mktemp("case"), content)

    attempt()
    draws = Draws(seeds, 0)
    for number in range(15):
        check(reader, tmp_path_factory.mktemp("drawn"), draws.draw(number))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", CRASHES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_what_once_crashed_a_reader_does_so_no_more(file: Path, tmp_path: Path) -> None:
    """It is refused in a line, or read without the damaged part where that can be done without; else `check` raises."""
    check(READERS[file.parent.name], tmp_path, file.read_bytes())


def fails(folder: Path, content: bytes) -> object:
    return {}[content]


def rambles(folder: Path, content: bytes) -> object:
    raise ValueError(f"{folder}\nis of two lines")


def mumbles(folder: Path, content: bytes) -> object:
    raise ValueError("something is wrong somewhere")


def swallows(folder: Path, content: bytes) -> object:
    raise ValueError(f"{folder} is too large") from MemoryError()


def believes(folder: Path, content: bytes) -> object:
    return content


def test_the_harness_notices(tmp_path: Path) -> None:
    """A reader that lets another error through, and ones that say too much, too little, too late, or nothing."""
    for read, complaint in (
        (rambles, "a refusal is one line"),
        (mumbles, "a refusal names the file or its folder"),
        (swallows, "no more memory"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            check(Reader(list, read), tmp_path, b"x")
    with pytest.raises(KeyError):
        check(Reader(list, fails), tmp_path, b"x")
    with_checksum = Reader(lambda: [b"sound"], believes, essence=bytes)
    assert check(with_checksum, tmp_path, b"sound")
    with pytest.raises(AssertionError, match="damaged content was taken for sound"):
        check(with_checksum, tmp_path, b"found")


def test_crashes_are_kept_once_and_as_small_as_they_come(tmp_path: Path) -> None:
    folder, kept = tmp_path / "cases", tmp_path / "crashes"
    folder.mkdir()
    attempts = Attempts("one", Reader(lambda: [b"seed"], fails), folder, kept)
    for content in (b"a long case", b"short", b"a longer case"):
        assert isinstance(attempts.attempt(content), KeyError)
    assert [path.read_bytes() for path in kept.iterdir()] == [b"short"]
    assert (folder / CURRENT).read_bytes() == b"a longer case"  # what a process that dies here has died of
    attempts.write_outcome()
    assert not (folder / CURRENT).exists()
    found = json.loads((folder / OUTCOME).read_text())
    assert (found["cases"], found["taken"], found["crashes"]) == (3, 0, 1)


def test_draws_can_be_drawn_again(tmp_path: Path) -> None:
    seeds = [b'{"a": [1, 2], "b": {"c": "d"}}', b"no json"]
    first = [Draws(seeds, 5).draw(number) for number in range(200)]
    assert first == [Draws(seeds, 5).draw(number) for number in range(200)]
    assert first != [Draws(seeds, 6).draw(number) for number in range(200)]
    assert len(set(first)) > 150


def test_unknown_reader_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "no-such"])
    assert runpy.run_path(str(FUZZ / "run.py"))["main"]() == 2
    assert "no reader 'no-such'; there are image, npz" in capsys.readouterr().err
