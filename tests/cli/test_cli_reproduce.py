from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esupcon.cli.grid_view import duration
from esupcon.experiments.store import Store
from esupcon.methods import METHODS

QUICK = ("--set", "epochs=2", "--set", "encoder=mlp-16x1")

MODULE = '''
import numpy as np
import torch
from esupcon.data import Dataset, register_dataset
from esupcon.engine.objective import register_loss
from esupcon.methods import Method, Stage, Term, register


def pull_together(z, batch, settings):
    """1 - cosine to the mean of the batch's own class."""
    z = torch.nn.functional.normalize(z, dim=1)
    means = torch.stack([z[batch.labels == k].mean(0) for k in batch.labels])
    return (1 - (z * means).sum(1)).mean()


register_loss("pull", pull_together)
register(
    Method(
        key="own_pull",
        title="CE + pull",
        summary="Cross entropy and a pull towards the class mean.",
        head="linear",
        stages=(
            Stage((Term("ce", on="logits"), Term("pull", on="embedding", weight=0.5)), trains=("encoder", "head")),
        ),
    )
)


def stripes():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.integers(0, 100, (90, 1, 6, 6))
    for k in range(3):
        x[y == k, :, :, 2 * k : 2 * k + 2] += 120
    x = x.astype(np.uint8)
    return Dataset(x[:60], y[:60].astype(np.int64), x[60:], y[60:].astype(np.int64), ("a", "b", "c"))


register_dataset("stripes", stripes)
'''
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


@pytest.fixture
def _forget_own_things():
    yield
    METHODS.pop("own_pull", None)
    for name in [name for name in sys.modules if name.startswith("esupcon_table_module_")]:
        del sys.modules[name]


def test_a_dry_run_lists_every_run(esupcon, tmp_path: Path) -> None:
    said = esupcon("reproduce", "low_sample", "--profile", "paper", "--dry-run", "--json", "--store", tmp_path / "no")
    assert said.code == 0
    rows = said.json
    assert len(rows) == 9 * 7 * 3
    for name in ("key", "table", "dataset", "setting", "method", "seed", "paper_accuracy"):
        assert name in rows[0]
    assert {row["table"] for row in rows} == {"low_sample"}
    first = next(row for row in rows if row["method"] == "esupcon")
    assert (first["dataset"], first["setting"], first["paper_accuracy"]) == ("cifar10", "N=2K", 74.08)
    assert first["spec"]["n_train"] == 2000
    assert not (tmp_path / "no").exists()
    narrow = esupcon(
        "reproduce", "low_sample", "--dataset", "cifar10", "--method", "ce,esupcon", "--seeds", "3", "--dry-run"
    )
    assert "12 runs, 0 of them stored." in narrow.err


def test_an_estimate_comes_from_a_probe(esupcon, tmp_path: Path) -> None:
    methods = "ce,supcon_ce,supcon_ce_n"
    words = ("reproduce", "full", "--profile", "smoke", "--method", methods, "--dry-run", "--estimate")
    words = (*words, "--store", tmp_path / "no")
    rows = esupcon(*words, "--json").json
    seconds = {(row["method"], row["seed"]): row["estimated_seconds"] for row in rows}
    assert 0 < seconds["ce", 0] == seconds["ce", 1] < 60
    assert seconds["supcon_ce", 0] == pytest.approx(seconds["ce", 0] * (1 + 0.2 / 3))
    assert seconds["supcon_ce_n", 0] == pytest.approx(seconds["ce", 0] * 0.2 / 3), "its first stage is trained already"
    said = esupcon(*words)
    assert "takes about" in said.err
    assert (
        esupcon("reproduce", "full", "--profile", "smoke", "--set", "epochs=1", "--dry-run", "--json").json[0]["spec"][
            "train"
        ]["epochs"]
        == 1
    )


