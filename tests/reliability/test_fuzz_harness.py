"""The fuzz harness in small: every reader takes its own seeds, survives some cases, and every crash there ever was."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

FUZZ = Path(__file__).parents[2] / "fuzz"
if not FUZZ.is_dir():
    pytest.skip("the harness is not part of this copy of the sources", allow_module_level=True)
sys.path.append(str(FUZZ))

from mutations import inputs  # noqa: E402 - found by the line above
from readers import READERS, Reader, check  # noqa: E402

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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", CRASHES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_what_once_crashed_a_reader_is_refused(file: Path, tmp_path: Path) -> None:
    assert not check(READERS[file.parent.name], tmp_path, file.read_bytes())


def test_the_harness_notices(tmp_path: Path) -> None:
    """A reader that lets another error through, and one that says too much."""

    def fails(folder: Path, content: bytes) -> object:
        return {}[content]

    def rambles(folder: Path, content: bytes) -> object:
        raise ValueError("two\nlines")

    with pytest.raises(KeyError):
        check(Reader(list, fails), tmp_path, b"x")
    with pytest.raises(AssertionError, match="a refusal is one line"):
        check(Reader(list, rambles), tmp_path, b"x")


def test_unknown_reader_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "no-such"])
    assert runpy.run_path(str(FUZZ / "run.py"))["main"]() == 2
    assert "no reader 'no-such'; there are image, npz" in capsys.readouterr().err
