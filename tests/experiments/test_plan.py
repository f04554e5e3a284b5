from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from esupcon.experiments.grid import resolve
from esupcon.experiments.plan import MAX_RUNS, Plan, Profile, make_plan, read_override, read_seeds, read_toml
from esupcon.recipes import recommend
from esupcon.spec import TrainSpec
from tiny_images import write_npz

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
train = { batch_size = 32, image_size = 16 }
"""
COLUMN = "[[columns]]\ndataset = 'digits'"
PLUGIN = """
import pathlib
from esupcon.methods import METHODS, register
from dataclasses import replace
pathlib.Path(__file__).with_name("executed").touch()
register(replace(METHODS["ce"], key="own_ce"))
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(TABLE)
    return str(path)


@pytest.fixture
def table_with_code(tmp_path: Path) -> str:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    path = tmp_path / "coded.toml"
    path.write_text(f"title = 'x'\nmodules = 'plugin.py'\nmethods = ['ce', 'own_ce']\n{COLUMN}")
    return str(path)


def profile(**content: object) -> Profile:
    return Profile.model_validate({"name": "own", "title": "own", **content})


def test_own_table(table: str) -> None:
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
    assert (rows[-1].spec.noise_rate, rows[-1].spec.data.image_size) == (0.5, 16)


STUDY = """
title = "Study"
recipe = true
baseline = "CE, best"
methods = ["ce", "CE, best", "esupcon"]
[contestants."CE, best"]
method = "ce"
train = { label_smoothing = 0.1 }
seeds = 1
[[columns]]
dataset = "mine"
seeds = 2
second = "other"
contestants = { "CE, best" = { label_smoothing = 0.3 } }
[[columns]]
dataset = "mine"
setting = "few"
n_train = 60
methods = ["CE, best", "esupcon"]
contestants = { esupcon = { prototype_share = "null", prototype_average = "class" } }
"""


def test_contestants_have_settings_per_column_and_the_recipe_gives_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    data = str(write_npz(tmp_path / "corners.npz"))
    plan = make_plan(str(path), sources={"mine": data, "other": data})
    assert [(row.setting, row.method, row.spec.train.method, row.seed) for row in plan.rows] == [
        *(("full", "ce", "ce", seed) for seed in (0, 1)),
        ("full", "CE, best", "ce", 0),
        *(("full", "esupcon", "esupcon", seed) for seed in (0, 1)),
        *(("few", "CE, best", "ce", 0), ("few", "esupcon", "esupcon", 0)),
    ]
    assert {(row.dataset, row.spec.source, row.second) for row in plan.rows[:5]} == {("mine", data, data)}
    assert plan.rows[-1].second is None
    specs = [row.spec for row in resolve([plan])[0].rows]
    by_recipe = recommend(TrainSpec(method="ce"), (1, 8, 8), 90).train
    assert (specs[0].train.encoder, specs[0].train.epochs) == (by_recipe.encoder, by_recipe.epochs)
    assert specs[0].train.threads == 1
    assert [spec.train.label_smoothing for spec in specs[:3]] == [by_recipe.label_smoothing] * 2 + [0.3]
    assert specs[5].train.label_smoothing == 0.1
    assert specs[3].train.prototype_share is not None and specs[6].train.prototype_share is None
    for change, complaint in (
        (('methods = ["ce"', 'methods = ["no"'), "method must be among"),
        (('contestants = { "CE, best"', 'contestants = { "CE best"'), "method must be among"),
    ):
        path.write_text(STUDY.replace(*change))
        with pytest.raises(ValueError, match=complaint):
            make_plan(str(path))
    path.write_text(STUDY)
    with pytest.raises(ValueError, match="source must be among mine, other; got yours"):
        make_plan(str(path), sources={"yours": data})


def test_the_second_study_is_planned() -> None:
    """Sources of columns that are not chosen do no harm: one command serves every part of the study."""
    table, sources = str(Path(__file__).parents[2] / "studies" / "second" / "study.toml"), {"photos": "/data/photos"}
    plan = make_plan(table)
    part = make_plan(table, settings=["N=2K"], sources=sources)
    assert {row.key for row in part.rows} == {row.key for row in plan.rows if row.setting == "N=2K"}
    seeds = Counter((row.dataset, row.setting) for row in plan.rows if row.method == "ESupCon")
    assert sorted(seeds.values()) == [1] * 8 + [3] * 5
    assert plan.baseline in {row.method for row in plan.rows}


