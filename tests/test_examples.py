"""Every example is a notebook as a script: it has the form, runs cell by cell, and finds what it says it finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from esupcon.experiments import executors
from in_this_process import InThisProcess

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
Scope = dict[str, Any]


class Cell(NamedTuple):
    kind: str
    line: int
    lines: list[str]


def cells_of(path: Path) -> list[Cell]:
    """Cells of the percent format: each begins with a line `# %%`, those of prose with `# %% [markdown]`."""
    cells: list[Cell] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("# %%"):
            kind = {"# %%": "code", "# %% [markdown]": "markdown"}[line]
            cells.append(Cell(kind, number + 1, []))
        else:
            assert cells, f"{path.name} has lines before its first cell"
            cells[-1].lines.append(line)
    return cells


def _from_cross_entropy(scope: Scope) -> None:
    for name, models in scope["found"].items():
        for model in models:
            assert (
                scope["accuracy"](scope["softmax"](scope["logits_of"](model, scope["X_test"])), scope["y_test"]) > 0.8
            )
        before, after = scope["calibration"][name]
        assert after < before
    assert set(scope["neighbour_accuracy"]) == {"cross entropy", "ESupCon"}
    assert scope["neighbour_accuracy"]["ESupCon"] > 0.85


def _tables(scope: Scope) -> None:
    assert all(score.mean() > 0.9 for score in scope["scores"].values())
    for name in ("calibrated by fit", "calibrated on 150 rows"):
        assert scope["losses"][name] < scope["losses"]["not calibrated"]
    assert scope["search"].score(scope["X_test"], scope["y_test"]) > 0.85
    assert scope["width"] == scope["chained"][0].transform(scope["X_test"]).shape[1]


def _images(scope: Scope) -> None:
    assert scope["accuracy"] > 0.9
    assert scope["rejected"] > 0.9
    assert scope["difference"] < 1e-5
    assert not scope["root"].exists(), "it tidies up"


def _mislabelled(scope: Scope) -> None:
    assert scope["n_found"] > 60  # of 90; 14 by chance
    assert scope["precision"] > 0.7
    accuracy = scope["accuracy"]
    assert accuracy["all rows"] > accuracy["logistic regression, all rows"]
    assert accuracy["without suspicious rows"] > accuracy["all rows"]


def _probabilities(scope: Scope) -> None:
    error = scope["reliability_bins"](scope["p"], scope["y_test"]).expected_calibration_error
    assert error < scope["reliability_bins"](scope["raw"], scope["y_test"]).expected_calibration_error
    assert Path("runs/examples/reliability.png").stat().st_size > 10_000
    assert abs(scope["shares"] - scope["true_shares"]).max() < 0.1
    assert scope["right"]["adapted"] > scope["right"]["as trained"]
    for miscoverage, share in scope["covered"].items():
        assert share > 1 - miscoverage - 0.06
    assert min(scope["separation"].values()) > 0.8


def _pretrained(scope: Scope) -> None:
    assert scope["accuracy"]["linear map"] > scope["accuracy"]["prototypes only"] > 0.6
    assert min(scope["recognised"].values()) > 0.7
    assert {name for name, share in scope["shares"].items() if share > 0.2} == {"one", "seven"}
    assert scope["after"] >= scope["before"]


def _own_method(scope: Scope) -> None:
    assert len(scope["state"].finished) == 16
    assert len(scope["again"].stored) == 16
    assert not scope["again"].finished
    assert all(value > 50 for values in scope["accuracies"].values() for value in values)
    page = scope["report"].read_text(encoding="utf-8")
    assert "SupCon &amp; CE" in page or "supcon_and_ce" in page


# What the prose of each says, held against what happened.
FINDINGS: dict[str, Callable[[Scope], None]] = {
    "from_cross_entropy": _from_cross_entropy,
    "tables_and_cross_validation": _tables,
    "images_from_a_folder": _images,
    "mislabelled_data": _mislabelled,
    "probabilities_to_act_on": _probabilities,
    "pretrained_embedding": _pretrained,
    "own_method_in_a_grid": _own_method,
}


def test_the_list_of_examples_is_complete() -> None:
    assert {path.stem for path in EXAMPLES} == set(FINDINGS)
    lines = re.findall(r"^\| \[(\w+)\.py\]\((\w+)\.py\) \| .+ \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(lines) == [(path.stem, path.stem) for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], registers: None
) -> None:
    """Cell by cell in one scope, as a notebook does and as a script amounts to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors, "LocalExecutor", InThisProcess)
    scope: Scope = {"__name__": "__main__"}
    for cell in cells_of(path):
        if cell.kind == "code":
            capsys.readouterr()
            code = "\n" * (cell.line - 1) + "\n".join(cell.lines)  # so that a traceback names the line of the file
            exec(compile(code, str(path), "exec"), scope)
            printed = capsys.readouterr().out
            assert printed.strip() or "print(" not in "\n".join(cell.lines)
    FINDINGS[path.stem](scope)
