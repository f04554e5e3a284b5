from __future__ import annotations

from pathlib import Path

import pytest

from esupcon.experiments.plan import Choice, make_plan, read_field, read_seeds
from esupcon.experiments.profile import Profile, read_profile

TABLE = """
title = "Mine"
methods = ["ce", "esupcon"]
[train]
epochs = 7
[[columns]]
dataset = "digits"
n_train = 100
paper_accuracy = { ce = 50.5 }
[[columns]]
dataset = "digits"
setting = "hard"
noise_rate = 0.5
train = { batch_size = 32 }
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(TABLE)
    return str(path)


def profile(**content: object) -> Profile:
    return Profile.model_validate({"name": "own", "title": "own", **content})


def test_an_own_table(table: str) -> None:
    rows = make_plan(table, profile(seeds=2)).rows
    assert [(r.setting, r.method, r.seed) for r in rows] == [
        (setting, method, seed)
        for setting in ("n_train=100", "hard")
        for method in ("ce", "esupcon")
        for seed in (0, 1)
    ]
    assert {r.table for r in rows} == {"mine"}
    assert [r.paper_accuracy for r in rows[:4]] == [50.5, 50.5, None, None]
    assert {r.spec.train.epochs for r in rows} == {7}
    assert [r.spec.train.batch_size for r in rows] == [256] * 4 + [32] * 4
    assert rows[-1].as_dict()["spec"]["noise_rate"] == 0.5


def test_the_more_particular_wins(table: str) -> None:
    layers = {
        "train": {"epochs": 1, "lr": 0.1, "batch_size": 8},
        "dataset": {"digits": {"lr": 0.2, "temperature": 0.2}},
        "method": {"ce": {"temperature": 0.3, "momentum": 0.3}},
        "table": {"mine": {"train": {"momentum": 0.4}}},
    }
    rows = make_plan(table, profile(**layers), Choice(fields={"weight_decay": 0.5})).rows
    ce = next(r.spec.train for r in rows if r.method == "ce" and r.setting == "hard")
    assert (ce.epochs, ce.lr, ce.temperature, ce.momentum, ce.batch_size, ce.weight_decay) == (
        1,
        0.2,
        0.3,
        0.4,
        32,
        0.5,
    )


def test_a_profile_takes_columns_and_makes_them_smaller(table: str) -> None:
    change = {"columns": [{"dataset": "digits", "setting": "n_train=100", "n_train": 40}, {"dataset": "cifar10"}]}
    rows = make_plan(table, profile(table={"mine": change})).rows
    assert [(r.dataset, r.setting, r.spec.n_train, r.reduced, r.paper_accuracy) for r in rows if r.method == "ce"] == [
        ("digits", "n_train=100", 40, "40 samples", 50.5),
        ("cifar10", "full", None, None, None),
    ]


def test_a_grid_is_a_product() -> None:
    rows = make_plan("sensitivity", read_profile("smoke"), Choice(methods=("ce",))).rows
    points = {(r.grid["temperature"], r.grid["lr"], r.grid["batch_size"]) for r in rows}
    assert len(points) == len(rows) == 8
    assert rows[0].setting == "temperature=0.1, lr=0.1, batch_size=64"
    assert (rows[0].spec.train.temperature, rows[0].spec.train.lr, rows[0].spec.train.batch_size) == (0.1, 0.1, 64)


def test_narrowing() -> None:
    paper = read_profile("paper")
    rows = make_plan("low_sample", paper, Choice(("cifar10",), ("N=2K",), ("esupcon", "ce"), (4, 7))).rows
    assert [(r.dataset, r.setting, r.method, r.seed) for r in rows] == [
        ("cifar10", "N=2K", m, s) for m in ("ce", "esupcon") for s in (4, 7)
    ]
    assert make_plan("calibration", paper, Choice(methods=("spce",))).rows[0].method == "spce"


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        (Choice(datasets=("mnist",)), "data set must be among cifar10, cifar100, tiny_imagenet, caltech256; got mnist"),
        (Choice(settings=("N=3",)), "setting must be among full; got N=3"),
        (Choice(methods=("sgd",)), "method must be among ce, .*; got sgd"),
        (Choice(fields={"epoch": 3}), "'epoch' is no setting of a run. There are method, encoder, epochs"),
        (Choice(fields={"epochs": 0}), "epochs: Input should be greater than or equal to 1; got 0"),
    ],
)
def test_mistakes_are_named(choice: Choice, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_plan("full", read_profile("paper"), choice)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("title = ", "must be TOML"),
        ("title = 'x'", "columns: Field required"),
        ("title = 'x'\ncolumns = []", "columns: Tuple should have at least 1 item"),
        ("title = 'x'\nfoo = 1\n[[columns]]\ndataset = 'digits'", "foo: Extra inputs are not permitted"),
        ("title = 'x'\n[[columns]]\ndataset='a'\n[[columns]]\ndataset='a'", "two columns are called a full"),
        ("title = 'x'\ngrid = {lr = []}\n[[columns]]\ndataset = 'digits'", "the axis lr has no values"),
        ("title = 'x'\nmodules = 'no.py'\n[[columns]]\ndataset = 'digits'", "names the module no.py"),
        ("title = 'x'\nmethods = ['x']\n[[columns]]\ndataset = 'digits'", "method must be among"),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=complaint) as caught:
        make_plan(str(path), profile())
    assert "\n" not in str(caught.value)


def test_neither_a_table_of_ours_nor_a_file() -> None:
    with pytest.raises(FileNotFoundError, match=r"'ful' is neither a table of ours \(calibration, .*\) nor a file"):
        make_plan("ful", profile())
    with pytest.raises(FileNotFoundError, match=r"neither a profile of ours \(cpu, paper, smoke\)"):
        read_profile("gpu")


def test_fields_and_seeds_from_the_command_line() -> None:
    assert read_field("epochs=10") == ("epochs", 10)
    assert read_field("batch-size=64") == ("batch_size", 64)
    assert read_field("encoder=resnet18") == ("encoder", "resnet18")
    assert read_field("lr=null") == ("lr", None)
    assert read_seeds("3") == (0, 1, 2)
    assert read_seeds("4,7") == (4, 7)
    assert read_seeds("5,") == (5,)
    for wrong in ("0", "x", "", "-1", "1,-2"):
        with pytest.raises(ValueError, match="seeds must be how many"):
            read_seeds(wrong)
    with pytest.raises(ValueError, match="written name=value"):
        read_field("epochs")
