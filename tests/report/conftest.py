"""Stores of runs for the tests of reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from report_stores import HOSTILE, Filler, note_plan, row, write_everything, write_run

from assets import made_once
from esupcon.experiments.plan import Row
from esupcon.experiments.store import Store
from esupcon.report import build


@pytest.fixture
def fill(store: Store) -> Filler:
    """Plan rows and write their runs; `accuracies[method]` are per cent by seed, None leaves a run open."""

    def run(
        accuracies: Mapping[str, Sequence[float | None]],
        *,
        papers: Mapping[str, float] = {},
        plan: Mapping[str, Any] = {},
        left: Mapping[str, Any] = {},
        **where: Any,
    ) -> list[Row]:
        rows = []
        for method, values in accuracies.items():
            for seed, value in enumerate(values):
                one = row(method, seed, paper_accuracy=papers.get(method), **where)
                rows.append(one)
                if value is not None:
                    write_run(store, one, accuracy=value / 100, **left)
        note_plan(store, rows, **plan)
        return rows

    return run


@pytest.fixture(scope="session")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "whole_store", lambda folder: write_everything(folder / "store")) / "store"


@pytest.fixture(scope="session")
def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose names are markup, formulas, links, or not text at all."""
    classes = (HOSTILE, "=cmd|' /C calc'!A0 & <b>bold</b>", "\\input{x}_^~#%$ %{x} \u2028\u202e", "日本 | \ud800 é")

    def fill(folder: Path) -> None:
        store = write_everything(folder / "store", classes)
        for path in sorted((store.root / "plans").glob("full-*.json")):
            plan = json.loads(path.read_text())
            plan["title"] = f"Title {HOSTILE} </title> @octocat https://example.org"
            plan["notes"] = [f"{HOSTILE} {{{{ 7 * 7 }}}}"]
            for entry in plan["rows"]:
                if entry["dataset"] == "cifar100":
                    entry["dataset"], entry["setting"] = f"=data/{HOSTILE}", "@SUM(1) | \\end{tabular} $x_1$ 日本 --"
                if entry["method"] == "supcon_ce":
                    entry["method"] = f"-own<i>{HOSTILE}"
            path.write_text(json.dumps(plan))

    return made_once(tmp_path_factory, "hostile_store", fill) / "store"


def page_of(factory: pytest.TempPathFactory, store: Path, name: str, **options: str) -> Path:
    return made_once(factory, name, lambda folder: build(store, folder / "report.html", **options)) / "report.html"


@pytest.fixture(scope="session")
def whole_report(whole_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(tmp_path_factory, whole_store, "whole_page", command="esupcon report whole --out report.html")


@pytest.fixture(scope="session")
def hostile_report(hostile_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(tmp_path_factory, hostile_store, "hostile_page")
