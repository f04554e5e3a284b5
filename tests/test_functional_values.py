"""Every loss equals its slow float64 twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

import reference
from esupcon import functional as F
from strategies import Batch, batches

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def close(value: torch.Tensor, expected) -> None:
    assert_close(value, torch.tensor(expected, dtype=torch.float64), **CLOSE)


@given(batches())
def test_supcon(batch: Batch) -> None:
    z, labels, _ = batch.rows()
    if not batch.has_positive:
        with pytest.raises(ValueError, match="at least one positive pair"):
            F.supcon_loss(batch.z, batch.labels, temperature=batch.temperature)
        return
    close(
        F.supcon_loss(batch.z, batch.labels, temperature=batch.temperature),
        reference.supcon(z, labels, batch.temperature),
    )


@given(batches())
def test_simclr(batch: Batch) -> None:
    assume(len(batch.z) % 2 == 0)
    assume(len(batch.z) > 0)
    close(F.simclr_loss(batch.z, temperature=batch.temperature), reference.simclr(batch.z.tolist(), batch.temperature))


@given(batches(), st.sampled_from(["class", "batch"]), st.booleans())
def test_spce(batch: Batch, average: str, all_classes: bool) -> None:
    z, labels, _ = batch.rows()
    n_classes = batch.n_classes if all_classes else max(labels) + 1
    value = F.spce_loss(
        batch.z,
        batch.labels,
        temperature=batch.temperature,
        average=average,
        n_classes=n_classes if all_classes else None,
    )
    close(value, reference.spce(z, labels, batch.temperature, average, n_classes))


@given(batches(), st.sampled_from(["class", "batch"]))
def test_spce_posterior(batch: Batch, average: str) -> None:
    z, labels, queries = batch.rows()
    value = F.spce_posterior(
        batch.prototypes, batch.z, batch.labels, batch.n_classes, temperature=batch.temperature, average=average
    )
    close(value, reference.spce_posterior(queries, z, labels, batch.n_classes, batch.temperature, average))
    assert_close(value.sum(1), torch.ones(len(queries), dtype=torch.float64))


@given(batches())
def test_tightness(batch: Batch) -> None:
    close(F.tightness_loss(batch.z, batch.labels, batch.prototypes), reference.tightness(*batch.rows()))


@given(batches())
def test_prototype(batch: Batch) -> None:
    z, labels, prototypes = batch.rows()
    close(
        F.prototype_loss(batch.z, batch.labels, batch.prototypes, temperature=batch.temperature),
        [reference.prototype_sample(z, labels, prototypes, i, batch.temperature) for i in range(len(z))],
    )


@given(batches(), st.sampled_from([0.0, 0.3, 1.0, 10.0]))
def test_esupcon(batch: Batch, weight: float) -> None:
    z, labels, prototypes = batch.rows()
    arguments = {"temperature": batch.temperature, "prototype_weight": weight}
    if not batch.has_positive:
        with pytest.raises(ValueError, match="at least one positive pair"):
            F.esupcon_loss(batch.z, batch.labels, batch.prototypes, **arguments)
        return
    close(
        F.esupcon_loss(batch.z, batch.labels, batch.prototypes, **arguments),
        reference.esupcon(z, labels, prototypes, batch.temperature, weight),
    )


def test_spce_literal_equation_by_hand() -> None:
    """Two orthogonal classes of two samples: 1/N sums are 2/4 and 0."""
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    value = F.spce_loss(z, torch.tensor([0, 0, 1, 1]), temperature=1.0, average="batch")
    assert value.item() == pytest.approx(torch.tensor([1 + torch.e**-0.5]).log().item())


def test_labels_with_large_gaps_cost_nothing() -> None:
    z, labels = torch.randn(8, 3), torch.tensor([5, 2**40, 5, 2**40, 7, 7, 5, 2**62])
    compact = torch.tensor([0, 1, 0, 1, 2, 2, 0, 3])
    assert_close(F.supcon_loss(z, labels), F.supcon_loss(z, compact))
    assert_close(F.spce_loss(z, labels), F.spce_loss(z, compact))
