"""Batches, their order, their terms, and batches that are encoded in pieces."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_data import blobs, quick_spec, rowwise_encoder
from torch import Tensor, nn
from torch.testing import assert_close

from esupcon import functional as F
from esupcon.methods import METHODS
from esupcon.training import TrainData, fit
from esupcon.training.batches import BatchPlan
from esupcon.training.objective import LOSSES, BatchOutputs
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
        ((np.zeros((4, 3), np.float32), np.zeros(3, np.int64), 1), "each with a label; got 4 and 3"),
        ((np.zeros((4, 3), np.float32), np.array([0, 1, 2, 3]), 3), r"lie in 0\.\.2; they range from 0 to 3"),
    ],
)
def test_bad_data_is_named(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainData(*arguments)


# --- Terms of a batch ------------------------------------------------------------------------------------------------


LABELS = torch.arange(12) % 3


def loss(name: str, z: Tensor, **changes: object) -> Tensor:
    about = {key: changes.pop(key) for key in ("log_priors", "anchors") if key in changes}
    prototypes = torch.eye(3, 4, dtype=torch.float64)
    batch = BatchOutputs({}, LABELS, prototypes, n_classes=3, **about)  # type: ignore[arg-type]
    return LOSSES[name](z, batch, quick_spec(**changes))


def test_log_priors_are_added_to_the_logits_of_ce_and_esupcon() -> None:
    logits, z = torch.randn(12, 3, dtype=torch.float64), torch.randn(12, 4, dtype=torch.float64)
    priors = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    assert_close(loss("ce", logits, log_priors=priors), torch.nn.functional.cross_entropy(logits + priors, LABELS))
    expected = F.esupcon_loss(z, LABELS, torch.eye(3, 4, dtype=torch.float64), log_priors=priors)
    assert_close(loss("esupcon", z, log_priors=priors), expected)


@pytest.mark.parametrize("method", ["ce", "esupcon", "supcon_cosine_ce"])
def test_adjusted_logits_predict_rare_classes_more_often(method: str) -> None:
    """The logits that training leaves stand for more equal classes; a class without a sample does no harm."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [90, 10]).astype(np.int64)
    x = (rng.normal(size=(100, 4)) + 0.8 * y[:, None]).astype(np.float32)
    spec = quick_spec(method=method, encoder="mlp-16x1", epochs=20, augmentation="table_noise", temperature=0.5)
    if method == "esupcon":  # averaged over classes, as in the paper, it hardly learns their shares
        spec = spec.model_copy(update={"prototype_share": 0.8, "prototype_average": "sample"})
    plain, adjusted = (
        fit(spec.model_copy(update={"logit_adjustment": strength}), TrainData(x, y, 3)).classifier.logits(x)
        for strength in (0.0, 1.0)
    )
    margin = [(logits[:, 1] - logits[:, 0]).mean() for logits in (plain, adjusted)]
    assert margin[1] > margin[0] + 0.1, margin
    assert np.isfinite(adjusted).all()


def test_anchors_of_ce_add_up() -> None:
    logits = torch.randn(12, 3, dtype=torch.float64)
    parts = [loss("ce", logits, anchors=part, label_smoothing=0.1) for part in (slice(0, 5), slice(5, 12))]
    assert_close(sum(parts), loss("ce", logits, label_smoothing=0.1))


# --- A batch encoded in pieces trains like the batch in one shot -----------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("micro_batch", [1, 5])
def test_pieces_give_the_gradients_of_the_whole(method: str, micro_batch: int) -> None:
    encoder = rowwise_encoder()
    spec = quick_spec(method=method, precision="64", epochs=2)
    whole, pieces = (
        fit(spec.model_copy(update={"micro_batch": size}), blobs(), encoder=copy.deepcopy(encoder))
        for size in (None, micro_batch)
    )
    for a, b in zip(whole.network.parameters(), pieces.network.parameters(), strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert [r["loss"] for r in whole.history] == pytest.approx([r["loss"] for r in pieces.history], rel=1e-9)


def test_dropout_drops_the_same_units_in_both_passes() -> None:
    """With the whole batch as one piece the cached way is the plain way, dropout and all."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 8))
    fitted = fit(quick_spec(micro_batch=16, epochs=3), blobs(), encoder=encoder)
    assert all(torch.isfinite(p).all() for p in fitted.network.parameters())
    losses = [record["loss"] for record in fitted.history]
    assert losses[-1] < losses[0]


def test_batch_norm_statistics_are_updated_once_a_piece() -> None:
    fitted = fit(quick_spec(micro_batch=8, epochs=1), blobs())
    counts = {int(v) for n, v in fitted.network.state_dict().items() if n.endswith("num_batches_tracked")}
    assert counts == {3 * 2}  # three steps, two pieces each, the caching pass not counted
