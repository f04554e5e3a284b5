"""The tables on the results page and in the README are those of the stored runs, and of nothing else."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Run:
    """As much of a stored run as a difference looks at."""

    accuracy: float
    seed: int
    n: int = 10_000

    @property
    def spec(self) -> Any:
        return type("Spec", (), {"train": type("Train", (), {"seed": self.seed})})

    @property
    def result(self) -> dict[str, Any]:
        return {"metrics": {"test": {"n": self.n}}}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_the_pages_say_what_the_runs_say(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["results_page.py", "--check"])
    assert script("results_page").main() == 0


def test_a_changed_figure_is_noticed(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = script("results_page")
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    changed = tmp_path / "results.md"
    changed.write_text(text.replace("| ESupCon |", "| ESupCon | 99.9", 1), encoding="utf-8")
    assert changed.read_text(encoding="utf-8") != text
    monkeypatch.setattr(page, "PAGES", (changed,))
    monkeypatch.setattr(sys, "argv", ["results_page.py", "--check"])
    assert page.main() == 1
    assert "results.md: tables differ" in capsys.readouterr().err


def test_differences_of_several_seeds_have_students_interval(script: Any) -> None:
    ours, base = np.array([0.71, 0.70, 0.74]), np.array([0.69, 0.70, 0.70])
    found = script("study_tables").difference(
        [Run(a, seed) for seed, a in enumerate(ours)], [Run(b, seed) for seed, b in enumerate(base)]
    )
    expected = stats.ttest_rel(ours, base).confidence_interval(0.95)
    assert found.n == 3
    assert found.mean == pytest.approx(100 * (ours - base).mean())
    assert found.mean + found.half_width == pytest.approx(100 * expected.high)


def test_a_difference_of_one_seed_has_the_interval_of_two_shares(script: Any) -> None:
    found = script("study_tables").difference([Run(0.7, 4)], [Run(0.65, 4), Run(0.1, 5)])
    assert (found.n, found.mean) == (1, pytest.approx(5))
    assert found.half_width == pytest.approx(196 * np.sqrt((0.7 * 0.3 + 0.65 * 0.35) / 10_000))


def test_without_a_common_seed_there_is_no_difference(script: Any) -> None:
    assert script("study_tables").difference([Run(0.7, 0)], [Run(0.7, 1)]) is None


def test_an_old_schedule_stands_beside_the_new_one(script: Any) -> None:
    """Its figures looked up in the files by hand; a run with another temperature than the recipe's is kept out."""
    study = ROOT / "studies" / "cifar"
    content = script("esupcon.report.content").read_content
    lines = script("study_changes").schedules(content(study / "runs"), content(study / "long")).splitlines()
    methods = [cell.strip() for cell in lines[0].split("|")[3:-1]]
    found = {}
    for folder in (study / "runs" / "runs").iterdir():
        spec = json.loads((folder / "spec.json").read_text())
        train = spec["train"]
        if (spec["dataset"], train["method"], train["seed"]) == ("cifar100", "esupcon", 0):
            share = json.loads((folder / "result.json").read_text())["metrics"]["test"]["accuracy"]
            found[train["epochs"]] = f"{100 * share:.1f}"
    told = [line.split("|") for line in lines if "CIFAR-100" in line]
    assert {int(row[2]): row[3:-1][methods.index("ESupCon")].strip() for row in told} == found
    assert len(found) == 2
    shorter = next(line.split("|")[3:-1] for line in lines if "NR=0.5 | 60 |" in line)
    assert shorter[methods.index("ESupCon")].strip() == "–"  # stored with the first recipe's temperature only


@pytest.mark.parametrize("gain", [-1e-4, 0.0, 1e-4])
def test_no_difference_has_no_sign(script: Any, gain: float) -> None:
    found = script("study_tables").difference([Run(0.5 + gain, 0)], [Run(0.5, 0)])
    assert str(found) == "0.0 ± 1.4"