def test_later_layers_win(table: str) -> None:
    scale = profile(
        train={"epochs": 1, "lr": 0.1, "batch_size": 8, "temperature": 0.2},
        method={"ce": {"temperature": 0.3, "momentum": 0.3}},
        table={"mine": {"train": {"momentum": 0.4}}},
    )
    rows = make_plan(table, scale, overrides={"weight_decay": 0.5}).rows
    ce = next(r.spec.train for r in rows if r.method == "ce" and r.setting == "hard")
    found = (ce.epochs, ce.lr, ce.temperature, ce.momentum, ce.batch_size, ce.weight_decay, ce.threads)
    assert found == (1, 0.1, 0.3, 0.4, 32, 0.5, 1)


def test_profile_can_reduce_and_add_columns(table: str) -> None:
    change = {"columns": [{"dataset": "digits", "setting": "n_train=100", "n_train": 40}, {"dataset": "cifar10"}]}
    rows = make_plan(table, profile(table={"mine": change})).rows
    assert [(r.dataset, r.setting, r.spec.n_train, r.reduced, r.paper_accuracy) for r in rows if r.method == "ce"] == [
        ("digits", "n_train=100", 40, "40 samples", 50.5),
        ("cifar10", "full", None, None, None),
    ]
    assert {r.reduced for r in make_plan(table, profile(), overrides={"n_train": 9}).rows} == {"9 samples"}


def test_grid_is_a_product() -> None:
    rows = make_plan("sensitivity", "smoke", methods=("ce",)).rows
    points = {(r.spec.train.temperature, r.spec.train.lr, r.spec.train.batch_size) for r in rows}
    assert len(points) == len(rows) == 8
    assert rows[0].setting == "temperature=0.1, lr=0.1, batch_size=64"
    assert (rows[0].spec.train.temperature, rows[0].spec.train.lr, rows[0].spec.train.batch_size) == (0.1, 0.1, 64)


@pytest.mark.parametrize(
    ("table_name", "options", "complaint"),
    [
        ("full", {"datasets": ("mnist",)}, "data set must be among digits; got mnist"),
        ("full", {"overrides": {"data_dir": "/x"}}, "unknown setting 'data_dir'"),
        ("full", {"overrides": {"seed": 5}}, "seed cannot be set: the plan decides it for each run. Use --seeds"),
        ("full", {"overrides": {"method": "spce"}}, "method cannot be set: .* Use --method"),
        ("full", {"overrides": {"dataset": "digits"}}, "dataset cannot be set: .* Use --dataset"),
        ("sensitivity", {"overrides": {"temperature": 0.5}}, "cannot be set: the table is run at several values of it"),
        (
            "noisy",
            {"overrides": {"noise_rate": 0.1}},
            "noise_rate cannot be set: the columns of the table differ in it",
        ),
    ],
)
def test_mistakes_and_settings_that_would_be_ignored_are_named(
    table_name: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=complaint):
        make_plan(table_name, **{"profile": "smoke", **options})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("title = ", "must be TOML"),
        (f"title = 'x'\nfoo = 1\n{COLUMN}", "foo: Extra inputs are not permitted"),
        (f"title = 'x'\n{COLUMN}\n{COLUMN}", "two columns are called digits full"),
        (f"title = 'x'\nmodules = 'no.py'\n{COLUMN}", "names the module no.py"),
        (f"title = 'x'\nmethods = ['x']\n{COLUMN}", "method must be among"),
    ],
)
def test_wrong_table_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=complaint) as caught:
        make_plan(str(path), profile())
    assert "\n" not in str(caught.value)


