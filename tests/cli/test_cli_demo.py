from __future__ import annotations

from pathlib import Path

import pytest

from esupcon.cli import demo as command
from esupcon.experiments.plan import make_plan
from esupcon.experiments.profile import read_profile
from esupcon.experiments.store import Store


def test_methods_differ_in_nothing_but_the_method() -> None:
    rows = make_plan(command.TABLE, read_profile(command.PROFILE)).rows
    assert [row.method for row in rows if row.seed == 0] == ["ce", "supcon_tt", "esupcon"]
    for row in rows:
        twin = next(one for one in rows if one.method == "ce" and one.seed == row.seed).spec
        assert row.spec == twin.model_copy(update={"train": twin.train.model_copy(update={"method": row.method})})


def test_the_command(esupcon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "FIELDS", {"epochs": 2, "encoder": "mlp-16x1"})
    said = esupcon("demo", "--out", tmp_path / "d")
    assert said.code == 0
    report = tmp_path / "d" / "report.html"
    for word in ("CE", "SupCon+Tt", "ESupCon", "(n=3)", "gain over CE", "esupcon train", str(report)):
        assert word in " ".join(said.out.split())
    assert report.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    again = esupcon("demo", "--out", tmp_path / "d", "--json").json
    assert [line["method"] for line in again["lines"]] == ["ce", "supcon_tt", "esupcon"]
    assert again["lines"][0]["n_test"] == 359
    assert again["lines"][0]["gain_over_ce_mean"] == 0
    store = Store(tmp_path / "d")
    runs = [store.read(key) for key in store.keys()]  # noqa: SIM118 - a method of the store
    for line in again["lines"]:
        found = {run.spec.train.seed: run.accuracy for run in runs if run.spec.train.method == line["method"]}
        assert line["accuracies"] == [found[seed] for seed in (0, 1, 2)]
    shown = next(word for word in said.out.split() if str(tmp_path / "d" / "runs") in word)
    assert esupcon("evaluate", shown, "digits").code == 0
