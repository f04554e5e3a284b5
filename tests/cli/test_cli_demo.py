from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from esupcon.pipeline import demo
from esupcon.pipeline.training import read_result


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SHARED", {**demo.SHARED, "epochs": 2, "encoder": "mlp-16x1"})
    monkeypatch.setattr(demo, "SEEDS", (0, 1))


def test_lines_are_what_the_runs_found(short: None, tmp_path: Path) -> None:
    lines = demo.run_demo(tmp_path, seeds=demo.SEEDS)
    assert [line.key for line in lines] == ["ce", "supcon_tt", "esupcon"]
    for line in lines:
        results = [read_result(tmp_path / f"{line.key}-{seed}") for seed in (0, 1)]
        assert line.accuracies == tuple(result.metrics["accuracy"] for result in results if result.metrics)
        figures = line.as_dict()
        assert figures["accuracy_mean"] == statistics.fmean(line.accuracies)
        assert figures["accuracy_deviation"] == pytest.approx(abs(line.accuracies[0] - line.accuracies[1]) / 2**0.5)
        assert line.gains == tuple(a - b for a, b in zip(line.accuracies, lines[0].accuracies, strict=True))


def test_methods_differ_in_nothing_but_the_method(short: None, tmp_path: Path) -> None:
    demo.run_demo(tmp_path, seeds=(0,))
    specs = [read_result(tmp_path / f"{key}-0").outcome for key in demo.METHOD_KEYS]
    for one in specs:
        assert {**one["spec"], "method": ""} == {**specs[0]["spec"], "method": ""}
        assert one["preparation"] == specs[0]["preparation"]


def test_the_command(short: None, esupcon, tmp_path: Path) -> None:
    said = esupcon("demo", "--out", tmp_path / "d")
    assert said.code == 0
    for word in ("CE", "SupCon+Tt", "ESupCon", "(n=2)", "gain over CE", "esupcon train"):
        assert word in said.out
    again = esupcon("demo", "--out", tmp_path / "d", "--json").json
    assert [line["method"] for line in again["lines"]] == list(demo.METHOD_KEYS)
    assert again["lines"][0]["n_test"] == 359
    assert again["lines"][0]["gain_over_ce_mean"] == 0
