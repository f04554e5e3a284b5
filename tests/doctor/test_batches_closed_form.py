"""The closed forms against counting every batch, against drawing many, and against the loss they describe."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esupcon.doctor import absent_share, alone_share, prototype_share
from esupcon.doctor.batches import batch_size_for
from esupcon.functional import esupcon_loss

small_counts = st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any).map(np.array)


def by_counting(counts: np.ndarray, batch_size: int, n_views: int) -> tuple[float, float, float, float]:
    """Absent classes, images alone, present classes, rows with a positive: means over every possible batch."""
    labels = np.repeat(np.arange(len(counts)), counts)
    sums = np.zeros(4)
    batches = list(combinations(labels, batch_size))
    for batch in batches:
        in_batch = np.bincount(batch, minlength=len(counts))
        present, alone = (in_batch > 0).sum(), (in_batch == 1).sum()
        anchors = n_views * batch_size if n_views > 1 else batch_size - alone
        sums += ((counts > 0).sum() - present, alone, present, anchors)
    return tuple(sums / len(batches))  # type: ignore[return-value]


@settings(max_examples=60)
@given(small_counts, st.data(), st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0, 7.0]))
def test_closed_forms_equal_the_count_over_all_batches(
    counts: np.ndarray, data: st.DataObject, n_views: int, weight: float
) -> None:
    batch_size = data.draw(st.integers(1, min(6, int(counts.sum()))))
    absent, alone, present, anchors = by_counting(counts, batch_size, n_views)
    assert absent_share(counts, batch_size) == pytest.approx(absent / (counts > 0).sum(), abs=1e-12)
    assert alone_share(counts, batch_size) == pytest.approx(alone / batch_size, abs=1e-12)
    whole = weight * present + anchors
    share = weight * present / whole if whole else 0.0
    assert prototype_share(counts, batch_size, n_views, weight) == pytest.approx(share, abs=1e-12)


def test_closed_forms_agree_with_simulation_on_a_long_tail() -> None:
    rng = np.random.default_rng(0)
    counts = np.array([400, 200, 100, 50, 25, 12, 6, 3, 2, 1])
    labels, batch_size, n_draws = np.repeat(np.arange(10), counts), 32, 4000
    absent, alone = np.empty(n_draws), np.empty(n_draws)
    for i in range(n_draws):
        in_batch = np.bincount(rng.choice(labels, batch_size, replace=False), minlength=10)
        absent[i], alone[i] = (in_batch == 0).mean(), (in_batch == 1).sum() / batch_size
    for draws, closed in ((absent, absent_share(counts, batch_size)), (alone, alone_share(counts, batch_size))):
        assert abs(draws.mean() - closed) < 4 * draws.std() / np.sqrt(n_draws)


def test_large_numbers_neither_overflow_nor_lose_digits() -> None:
    counts = np.full(1000, 1300)  # as many as ImageNet has
    assert absent_share(counts, 256) == pytest.approx((1 - 1 / 1000) ** 256, rel=1e-3)
    assert absent_share(counts, 1_300_000) == 0


def test_with_every_class_present_the_share_is_that_of_the_equation() -> None:
    # K / (2N + K), 0.5 % for 10 classes and 2N = 2048
    assert prototype_share(np.full(10, 5000), 1024) == pytest.approx(10 / 2058, rel=1e-6)


def coefficients(labels: torch.Tensor, n_classes: int) -> tuple[float, float]:
    """The sums of the coefficients that esupcon_loss gives to l_pt and to l_SupCon.

    With zero embeddings every similarity is 0: each l_pt is log(n-1+K) and each l_SupCon is log(n-1).
    """
    n = len(labels)
    z, theta = torch.zeros(n, 2, dtype=torch.float64), torch.zeros(n_classes, 2, dtype=torch.float64)
    values = [esupcon_loss(z, labels, theta, temperature=1.0, prototype_weight=w).item() for w in (0.0, 1.0)]
    return (values[1] - values[0]) / np.log(n - 1 + n_classes), values[0] / np.log(n - 1)


@pytest.mark.parametrize("n_views", [1, 2])
def test_the_share_is_that_of_the_loss_itself(n_views: int) -> None:
    counts = np.array([6, 3, 2, 1, 0])
    labels, batch_size = np.repeat(np.arange(5), counts), 4
    sums = np.zeros(2)
    for batch, times in Counter(combinations(labels.tolist(), batch_size)).items():
        rows = torch.tensor(batch).repeat(n_views)
        if len(set(batch)) < len(rows):
            sums += times * np.array(coefficients(rows, 5))
        else:  # the loss refuses such a batch; its prototypes would have their coefficients
            sums += times * np.array([len(set(batch)) / (len(rows) + 5), 0.0])
    assert prototype_share(counts, batch_size, n_views) == pytest.approx(sums[0] / sums.sum(), rel=1e-9)


@given(small_counts, st.sampled_from([0.0, 0.1, 0.3]))
def test_the_suggested_batch_is_the_smallest_that_will_do(counts: np.ndarray, goal: float) -> None:
    size = batch_size_for(counts, goal)
    assert absent_share(counts, size) <= goal
    assert size == 1 or absent_share(counts, size - 1) > goal
