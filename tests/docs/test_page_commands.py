"""Every command on README and the pages of the documentation runs, and prints what is shown below it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from page_commands import (
    PAGES,
    PROMPT,
    Command,
    blocks_of,
    command_line,
    commands_of,
    every_option,
    has_shown_form,
    inline_commands,
    inline_options,
    options_of,
    parse,
)
from page_commands_not_run import NOT_RUN
from page_folders import prepare

from esupcon.cli import grids, main
from esupcon.data.dataset import _REGISTERED
from esupcon.methods import METHODS
from esupcon.models import build_encoder
from esupcon.spec import TrainSpec
from esupcon.training.objective import LOSSES
from in_this_process import InThisProcess

# Words added to a line so that it ends in seconds, where no output is shown that would change. Nothing of the line
# is taken away: it is also held against the command line as it stands.
SMALLER_TRAINING = ("--epochs", "1", "--encoder", "mlp-16x1")
SMALLER_RUNS = ("--set", "epochs=1", "--set", "encoder=mlp-16x1")
# The tables of the paper, besides: fewer images, and one method and one seed where the line names none.
FEWER_IMAGES, FEWER_METHODS, FEWER_SEEDS = ("--set", "n_train=150"), ("--method", "ce"), ("--seeds", "1")
DEMO_FIELDS = {"epochs": 1, "encoder": "mlp-16x1"}
# `reproduce` with one of these is planned in full and listed, but not computed.
ONLY_PLANNED = {"--ray": "a cluster is needed", "paper": "the paper's scale takes days"}


PAGES_WITH_COMMANDS = [page for page in PAGES if commands_of(page)]
COMMANDS = [command for page in PAGES for command in commands_of(page)]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to type in; what a page registers ends with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ESUPCON_DATA", str(tmp_path / "datasets"))
    monkeypatch.setattr(grids, "LocalExecutor", InThisProcess)
    monkeypatch.setattr(grids, "_DEMO_OVERRIDES", DEMO_FIELDS)
    before = [(register, dict(register)) for register in (METHODS, LOSSES, _REGISTERED)]
    yield tmp_path
    for register, content in before:
        register.clear()
        register.update(content)
    for name in [name for name in sys.modules if name.startswith("esupcon_table_module_")]:
        del sys.modules[name]


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(page, reader, monkeypatch)
    for command in commands_of(page):
        words = command.words
        if words[0] in NOT_RUN:
            NOT_RUN[words[0]][1](words)
            continue
        assert words[0] == "esupcon", f"{command}: say in NOT_RUN why {words[0]} is not run, and what is checked"
        if words[1] == "reproduce":
            code, said = _run([*words[1:], "--dry-run"], monkeypatch)
            assert code == 0, f"{command}: cannot be planned: {said}"
        added = [] if command.shown or command.needs_a_shell else _smaller(words[1:])
        if command.needs_a_shell:
            code, said = _run_in_a_shell(command.text)
        else:
            code, said = _run([*words[1:], *added], monkeypatch)
        assert code == 0, f"{command}: {said}"
        if command.shown:
            assert has_shown_form(command.shown, said), f"{command} is shown with other output than\n{said}"
        _left_its_files(words, dry="--dry-run" in added)


def _smaller(words: list[str]) -> list[str]:
    """What is added to the words after `esupcon`."""
    match words[0]:
        case "train":
            return [*SMALLER_TRAINING]
        case "reproduce" if any(mark in words for mark in ONLY_PLANNED):
            return ["--dry-run"]
        case "reproduce" if any(word.endswith(".toml") for word in words):
            return [*SMALLER_RUNS]
        case "reproduce":
            methods = () if "--method" in words else FEWER_METHODS
            seeds = () if "--seeds" in words else FEWER_SEEDS
            return [*SMALLER_RUNS, *FEWER_IMAGES, *methods, *seeds]
        case _:
            return []


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """In this process; standard output and standard error as a terminal mixes them."""
    monkeypatch.setattr(sys, "argv", ["esupcon", *words])
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(words)
    return code, said.getvalue()


def _run_in_a_shell(text: str) -> tuple[int, str]:
    """The installed command."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def _left_its_files(words: list[str], *, dry: bool) -> None:
    for option, name in pairwise(words):
        if option in ("--out", "--store", "--plot", ">") and not dry:
            path = Path(name)
            assert path.is_dir() or path.stat().st_size > 0, f"{' '.join(words)} left no {name}"


@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if one.words[0] == "esupcon"], ids=lambda one: f"{one.page.stem}-{one.line}"
)
def test_commands_as_they_stand_are_understood(command: Command) -> None:
    """Also those that run with less: every command, option and value is one, and every named encoder can be built."""
    given = parse(command.words[1:])
    if command.words[1] == "train":
        spec = TrainSpec(**{name: given[name] for name in TrainSpec.model_fields if given.get(name) is not None})
        if spec.encoder != "auto":
            import torch

            with torch.device("meta"):
                build_encoder(spec.encoder, input_shape=(3, 32, 32))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_in_sentences_exist(page: Path) -> None:
    known = set(command_line().commands)
    for text in inline_commands(page):
        name, *rest = text.split()[1:]
        assert name in known or name.startswith("--"), f"{page.name}: `{text}`"
        options = options_of(name) if name in known else every_option()
        named = {word.split("=")[0] for word in (name, *rest) if word.startswith("-") and word != "-"}
        assert named <= options, f"{page.name}: `{text}`"
    assert inline_options(page) <= every_option(), page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_told_from_output(page: Path) -> None:
    """Commands stand in console blocks behind `$ `, what they print below them without it."""
    programs = {"esupcon", "python", "torchrun", "git", "cd", "source", *NOT_RUN}
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        first_words = [(line.split() or [""])[0] for line in block.lines]
        if block.language == "console":
            assert block.lines[0].lstrip().startswith(PROMPT), f"{where} shows output of no command"
        elif block.language not in ("python", "toml"):
            assert "$" not in first_words, f"{where} has commands: mark it as console"
        assert not programs.intersection(first_words) or block.language == "python", f"{where} has commands without $"


def test_what_is_compared_of_the_output() -> None:
    shown = ("a note: the 10 of ...", "", " ECE   3.5 % (1.4 to 5.7)", " ─────", "...", "Next:  run")
    said = "a note: the 10 of them, and so on\n ECE 12.25 % (11.0 to 14.1)\n\n ──\nmore\nand more\nNext:   run\n"
    assert has_shown_form(shown, said)
    assert has_shown_form(shown, said.replace("more\nand more\n", ""))
    for other in (
        said.replace("10", "11"),
        said.replace("ECE", "NLL"),
        said.replace("Next", "Then"),
        said + "one line more\n",
        said.replace("12.25 %", "12 %"),
    ):
        assert not has_shown_form(shown, other)


def test_there_are_commands_to_run() -> None:
    assert len(COMMANDS) > 20
    assert {command.words[1] for command in COMMANDS if command.words[0] == "esupcon"} >= {
        "train",
        "evaluate",
        "calibrate",
        "predict",
        "export",
        "reproduce",
        "status",
        "report",
    }
