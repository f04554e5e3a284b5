"""Every loss equals its slow float64 twin, and values known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.losses import SupConLoss as PeerSupConLoss
from torch.testing import assert_close

import reference
from esupcon import functional as F
from strategies import LOSSES, Batch, batches, example


@given(batches(), st.sampled_from(sorted(LOSSES)))
def test_loss_equals_its_slow_twin(batch: Batch, name: str) -> None:
    loss, twin, needs_pair = LOSSES[name]
    arguments = batch.z, batch.labels, batch.prototypes, batch.temperature
    assume(name != "simclr" or len(batch.z) % 2 == 0)
    if needs_pair and not batch.has_pair:
        with pytest.raises(ValueError, match="at least one positive pair"):
            loss(*arguments)
        return
    assert_close(loss(*arguments), twin(*arguments), rtol=1e-9, atol=1e-9)


@given(batches())
def test_prototype_loss_has_one_value_per_sample(batch: Batch) -> None:
    value = F.prototype_loss(batch.z, batch.labels, batch.prototypes, temperature=batch.temperature)
    expected = reference.prototype(batch.z, batch.labels, batch.prototypes, batch.temperature, batch.temperature)
    assert_close(value, expected, rtol=1e-9, atol=1e-9)


@given(batches(), st.sampled_from(["class", "batch"]))
def test_spce_posterior_equals_its_slow_twin(batch: Batch, average: str) -> None:
    queries, n_classes = batch.prototypes, len(batch.prototypes)
    value = F.spce_posterior(queries, batch.z, batch.labels, n_classes, temperature=batch.temperature, average=average)
    expected = reference.spce_posterior(queries, batch.z, batch.labels, n_classes, batch.temperature, average)
    assert_close(value, expected, rtol=1e-9, atol=1e-9)
    assert_close(value.sum(1), torch.ones(len(queries), dtype=torch.float64))


def test_spce_literal_equation_by_hand() -> None:
    """Two orthogonal classes of two samples: 1/N sums are 2/4 and 0."""
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    value = F.spce_loss(z, torch.tensor([0, 0, 1, 1]), temperature=1.0, average="batch")
    assert value.item() == pytest.approx(math.log(1 + math.exp(-0.5)))


def test_collapsed_embeddings_give_log_n_minus_one() -> None:
    z = torch.ones(16, 4, dtype=torch.float64)
    assert F.supcon_loss(z, torch.arange(8).repeat(2)).item() == pytest.approx(math.log(15))


def test_labels_with_large_gaps_need_no_large_table() -> None:
    z, labels = torch.randn(8, 3), torch.tensor([5, 2**40, 5, 2**40, 7, 7, 5, 2**62])
    compact = torch.tensor([0, 1, 0, 1, 2, 2, 0, 3])
    assert_close(F.supcon_loss(z, labels), F.supcon_loss(z, compact))
    assert_close(F.spce_loss(z, labels), F.spce_loss(z, compact))
    assert F.spce_loss(z, labels, average="batch").isfinite()


@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_supcon_equals_pytorch_metric_learning(temperature: float) -> None:
    z, labels, _ = example(n=20)
    labels[7] = 9  # a singleton: left out of the mean by both
    assert_close(F.supcon_loss(z, labels, temperature=temperature), PeerSupConLoss(temperature=temperature)(z, labels))


def test_simclr_equals_pytorch_metric_learning_ntxent() -> None:
    z, _, _ = example(n=20)
    assert_close(F.simclr_loss(z, temperature=0.3), NTXentLoss(temperature=0.3)(z, torch.arange(10).repeat(2)))
