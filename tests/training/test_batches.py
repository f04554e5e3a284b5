from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_data import blobs, quick_spec

from esupcon.spec import TrainSpec
from esupcon.training import TrainData, fit
from esupcon.training.batches import BatchPlan
from esupcon.training.optim import lr_factor


@given(st.integers(2, 500), st.integers(2, 300), st.integers(1, 2))
def test_batches_are_of_one_size_and_use_nearly_everything(n: int, batch_size: int, world: int) -> None:
    try:
        plan = BatchPlan.of(n, batch_size, world)
    except ValueError:
        assert n // -(-n // batch_size) < 2
        return
    order = plan.order(0, 0, 0)
    batches = [plan.indices(order, step) for step in range(plan.steps_per_epoch)]
    used = np.concatenate(batches)
    assert {len(batch) for batch in batches} == {plan.batch_size}
    assert plan.batch_size <= batch_size
    assert plan.batch_size % world == 0
    assert len(np.unique(used)) == len(used)
    assert n - len(used) < plan.steps_per_epoch * world


def test_order_changes_with_seed_stage_and_epoch_only() -> None:
    plan = BatchPlan.of(50, 10)
    orders = [tuple(plan.order(*place)) for place in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]]
    assert len(set(orders)) == 4
    assert tuple(plan.order(0, 0, 0)) == orders[0]


@given(st.lists(st.integers(0, 4), min_size=10, max_size=80))
def test_balanced_order_draws_every_class_equally_often(labels: list[int]) -> None:
    y = np.array(labels)
    order = BatchPlan.of(len(y), 10).order(0, 0, 0, balance=y)
    counts = np.bincount(y[order], minlength=5)[np.unique(y)]
    share = -(-len(y) // len(counts))
    assert len(order) == len(y)
    assert counts.max() <= share
    for k in np.unique(y):
        times = np.bincount(order[y[order] == k], minlength=len(y))[y == k]
        assert times.max() - times.min() <= 2  # gone through in rounds, less what the last cut leaves off


def test_schedule_rises_then_falls_to_zero() -> None:
    factors = [lr_factor(step, 100, 0.1) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 11)
    assert max(factors) == factors[10] == 1
    assert factors[100] == pytest.approx(0)
    assert all(a < b for a, b in pairwise(factors[:11]))
    assert all(a > b for a, b in pairwise(factors[10:]))


def test_steps_instead_of_epochs_are_exact() -> None:
    steps = iter(range(10**6))
    taken: list[int] = []
    fit(quick_spec(steps=7), blobs(), should_stop=lambda: bool(taken.append(next(steps))))
    assert len(taken) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (np.zeros((4, 8, 8), np.uint8), np.zeros(4, np.int64), 1),
            r"uint8 images \(n, C, H, W\).*got uint8 \(4, 8, 8\)",
        ),
        ((np.zeros((4, 3), np.int64), np.zeros(4, np.int64), 1), "floating-point table"),
        ((np.zeros((4, 3), np.float32), np.zeros(3, np.int64), 1), "each with a label; got 4 and 3"),
        ((np.zeros((4, 3), np.float32), np.array([0, 1, 2, 3]), 3), r"lie in 0\.\.2; they range from 0 to 3"),
    ],
)
def test_bad_data_is_named(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainData(*arguments)


def test_tables_train_too() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.normal(size=(60, 5)) + 3 * np.eye(5)[y]).astype(np.float32)
    fitted = fit(TrainSpec(epochs=20, batch_size=30, encoder="mlp"), TrainData(x, y, 3))
    assert (fitted.classifier.logits(x).argmax(1) == y).mean() > 0.9
    assert fitted.spec.precision == "32"
