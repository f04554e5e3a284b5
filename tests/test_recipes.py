"""The table of recipes: every kind of data has one, explicit settings win, tables of the paper are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from esupcon import recipes
from esupcon.experiments.plan import make_plan
from esupcon.methods import METHODS
from esupcon.recipes import PRETRAINED, kind_of, recommend
from esupcon.spec import TrainSpec


@pytest.mark.parametrize(
    ("shape", "n", "kind", "encoder"),
    [
        ((3, 32, 32), 2000, "small images", "fast"),
        ((1, 8, 8), 1500, "small images", "fast"),
        ((3, 7, 9), 300, "small images", "mlp-256x2"),
        ((3, 224, 224), 3000, "photos", PRETRAINED),
        ((30,), 500, "table", "mlp-128x1"),
        ((30,), 5000, "table", "mlp-256x2"),
    ],
)
def test_every_kind_of_data_has_a_recipe(shape: tuple[int, ...], n: int, kind: str, encoder: str) -> None:
    recipe = recommend(TrainSpec(), shape, n)
    assert (recipe.kind, recipe.train.encoder) == (kind, encoder)
    assert all(f"{name} " in str(recipe) for name in ("encoder", "epochs", "batch_size"))
    assert all(recipe.reasons.values())


def test_the_weights_of_prototypes_depend_on_the_number_of_classes() -> None:
    few, many = (recommend(TrainSpec(), (3, 32, 32), 2000, n_classes=k).train for k in (10, 100))
    assert (few.contrast_weight, many.contrast_weight) == ("mean", 0.0)
    assert few.prototype_share < many.prototype_share
    assert few.temperature > many.temperature
    assert recommend(TrainSpec(method="ce"), (3, 32, 32), 2000).train.contrast_weight == 1.0  # it has no effect


def test_photos_without_the_weights_train_the_fast_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "pretrained_installed", lambda: False)
    assert recommend(TrainSpec(), (3, 64, 64), 300).train.encoder == "fast"


@pytest.mark.parametrize(
    ("named", "row", "side"),
    [
        ({"encoder": "timm:resnet18"}, "pretrained", 224),
        ({"encoder": "timm:resnet18", "pretrained": False}, "other network", 64),
        ({"encoder": PRETRAINED, "pretrained": False}, "other network", 64),
        ({"pretrained": False}, "fast", 64),
    ],
)
def test_pretrained_weights_are_frozen_and_can_be_declined(named: dict[str, Any], row: str, side: int) -> None:
    recipe = recommend(TrainSpec(**named), (3, 224, 224), 300)
    assert recipe.train.optimizer == recipes.RECIPES[row]["optimizer"][0]
    assert (recipe.train.train_blocks == 0) == (row == "pretrained")
    assert recipes.photo_side(recipe.train.encoder, pretrained=recipe.train.pretrained) == side


@pytest.mark.parametrize(
    "named",
    [
        {"epochs": 3},
        {"encoder": "resnet10-w16"},
        {"temperature": 0.7},
        {"prototype_weight": 10.0},
        {"optimizer": "sgd"},
    ],
)
def test_explicit_settings_win(named: dict[str, Any]) -> None:
    recipe = recommend(TrainSpec(**named), (3, 32, 32), 2000)
    assert named.items() <= recipe.train.model_dump().items()
    assert not named.keys() & recipe.reasons.keys()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_valid_settings(method: str) -> None:
    for shape in ((3, 32, 32), (3, 224, 224), (4,)):
        assert recommend(TrainSpec(method=method), shape, 200).train.method == method


def test_runs_of_a_table_are_left_as_planned() -> None:
    for row in make_plan("full", "smoke").rows:
        assert recommend(row.spec.train, (3, 32, 32), 2000).train == row.spec.train


def test_more_data_never_need_more_epochs() -> None:
    for shape in ((3, 32, 32), (3, 224, 224), (7,)):
        epochs = [recommend(TrainSpec(), shape, n).train.epochs for n in (20, 200, 2000, 20_000, 200_000)]
        assert epochs == sorted(epochs, reverse=True)


def test_grey_and_tiny_images_are_not_mirrored() -> None:
    assert not recommend(TrainSpec(), (1, 28, 28), 100).train.test_time_flip
    assert not recommend(TrainSpec(augmentation="digits"), (3, 32, 32), 100).train.test_time_flip
    assert recommend(TrainSpec(), (3, 32, 32), 100).train.test_time_flip
    assert kind_of((3, 63, 80)) == "small images"


def test_weight_decay_of_small_tables_is_for_adamw_only() -> None:
    decays = {name: recommend(TrainSpec(optimizer=name), (30,), 500).train.weight_decay for name in ("adamw", "sgd")}
    assert decays == {"adamw": recommend(TrainSpec(), (30,), 500).train.weight_decay, "sgd": TrainSpec().weight_decay}
    assert decays["adamw"] > decays["sgd"]
