"""README and documentation cannot drift: their Python runs, their commands exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from esupcon.data.dataset import _REGISTERED
from esupcon.methods import METHODS
from esupcon.training.objective import LOSSES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)


def test_python_blocks_run() -> None:
    scope: dict[str, object] = {}
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, "README.md", "exec"), scope)
    assert scope["probabilities"].shape == (128, 10)
    assert scope["loss"].item() > 0
    assert scope["posterior"].shape == (1297, 10)
    assert scope["classifier"].score(scope["X"][500:], scope["y"][500:]) > 0.85


@pytest.fixture
def registers() -> Iterator[None]:
    """What a page registers ends with it."""
    before = [(register, dict(register)) for register in (METHODS, LOSSES, _REGISTERED)]
    yield
    for register, content in before:
        register.clear()
        register.update(content)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_documentation_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registers: None) -> None:
    """All Python blocks of a page, one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert text.startswith("# ")
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), scope)


def test_the_loop_fits_on_the_first_screen() -> None:
    position = README.index("ESupConLoss(")
    assert README[:position].count("\n") < 30


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets


def test_commands_exist() -> None:
    from typer.main import get_command

    from esupcon.cli import app

    known = set(get_command(app).commands)
    used = set(re.findall(r"^\$ esupcon ([a-z]+)", README, flags=re.MULTILINE))
    assert used
    assert used <= known