def test_number_of_runs_is_bounded(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esupcon.experiments.plan.MAX_RUNS", 3)
    assert len(make_plan(table, profile(), methods=("ce",)).rows) == 2
    with pytest.raises(ValueError, match="has more than 3 runs"):
        make_plan(table, profile())


@pytest.mark.parametrize(
    "name", ["../../../escaped", "/tmp/x", "a/b", "", ".hidden", "x" * 65, "line\\nbreak", "a\\u0000b"]
)
def test_table_name_that_is_not_a_file_name_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "{name}"\n{TABLE}')
    with pytest.raises(ValueError, match="name: must be 1 to 64 letters"):
        make_plan(str(path), "smoke")
    path.write_text(f'name = "{name}"\ntitle = "x"')
    with pytest.raises(ValueError, match="name: must be 1 to 64 letters"):
        read_toml(Profile, str(path))


def test_code_of_a_table_runs_only_if_allowed(table_with_code: str, tmp_path: Path, registers: None) -> None:
    with pytest.raises(ValueError, match=r"table coded runs Python code: .*plugin\.py\. Read it, then pass --allow"):
        make_plan(table_with_code, "smoke")
    listed = make_plan(table_with_code, "smoke", allow_code=True, dry_run=True)
    assert not (tmp_path / "executed").exists()
    assert {row.method for row in listed.rows} == {"ce", "own_ce"}
    plan = make_plan(table_with_code, "smoke", allow_code=True)
    assert (tmp_path / "executed").exists()
    assert [row.key for row in plan.rows] == [row.key for row in listed.rows]
    (tmp_path / "plugin.py").write_text(PLUGIN + "# changed")
    other = make_plan(table_with_code, "smoke", dry_run=True)
    assert {row.key for row in other.rows}.isdisjoint(row.key for row in plan.rows), "another text is another run"


def test_dry_run_of_a_table_with_recipes_and_code_is_refused(table_with_code: str, tmp_path: Path) -> None:
    """Which settings are recommended depends on a method that only the code knows."""
    path = Path(table_with_code)
    path.write_text("recipe = true\n" + path.read_text())
    with pytest.raises(ValueError, match="which --dry-run never executes"):
        make_plan(table_with_code, allow_code=True, dry_run=True)
    assert not (tmp_path / "executed").exists()


def test_code_outside_the_folder_of_the_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(PLUGIN)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "linked.py").symlink_to(tmp_path / "outside.py")
    for module in ("../outside.py", "linked.py", str(tmp_path / "outside.py")):
        (tmp_path / "tables" / "t.toml").write_text(f"title = 'x'\nmodules = '{module}'\n{COLUMN}")
        with pytest.raises(ValueError, match="outside its folder"):
            make_plan(str(tmp_path / "tables" / "t.toml"), "smoke", allow_code=True)
    assert not (tmp_path / "executed").exists()


def test_error_in_code_of_a_table_is_one_line(table_with_code: str, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text("import absent_thing")
    with pytest.raises(ValueError, match=r"plugin\.py: ModuleNotFoundError: No module named 'absent_thing'"):
        make_plan(table_with_code, "smoke", allow_code=True)


def test_stored_plan_equals_the_plan() -> None:
    plan = make_plan("noisy", "smoke")
    content = plan.model_dump(mode="json")
    assert Plan.model_validate(content) == plan
    content["rows"][0]["spec"]["train"]["epochs"] += 1
    with pytest.raises(ValueError, match=f"the run {plan.rows[0].key} has the settings of"):
        Plan.model_validate(content)


def test_words_of_the_command_line() -> None:
    assert read_override("batch-size=64") == ("batch_size", 64)
    assert read_override("encoder=resnet18") == ("encoder", "resnet18")
    assert read_override("lr=null") == ("lr", None)
    assert read_override("encoder=" + "[" * 100_000)[0] == "encoder"
    assert (read_seeds("3"), read_seeds("4,7"), read_seeds("5,")) == ((0, 1, 2), (4, 7), (5,))
    for wrong in ("0", "x", "", "-1", "1,-2", str(MAX_RUNS + 1)):
        with pytest.raises(ValueError, match="seeds must be a number of seeds"):
            read_seeds(wrong)
    for wrong in ("epochs", "=3"):
        with pytest.raises(ValueError, match="written name=value"):
            read_override(wrong)
