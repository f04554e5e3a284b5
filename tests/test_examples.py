"""Every example is short, runs, and says something."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_the_examples_are_there() -> None:
    assert {path.stem for path in EXAMPLES} >= {
        "images_from_a_folder",
        "table_with_noisy_labels",
        "pretrained_embedding",
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, capsys) -> None:
    assert len(path.read_text().splitlines()) <= 60
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    assert capsys.readouterr().out.count("\n") >= 4
