"""Commands on the pages that no test runs: why not, and what is held against the page instead."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Callable

import pytest
from page_commands import ROOT, parse


def _makes_targets_that_exist(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    assert words[1:], "make alone only lists the targets"
    assert set(words[1:]) <= targets
    for recipe in re.findall(r"^\t\$\(BIN\)/esupcon (.+)$", makefile, flags=re.MULTILINE):
        parse(recipe.split())


def _installs_extras_that_exist(words: list[str]) -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert words[1] == "install"
    wanted = [re.fullmatch(r"(?:esupcon|\.)(?:\[([\w,]+)\])?", word) for word in words[2:] if not word.startswith("-")]
    assert wanted and all(wanted), "pages install esupcon with extras, nothing else"
    assert {extra for one in wanted if one and one[1] for extra in one[1].split(",")} <= extras


def _names_options_of_ray(words: list[str]) -> None:
    pytest.importorskip("ray", reason="ray, an extra, is not installed: its own command cannot be asked")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own
        from ray.scripts.scripts import cli
    known = {option for one in cli.commands[words[1]].params for option in one.opts}
    assert {word.split("=")[0] for word in words[2:] if word.startswith("--")} <= known


# First words of lines that are not run: why not, and what is checked instead.
NOT_RUN: dict[str, tuple[str, Callable[[list[str]], None]]] = {
    "make": ("it sets up an environment, and tests would run the tests", _makes_targets_that_exist),
    "pip": ("it would install this package into the environment that tests it", _installs_extras_that_exist),
    "ray": ("it would leave a cluster running", _names_options_of_ray),
}
