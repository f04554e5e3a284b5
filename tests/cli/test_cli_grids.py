"""The commands reproduce, status and demo."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from assets import copy_of
from esupcon.cli import grids
from esupcon.experiments.executors import Task
from esupcon.experiments.store import Store
from esupcon.experiments.worker import compute
from esupcon.methods import METHODS
from in_this_process import InThisProcess

QUICK = ("--set", "epochs=2", "--set", "encoder=mlp-16x1")

MODULE = """
from dataclasses import replace
import numpy as np
from esupcon.data import Dataset, register_dataset
from esupcon.methods import METHODS, Stage, Term, register
from esupcon.training.objective import register_loss

register_loss("pull", lambda z, batch, settings: (z - z.mean(0)).square().mean())
terms = (Term("ce", on="logits"), Term("pull", on="embedding", weight=0.5))
register(replace(METHODS["ce"], key="own_pull", title="CE + pull", stages=(Stage(terms, trains=("encoder", "head")),)))


def stripes():
    y = np.arange(90) % 3
    x = np.random.default_rng(0).integers(0, 100, (90, 1, 6, 6)) + 120 * (np.arange(6) // 2 == y[:, None, None, None])
    return Dataset(x[:60].astype(np.uint8), y[:60], x[60:].astype(np.uint8), y[60:], ("a", "b", "c"))


register_dataset("stripes", stripes)
"""
OWN_TABLE = """
title = "Mine"
methods = ["ce", "own_pull"]
modules = ["own_things.py"]
[train]
encoder = "mlp-16x1"
epochs = 30
batch_size = 30
lr = 0.1
[[columns]]
dataset = "stripes"
"""


def test_a_dry_run_lists_every_run(esupcon, tmp_path: Path) -> None:
    words = ("reproduce", "low_sample", "--profile", "paper", "--dry-run", "--json", "--store", tmp_path / "no")
    rows = esupcon(*words).json
    assert len(rows) == 9 * 7 * 3
    assert {row["table"] for row in rows} == {"low_sample"}
    first = next(row for row in rows if row["method"] == "esupcon")
    assert (first["dataset"], first["setting"], first["paper_accuracy"]) == ("cifar10", "N=2K", 74.08)
    assert first["spec"]["n_train"] == 2000
    assert not (tmp_path / "no").exists()
    chosen = ("--dataset", "cifar10", "--method", "ce,esupcon", "--seeds", "3")
    assert "12 runs, 0 of them stored." in esupcon("reproduce", "low_sample", *chosen, "--dry-run").err
    changed = esupcon("reproduce", "full", "--profile", "smoke", "--set", "epochs=1", "--dry-run", "--json").json
    assert changed[0]["spec"]["train"]["epochs"] == 1


def test_the_same_command_again_computes_nothing(esupcon, digits_store: Path, tmp_path: Path) -> None:
    store = copy_of(digits_store, tmp_path / "store")
    words = ("reproduce", "full", "--profile", "smoke", "--method", "ce,supcon_tt,esupcon", "--seeds", "1")
    words = (*words, *QUICK, "--store", store)
    before = {path: path.stat().st_mtime_ns for path in (store / "runs").rglob("*")}
    again = esupcon(*words)
    assert "3 of 3 runs are already stored." in again.err
    assert "3 of 3 runs are in" in again.out
    assert "digits full" in again.out
    assert "(n=1)" in again.out
    assert [run["error"] for run in esupcon(*words, "--json").json["runs"]] == [None] * 3
    assert {path: path.stat().st_mtime_ns for path in (store / "runs").rglob("*")} == before
    assert "3 of 3" in esupcon("status", store).out
    found = esupcon("status", store, "--json").json
    assert (found[0]["table"], found[0]["done"], found[0]["n_runs"]) == ("full", 3, 3)
    assert all(row["stored"] for row in esupcon(*words, "--dry-run", "--json").json)


def test_own_table_method_and_data_set(esupcon, tmp_path: Path, registers: None) -> None:
    (tmp_path / "own_things.py").write_text(MODULE)
    (tmp_path / "mine.toml").write_text(OWN_TABLE)
    store = Store(tmp_path / "store")
    words = ("reproduce", tmp_path / "mine.toml", "--profile", "smoke", "--seeds", "1")
    refused = esupcon(*words, "--store", store.root, code=2)
    assert "own_things.py. Read it, then pass --allow-code" in refused.err
    printed = esupcon(*words, "--store", store.root, "--allow-code", "--workers", "1")
    assert "CE + pull" in printed.out
    assert "2/2" in printed.err
    runs = [store.read(key) for key in store.keys()]  # noqa: SIM118 - a method of the store
    assert {run.spec.train.method for run in runs} == {"ce", "own_pull"}
    assert all(run.accuracy is not None and run.accuracy > 0.6 for run in runs)
    METHODS.pop("own_pull")  # a process that does not know the module can still read the store
    assert "2 of 2" in esupcon("status", store.root).out
    assert "own_pull" in esupcon("report", store.root, "--format", "markdown").out.replace("\\", "")
    keys = {run.key for run in runs}
    (tmp_path / "own_things.py").write_text(MODULE.replace("weight=0.5", "weight=0.6"))
    listed = esupcon(*words, "--dry-run", "--json")
    assert keys.isdisjoint({row["key"] for row in listed.json}), "a changed module is another run"


def test_runs_without_data_fail_with_one_reason_while_others_continue(
    esupcon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "LocalExecutor", InThisProcess)
    table = '[[columns]]\ndataset = "digits"\n[[columns]]\ndataset = "absent/photos"\n'
    (tmp_path / "two.toml").write_text('title = "Two"\nmethods = ["ce"]\n' + table)
    words = ("reproduce", tmp_path / "two.toml", "--profile", "smoke", "--store", tmp_path / "s", *QUICK)
    printed = esupcon(*words, code=1)
    assert "2 of 4 runs are in" in printed.out
    lines = [line for line in printed.err.splitlines() if "failed" in line]
    assert len(lines) == 1
    assert "failed: ce on absent/photos, full, seed 0 and 1 more: there is no file or folder" in lines[0]
    assert "2 failed" in esupcon("status", tmp_path / "s").err


def test_an_interrupted_grid_continues(esupcon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(InThisProcess):
        def submit(self, task: Task) -> None:
            signal.raise_signal(signal.SIGTERM)
            self._events.append(compute(task, lambda: True))

    words = ("reproduce", "full", "--profile", "smoke", "--method", "ce", "--seeds", "1", *QUICK)
    words = (*words, "--store", tmp_path / "store")
    monkeypatch.setattr(grids, "LocalExecutor", Interrupted)
    monkeypatch.setattr("esupcon.cli.stopping.GRACE_SECONDS", 60.0)  # a busy machine takes longer than 2 s to save
    monkeypatch.setattr(sys, "argv", ["esupcon", *map(str, words)])
    stopped = esupcon(*words, code=143)
    assert "stopped with 0 runs done. To continue: esupcon reproduce full" in stopped.err
    begun = next((tmp_path / "store").glob("work/*"))
    assert list(begun.glob("checkpoint-*.pt"))
    monkeypatch.setattr(grids, "LocalExecutor", InThisProcess)
    assert [run["key"] for run in esupcon(*words, "--json").json["runs"]] == [begun.name]


def test_demo(esupcon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "LocalExecutor", InThisProcess)
    monkeypatch.setattr(grids, "_DEMO_OVERRIDES", {"epochs": 2, "encoder": "mlp-16x1"})
    printed = esupcon("demo", "--out", tmp_path / "d")
    report = tmp_path / "d" / "report.html"
    for word in ("CE", "SupCon+Tt", "ESupCon", "(n=3)", "esupcon train", str(report)):
        assert word in " ".join(printed.out.split())
    assert report.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    again = esupcon("demo", "--out", tmp_path / "d", "--json").json
    assert again["report"] == str(report)
    store = Store(tmp_path / "d")
    runs = [store.read(key) for key in store.keys()]  # noqa: SIM118 - a method of the store
    assert {run.key: run.accuracy for run in runs} == {run["key"]: run["accuracy"] for run in again["runs"]}
    assert [run["method"] for run in again["runs"] if run["seed"] == 0] == ["ce", "supcon_tt", "esupcon"]
    twins = {(run.spec.train.method, run.spec.train.seed): run.spec for run in runs}
    for (method, seed), spec in twins.items():  # methods differ in nothing else
        twin = twins["ce", seed]
        assert spec == twin.model_copy(update={"train": twin.train.model_copy(update={"method": method})})
    shown = next(word for word in printed.out.split() if str(tmp_path / "d" / "runs") in word)
    esupcon("evaluate", shown, "digits")