def test_the_same_command_again_computes_nothing(esupcon, tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ("reproduce", "full", "--profile", "smoke", "--method", "ce,esupcon", "--seeds", "1", "--store", store)
    first = esupcon(*words, *QUICK)
    assert first.code == 0
    assert "2 of 2 runs are in" in first.out
    assert "digits full" in first.out
    assert "(n=1)" in first.out
    assert "2/2" in first.err
    before = {path: path.stat().st_mtime_ns for path in (store / "runs").rglob("*")}
    again = esupcon(*words, *QUICK, "--json")
    assert {path: path.stat().st_mtime_ns for path in (store / "runs").rglob("*")} == before
    assert [run["error"] for run in again.json["runs"]] == [None, None]
    assert "2 of 2 runs are stored already" in again.err
    status = esupcon("status", store)
    assert "2 of 2" in status.out
    told = esupcon("status", store, "--json").json
    assert (told[0]["table"], told[0]["done"], told[0]["n_runs"]) == ("full", 2, 2)
    listed = esupcon(*words, *QUICK, "--dry-run", "--json").json
    assert all(row["stored"] for row in listed)


def test_own_table_method_and_data_set(esupcon, tmp_path: Path, _forget_own_things: None) -> None:
    (tmp_path / "own_things.py").write_text(MODULE)
    (tmp_path / "mine.toml").write_text(OWN_TABLE)
    store = Store(tmp_path / "store")
    said = esupcon("reproduce", tmp_path / "mine.toml", "--profile", "smoke", "--seeds", "1", "--store", store.root)
    assert said.code == 0, said.err
    assert "CE + pull" in said.out
    runs = [store.read(key) for key in store.keys()]  # noqa: SIM118 - a method of the store
    assert {run.spec.train.method for run in runs} == {"ce", "own_pull"}
    assert all(run.accuracy is not None and run.accuracy > 0.6 for run in runs)
    # Another process, which knows nothing of the module, can look at what is stored.
    METHODS.pop("own_pull")
    assert "2 of 2" in esupcon("status", store.root).out
    assert "own_pull" in esupcon("report", store.root, "--format", "markdown").out.replace("\\", "")
    keys = {run.key for run in runs}
    (tmp_path / "own_things.py").write_text(MODULE.replace("weight=0.5", "weight=0.6"))
    listed = esupcon("reproduce", tmp_path / "mine.toml", "--profile", "smoke", "--seeds", "1", "--dry-run", "--json")
    assert keys.isdisjoint({row["key"] for row in listed.json}), "another text is another run"


def test_a_module_that_fails_is_one_line(esupcon, tmp_path: Path, _forget_own_things: None) -> None:
    (tmp_path / "own_things.py").write_text("import absent_thing")
    (tmp_path / "mine.toml").write_text(OWN_TABLE)
    said = esupcon("reproduce", tmp_path / "mine.toml", "--dry-run")
    assert said.code == 2
    assert "own_things.py: ModuleNotFoundError: No module named 'absent_thing'. Mend the module." in said.err
    assert said.err.count("\n") == 1


def test_runs_without_data_fail_with_one_reason_while_others_go_on(esupcon, tmp_path: Path) -> None:
    table = '[[columns]]\ndataset = "digits"\n[[columns]]\ndataset = "absent/photos"\n'
    (tmp_path / "two.toml").write_text('title = "Two"\nmethods = ["ce"]\n' + table)
    words = ("reproduce", tmp_path / "two.toml", "--profile", "smoke", "--store", tmp_path / "s", *QUICK)
    said = esupcon(*words)
    assert said.code == 1
    assert "2 of 4 runs are in" in said.out
    lines = [line for line in said.err.splitlines() if "failed" in line]
    assert lines == [
        "esupcon: failed: ce on absent/photos, full, seed 0 and 1 more: there is no file or folder absent/photos. "
        "Check the path."
    ]
    assert "2 failed" in esupcon("status", tmp_path / "s").err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("reproduce", "tabel"), "'tabel' is neither a table of ours (calibration, complexity, demo, full"),
        (("reproduce", "full", "--profile", "x"), "'x' is neither a profile of ours (cpu, paper, smoke) nor a file"),
        (("reproduce", "full", "--seeds", "none"), "seeds must be how many (3) or which (0,4,7); got 'none'."),
        (("reproduce", "full", "--set", "epochs"), "a setting is written name=value, as in epochs=10; got 'epochs'."),
        (("reproduce", "full", "--set", "epochz=1"), "'epochz' is no setting of a run."),
        (("reproduce", "full", "--method", "cd"), "method must be among ce, "),
        (("reproduce", "full", "--profile", "smoke", "--workers", "0"), "workers must be at least 1; got 0."),
        (("status", "/nowhere"), "/nowhere is no store of runs"),
    ],
)
def test_mistakes_are_one_line(esupcon, words: tuple[str, ...], complaint: str) -> None:
    said = esupcon(*words)
    assert said.code == 2
    assert said.err.startswith("esupcon: ")
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_interrupted_and_taken_up_again(tmp_path: Path) -> None:
    """SIGINT to the command, as Ctrl-C gives it: it saves, says how to go on, and leaves with 130."""
    store = Store(tmp_path / "store")
    words = [sys.executable, "-m", "esupcon", "reproduce", "full", "--profile", "smoke", "--method", "ce"]
    words += ["--seeds", "1", "--store", str(store.root), "--set", "epochs=100", "--set", "encoder=mlp-16x1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 90
    while not list(store.root.glob("work/*/history.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert "stopped with 0 of 1 runs done. To go on: esupcon reproduce full" in err
    begun = next(store.root.glob("work/*"))
    assert list(begun.glob("checkpoint-*.pt"))
    told = subprocess.run([*words, "--json"], capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert json.loads(told.stdout)["runs"][0]["key"] == begun.name
    assert store.is_done(begun.name)


def test_durations_in_words() -> None:
    assert [duration(s) for s in (3.2, 89, 90, 600, 5400, 90_000)] == [
        "3 s",
        "89 s",
        "2 min",
        "10 min",
        "1.5 h",
        "25.0 h",
    ]
