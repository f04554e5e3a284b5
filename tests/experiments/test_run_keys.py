from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esupcon.engine.spec import TrainSpec
from esupcon.experiments.spec import RunSpec, canonical_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def spec(**changes: object) -> RunSpec:
    train = changes.pop("train", {})
    return RunSpec(dataset="digits", train=TrainSpec(**train), **changes)  # type: ignore[arg-type]


@given(JSON)
def test_canonical_json_says_the_same_value(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text(max_size=4), st.integers(), max_size=5))
def test_order_does_not_matter(value: dict[str, int]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


def test_a_whole_float_is_its_integer() -> None:
    assert canonical_json({"a": 1.0, "b": [2.0, 0.5]}) == '{"a":1,"b":[2,0.5]}'
    assert spec(train={"lr": 1}).key == spec(train={"lr": 1.0}).key


def test_the_key_of_a_known_run_stays() -> None:
    """Stored results are found by their keys: whoever changes this orphans every store there is."""
    known = spec(n_train=100, noise_rate=0.2, train={"method": "ce", "epochs": 3, "seed": 1})
    assert known.key == "c8583d517c04"


@pytest.mark.parametrize(
    "change",
    [
        {"n_train": 50},
        {"imbalance_rate": 0.5},
        {"noise_rate": 0.1},
        {"noise_kind": "pair"},
        {"validation_fraction": 0.1},
        {"data": {"image_size": 16}},
        {"modules": {"mine": "0" * 64}},
        {"train": {"seed": 1}},
        {"train": {"method": "ce"}},
        {"train": {"prototype_lr": 2.0}},
    ],
)
def test_whatever_decides_the_result_decides_the_key(change: dict[str, object]) -> None:
    assert spec(**change).key != spec().key


def test_what_is_no_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="data options must be among"):
        spec(data={"data_dir": "/somewhere"})
    with pytest.raises(ValueError, match="noise_kind must be one of"):
        spec(noise_kind="strange")
