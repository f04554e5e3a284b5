"""The key of a run covers everything that decides its result, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esupcon.methods import get_method
from esupcon.spec import RunSpec, TrainSpec, canonical_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def run(train: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    return RunSpec(**{"source": "digits", "content": "0" * 64, "train": TrainSpec(**(train or {})), **changes})


@given(JSON)
def test_canonical_json_keeps_the_value(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text(max_size=4), st.integers(), max_size=5))
def test_canonical_json_does_not_depend_on_order(value: dict[str, int]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


def test_whole_float_equals_its_integer() -> None:
    assert canonical_json({"a": 1.0, "b": [2.0, 0.5]}) == '{"a":1,"b":[2,0.5]}'
    assert run({"lr": 1}).key == run({"lr": 1.0}).key


CHANGES: dict[str, Any] = {
    "content": "1" * 64,
    "data": {"image_size": 16},
    "n_train": 50,
    "imbalance_rate": 0.5,
    "noise_rate": 0.1,
    "noise_kind": "pair",
    "validation_fraction": 0.1,
    "cross_fit": True,
    "priors": "balanced",
    "plugins": {"mine": "0" * 64},
    "processes": 2,
    "objects": "f" * 12,
}
TRAIN_CHANGES: dict[str, Any] = {
    "method": "ce",
    "encoder": "mlp",
    "epochs": 7,
    "steps": 7,
    "batch_size": 7,
    "micro_batch": 7,
    "lr": 0.7,
    "optimizer": "adamw",
    "momentum": 0.7,
    "weight_decay": 0.7,
    "warmup": 0.7,
    "temperature": 0.7,
    "prototype_weight": 0.7,
    "prototype_lr": 0.7,
    "spce_average": "batch",
    "projection_dim": 7,
    "encoder_lr": 0.7,
    "schedule": "linear",
    "prototype_temperature": 0.7,
    "prototype_share": 0.7,
    "prototype_average": "sample",
    "label_smoothing": 0.7,
    "contrast_weight": 0.7,
    "logit_adjustment": 0.7,
    "ce_power": 0.7,
    "mixup": 0.7,
    "label_noise": "auto",
    "images_per_class": 7,
    "neck": "norm",
    "train_blocks": 7,
    "cached_views": 7,
    "test_time_flip": True,
    "pretrained": False,
    "augmentation": "digits",
    "precision": "32",
    "threads": 1,
    "compile": True,
    "class_weight": "balanced",
    "patience": 7,
    "seed": 7,
}


def test_every_field_decides_the_key() -> None:
    """A field that is added to a spec must be added here, so that it cannot be left out of the key by accident."""
    assert set(CHANGES) == set(RunSpec.model_fields) - {"source", "train"}
    assert set(TRAIN_CHANGES) == set(TrainSpec.model_fields)
    keys = [run().key]
    keys += [run(**{name: value}).key for name, value in CHANGES.items()]
    needed = {"prototype_average": {"prototype_share": 0.3}}
    keys += [run({name: value, **needed.get(name, {})}).key for name, value in TRAIN_CHANGES.items()]
    assert len(set(keys)) == len(keys)


def test_places_of_data_are_not_part_of_the_key() -> None:
    places = {"data_dir": "/somewhere", "cache_dir": "/elsewhere", "workers": 3, "download": False, "strict": True}
    assert run(data=places).key == run().key
    assert "data_dir" not in run(data=places).model_dump()["data"]


def test_key_covers_the_content_of_the_data_and_not_its_path() -> None:
    assert run(source="here").key == run(source="there").key
    assert run(source="here", content=None).key != run(source="there", content=None).key


def test_difference_names_what_changed() -> None:
    before = run({"epochs": 12}, noise_rate=0.1)
    assert run({"epochs": 5}, noise_rate=0.1).difference(before) == "epochs was 12, now 5"
    assert run({"epochs": 12}, noise_rate=0.2, content="1").difference(before) == (
        "the data differ; noise_rate was 0.1, now 0.2"
    )
    assert run({"epochs": 12, "threads": 2}, noise_rate=0.1, processes=2).difference(before) == (
        "processes was 1, now 2; threads was None, now 2"
    )
    assert before.difference(before) == ""


def test_stored_spec_may_name_a_custom_method() -> None:
    stored = run().model_dump()
    stored["train"]["method"] = "my_method"
    assert RunSpec.read(stored).train.method == "my_method"
    with pytest.raises(ValueError, match="method must be one of"):
        RunSpec.model_validate(stored)
    stored["train"]["method"] = "../x"
    with pytest.raises(ValueError, match="method must be one of"):
        RunSpec.read(stored)


@pytest.mark.parametrize(
    "change",
    [
        *({"method": "nope"}, {"augmentation": "nope"}, {"lr": float("nan")}, {"lr": float("inf")}, {"typo": 1}),
        *({"temperature": 0}, {"temperature": 1e-40}, {"temperature": 1e40}, {"threads": 0}, {"threads": 10**9}),
        *({"epochs": 0}, {"batch_size": 1}, {"seed": -1}, {"weight_decay": float("nan")}),
    ],
)
def test_bad_setting_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        TrainSpec(**change)


def test_reference_rate_scales_with_the_root_of_the_batch() -> None:
    stage = get_method("esupcon").stages[0]
    assert TrainSpec().stage_lr(stage, 1024) == 0.5
    assert TrainSpec().stage_lr(stage, 256) == 0.25
    assert TrainSpec(lr=0.3).stage_lr(stage, 256) == 0.3
    assert TrainSpec(optimizer="adamw").stage_lr(stage, 64) == 1e-3


@pytest.mark.parametrize(
    ("fields", "train"),
    [
        ({}, {"method": "ce", "prototype_weight": 2.0}),
        ({}, {"label_smoothing": 0.1}),
        ({}, {"method": "supcon_cosine_ce", "contrast_weight": 0.5}),
        ({}, {"method": "spce", "logit_adjustment": 1.0}),
        ({}, {"optimizer": "adamw", "momentum": 0.5}),
        ({}, {"cached_views": 8}),
        ({"noise_kind": "pair"}, {}),
        ({}, {"patience": 3}),
    ],
)
def test_setting_without_effect_is_refused(fields: dict[str, Any], train: dict[str, Any]) -> None:
    run = RunSpec(source="digits", train=TrainSpec(**train), **fields)
    with pytest.raises(ValueError, match=r"has no effect with.*\. Omit it\."):
        run.check_used(run.train)
    RunSpec(source="digits", train=TrainSpec()).check_used(TrainSpec())


@pytest.mark.parametrize(
    ("settings", "correction"),
    [
        ({}, 0.0),
        ({"logit_adjustment": 0.6}, 0.6),
        ({"contrast_weight": "mean"}, 0.5),
        ({"contrast_weight": "mean", "logit_adjustment": 1.0}, 1.0),
        ({"contrast_weight": "mean", "method": "ce"}, 0.0),
        ({"contrast_weight": "mean", "class_weight": "balanced"}, 1.0),
    ],
)
def test_the_mean_contrast_corrects_halfway_for_unequal_classes(settings: dict[str, Any], correction: float) -> None:
    assert TrainSpec(**settings).prior_correction == correction
