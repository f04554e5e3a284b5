"""Stores of runs for the tests of reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_stores import HOSTILE, Filler, Left, note_plan, row, write_everything, write_run

from esupcon.experiments.plan import Row
from esupcon.experiments.store import Store
from esupcon.report import build


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    return made


@pytest.fixture
def fill(store: Store) -> Filler:
    """Plan rows and write their runs; `accuracies[method]` are per cent by seed, None leaves a run open."""

    def run(accuracies: Mapping[str, Sequence[float | None]], left: Left | None = None, **where: Any) -> list[Row]:
        plan = where.pop("plan", {})
        papers = where.pop("papers", {})
        rows = []
        for method, values in accuracies.items():
            for seed, value in enumerate(values):
                one = row(method, seed, paper_accuracy=papers.get(method), **where)
                rows.append(one)
                if value is not None:
                    write_run(store, one, replace(left or Left(), accuracy=value / 100))
        note_plan(store, rows, **plan)
        return rows

    return run


@pytest.fixture(scope="session")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_everything(tmp_path_factory.mktemp("whole") / "store").root


@pytest.fixture(scope="session")
def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose names are markup, formulas, links, or not text at all."""
    classes = (HOSTILE, "=cmd|' /C calc'!A0 & <b>bold</b>", "\\input{x}_^~#%$ %{x} \u2028\u202e", "日本 | \ud800 é")
    store = write_everything(tmp_path_factory.mktemp("hostile") / "store", classes)
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
    return store.root


@pytest.fixture(scope="session")
def whole_report(whole_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = "esupcon report whole --out report.html"
    return build(whole_store, tmp_path_factory.mktemp("whole_page") / "report.html", command=command)


@pytest.fixture(scope="session")
def hostile_report(hostile_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(hostile_store, tmp_path_factory.mktemp("hostile_page") / "report.html")
