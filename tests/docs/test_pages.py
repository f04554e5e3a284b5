"""README and documentation stay true: links lead somewhere, code runs, commands run and print what is shown."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import tarfile
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from page_data import prepare, write_photos
from pages import (
    PAGES,
    ROOT,
    blocks,
    broken_links,
    command_line,
    commands,
    has_shown_form,
    inline_code,
    options_of,
    parse,
)

from esupcon.cli import grids, main
from esupcon.doctor import CODES
from esupcon.doctor.finding import _MESSAGES
from in_this_process import InThisProcess

# Added to a command so that it ends in seconds, unless its output is shown.
SMALLER_TRAINING = ("--epochs", "1", "--encoder", "mlp-16x1")
SMALLER_RUNS = ("--set", "epochs=1", "--set", "encoder=mlp-16x1")
FEWER = {"--method": "ce", "--seeds": "1"}
ONLY_PLANNED = ("paper",)  # its scale takes days
LINKED = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registers: None) -> Path:
    """Change to an empty folder with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ESUPCON_DATA", str(tmp_path / "datasets"))
    return tmp_path


@pytest.mark.parametrize("page", [*LINKED, *sorted((ROOT / "docs" / "reference").glob("*.md"))], ids=lambda p: p.name)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, ROOT)) == []


WITH_PYTHON = [page for page in (*PAGES, ROOT / "CONTRIBUTING.md") if blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, folder: Path) -> None:
    """All blocks of a page, one after the other."""
    if page.name == "photos.md":
        write_photos(folder / "photos")
    scope: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), scope)
    if page.name == "README.md":
        assert scope["probabilities"].shape == (128, 10)
        assert scope["posterior"].shape == (1297, 10)
        assert scope["classifier"].score(scope["X"][500:], scope["y"][500:]) > 0.85


def test_pages_are_short_and_the_readme_begins_with_the_loss() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    assert {name: text.count("\n") for name, text in texts.items() if text.count("\n") > 200} == {}
    assert texts["README.md"][: texts["README.md"].index("ESupConLoss(")].count("\n") < 30


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page))], ids=lambda page: page.name)
def test_commands_run_and_print_what_is_shown(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "LocalExecutor", InThisProcess)
    monkeypatch.setattr("esupcon.training.monitor.SECONDS_BETWEEN_LINES", 3600.0)
    monkeypatch.setattr(grids, "_DEMO_OVERRIDES", {"epochs": 1, "encoder": "mlp-16x1"})
    prepare(page, folder, monkeypatch)
    for command in commands(page):
        words = command.words
        if words[0] != "esupcon":
            _check_other(words)
            continue
        words = words[: words.index(">")] if ">" in words else words
        parse(words[1:])
        added = [] if command.shown else _smaller(words[1:])
        code, printed = _run([*words[1:], *added], monkeypatch)
        assert code == 0, f"{command}: {printed}"
        if command.shown:
            assert has_shown_form(command.shown, printed), f"{command} is shown with other output than\n{printed}"
        for option, name in pairwise(words):
            if option in ("--out", "--store", "--plot") and "--dry-run" not in added:
                assert Path(name).is_dir() or Path(name).stat().st_size > 0, f"{command} left no {name}"


def _smaller(words: list[str]) -> list[str]:
    if words[0] == "train":
        return [*SMALLER_TRAINING]
    if words[0] != "reproduce" or "--dry-run" in words:
        return []
    if any(mark in words for mark in ONLY_PLANNED):
        return ["--dry-run"]
    if any(word.endswith(".toml") for word in words):
        return [*SMALLER_RUNS]
    fewer = [word for option, value in FEWER.items() if option not in words for word in (option, value)]
    return [*SMALLER_RUNS, "--set", "n_train=150", *fewer]


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["esupcon", *words])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words)
    return code, printed.getvalue()


def _check_other(words: list[str]) -> None:
    """Check commands that a test cannot run: make sets up an environment, pip installs."""
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
        assert words[1:] and set(words[1:]) <= targets
    else:
        assert words[0] == "pip", f"add {words[0]} here, with what is checked instead of running it"
        extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
        wanted = re.findall(r"(?:esupcon|\.)(?:\[([\w,]+)\])?", words[-1])
        assert {extra for one in wanted for extra in one.split(",") if extra} <= extras


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_in_sentences_exist(page: Path) -> None:
    known = set(command_line().commands)
    for text in inline_code(page):
        words = text.split()
        named = {word.split("=")[0] for word in words if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word)}
        if words[0] == "esupcon" and len(words) > 1:
            assert words[1] in known or words[1].startswith("--"), f"{page.name}: `{text}`"
            assert named <= (options_of(words[1]) if words[1] in known else options_of()), f"{page.name}: `{text}`"
        elif text.startswith("--"):
            assert named <= options_of(), f"{page.name}: `{text}`"


# --- The source distribution holds what git tracks and nothing else --------------------------------------------------


STRAY = (
    *("secret.env", "src/esupcon/untracked.py", "src/secrets.txt", "tests/README.md", "runs/store/result.json"),
    *("venv/lib/site-packages/x/README.md", "venv/src/x.py", "docs/LICENSE", ".venv/CHANGELOG.md"),
)


def test_sdist_holds_tracked_files_only(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    tracked = subprocess.run(["git", "-C", str(clone), "ls-files"], capture_output=True, text=True, check=True)
    for name in STRAY:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text("not ours\n")
    first = build(clone, tmp_path / "first")
    assert first == {*tracked.stdout.splitlines(), "PKG-INFO"}
    with tarfile.open(next((tmp_path / "first").glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    unpacked = next((tmp_path / "unpacked").iterdir())
    assert build(unpacked, tmp_path / "second") == first, "a distribution can be built from the distribution"


def build(source: Path, out: Path) -> set[str]:
    words = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert len(names) == len(set(names)), "no file is there twice"
    return set(names)


# --- The page on findings --------------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^### `([a-z-]+)`$\n(.*?)(?=^##|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
}


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert list(SECTIONS) == list(CODES)
    for text in SECTIONS.values():
        assert re.search(r"\n\*\*Cause\.\*\* .+\n\*\*What to do\.\*\* .+", text)


@pytest.mark.parametrize("code", CODES)
def test_page_quotes_the_real_message(code: str) -> None:
    (quote,) = re.findall(r"^> (.+)$", SECTIONS[code], flags=re.MULTILINE)
    fixed_words = re.split(r"\{[^}]*\}", _MESSAGES[code][1])
    assert re.fullmatch(".*".join(map(re.escape, fixed_words)), quote)


def test_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "troubleshooting.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("]")[0] for line in lines] == ["note [leak", "["]
