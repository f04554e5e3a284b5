"""A folder comes to be whole, and nothing is lost by saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from network_state import same_state

from esupcon.artifact import folder as folder_module
from esupcon.artifact import load_artifact, save_artifact


def hidden(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir() if path.name.startswith("."))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_model_is_not_overwritten_unasked(saved: Path, make: Any) -> None:
    before = contents(saved)
    with pytest.raises(FileExistsError, match=r"holds a model already.*overwrite=True"):
        save_artifact(saved, *make())
    assert contents(saved) == before


def test_overwrite_replaces_the_whole(saved: Path, make: Any) -> None:
    network, config = make("identity", (5,), classes=["x", "y"])
    save_artifact(saved, network, config, overwrite=True)
    assert same_state(load_artifact(saved).network, network)
    assert hidden(saved.parent) == []


def test_an_empty_folder_is_taken(make: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_artifact(tmp_path / "model", *make())
    load_artifact(tmp_path / "model")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("also_a_model", [False, True])
def test_other_files_are_never_lost(make: Any, tmp_path: Path, overwrite: bool, also_a_model: bool) -> None:
    target = tmp_path / "work"
    if also_a_model:
        save_artifact(target, *make())
    target.mkdir(exist_ok=True)
    (target / "thesis.tex").write_text("years")
    before = contents(target)
    with pytest.raises(FileExistsError, match=r"holds more than a model \('thesis.tex'\)"):
        save_artifact(target, *make(), overwrite=overwrite)
    assert contents(target) == before


def test_a_folder_with_only_a_readme_is_not_ours(make: Any, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match="holds more than a model"):
        save_artifact(tmp_path, *make(), overwrite=True)


def test_a_file_is_not_replaced(make: Any, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file"):
        save_artifact(tmp_path / "model", *make(), overwrite=True)
    assert (tmp_path / "model").read_text() == "mine"


@pytest.mark.parametrize("step", ["write_weights", "config_text", "model_card", "_flush", "_put_in_place"])
def test_failure_at_any_step_leaves_what_was_there(
    saved: Path, make: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = contents(saved)

    def fails(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, step, fails)
    with pytest.raises(OSError, match="No space left"):
        save_artifact(saved, *make(), overwrite=True)
    assert contents(saved) == before
    assert hidden(saved.parent) == []
    with pytest.raises(OSError, match="No space left"):
        save_artifact(saved.parent / "new", *make())
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_failure_between_the_renames_puts_the_old_back(saved: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(saved)
    rename = Path.rename

    def fails_for_the_new(path: Path, target: Path) -> Path:
        if path.name.endswith(".new"):
            raise PermissionError(13, "in use")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new)
    with pytest.raises(PermissionError, match="in use"):
        save_artifact(saved, *make(), overwrite=True)
    assert contents(saved) == before
    assert hidden(saved.parent) == []


def test_the_old_model_is_there_until_the_new_one_is_complete(
    saved: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(saved)
    put_in_place = folder_module._put_in_place

    def watched(beside: Path, target: Path, replaced: Path) -> None:
        assert contents(target) == before
        load_artifact(beside)
        put_in_place(beside, target, replaced)

    monkeypatch.setattr(folder_module, "_put_in_place", watched)
    save_artifact(saved, *make("identity", (2,)), overwrite=True)
    assert contents(saved) != before


def test_a_model_that_another_saved_meanwhile_is_not_overwritten(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, config = make()
    card = folder_module.model_card

    def slow(other: Any) -> str:
        monkeypatch.setattr(folder_module, "model_card", card)
        save_artifact(tmp_path / "model", network, config)
        return card(other)

    monkeypatch.setattr(folder_module, "model_card", slow)
    with pytest.raises(FileExistsError, match="holds a model already"):
        save_artifact(tmp_path / "model", *make("identity", (2,)))
    assert same_state(load_artifact(tmp_path / "model").network, network)
    assert hidden(tmp_path) == []


def test_a_link_stays_a_link(saved: Path, make: Any) -> None:
    link = saved.parent / "latest"
    link.symlink_to(saved, target_is_directory=True)
    network, config = make("identity", (2,))
    assert save_artifact(link, network, config, overwrite=True) == saved
    assert link.is_symlink()
    assert same_state(load_artifact(link).network, network)


def test_nothing_is_made_for_a_network_that_does_not_fit(make: Any, tmp_path: Path) -> None:
    network, _ = make("identity", (2,))
    _, config = make("identity", (3,))
    with pytest.raises(ValueError, match=r"head\.weight"):
        save_artifact(tmp_path / "model", network, config)
    assert list(tmp_path.iterdir()) == []
