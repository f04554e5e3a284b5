"""What must hold of the losses for any numbers: identities, invariances, precision, block sizes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.losses import SupConLoss as PeerSupConLoss
from torch import Tensor
from torch.testing import assert_close

import reference
from esupcon import _contrast
from esupcon import functional as F
from strategies import LOSSES, WITH_ANCHORS, Batch, batches, example

each_loss = pytest.mark.parametrize("name", LOSSES)


@given(batches())
def test_prototype_loss_is_the_smooth_maximum_of_ce_and_supcon(batch: Batch) -> None:
    """l_pt = log(e^CE + e^SupCon - 1), with theta_{y_i} added to the contrast of SupCon."""
    assume(len(batch.z) > 1)
    t = max(batch.temperature, 0.02)  # below, e^loss is not representable
    z, theta = torch.nn.functional.normalize(batch.z), torch.nn.functional.normalize(batch.prototypes)
    own = (z * theta[batch.labels]).sum(1) / t
    ce = (z @ theta.T / t).logsumexp(1) - own
    others = (z @ z.T / t).fill_diagonal_(-math.inf)
    supcon = torch.cat([others, own[:, None]], 1).logsumexp(1) - own
    value = F.prototype_loss(batch.z, batch.labels, batch.prototypes, temperature=t)
    assert_close(value.exp(), ce.exp() + supcon.exp() - 1)


def test_prototype_share_blends_supcon_and_the_prototype_loss() -> None:
    z, labels, prototypes = example()
    l_pt, supcon = F.prototype_loss(z, labels, prototypes), F.supcon_loss(z, labels)

    def loss(share: float, average: str) -> Tensor:
        return F.esupcon_loss(z, labels, prototypes, prototype_share=share, prototype_average=average)

    assert_close(loss(0.0, "class"), supcon)
    assert_close(loss(0.0, "sample"), supcon)
    assert_close(loss(1.0, "sample"), l_pt.mean())
    assert_close(loss(1.0, "class"), torch.stack([l_pt[labels == k].mean() for k in range(3)]).mean())
    assert_close(loss(0.3, "class"), 0.3 * loss(1.0, "class") + 0.7 * supcon)
    # With every class present and every sample paired, K / (n + K) as the share is the literal equation.
    literal = F.esupcon_loss(z, labels, prototypes[:3])
    assert_close(F.esupcon_loss(z, labels, prototypes[:3], prototype_share=3 / 15), literal)


@pytest.mark.parametrize("temperature", [0.1, 0.002])
def test_without_contrast_the_prototype_loss_is_the_cross_entropy_of_the_head(temperature: float) -> None:
    z, labels, prototypes = example()
    logits = torch.nn.functional.normalize(z) @ torch.nn.functional.normalize(prototypes).T / 0.3
    ce = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    settings = {"temperature": temperature, "prototype_temperature": 0.3, "contrast_weight": 0.0}
    assert_close(F.prototype_loss(z, labels, prototypes, **settings), ce)
    separate = F.esupcon_loss(z, labels, prototypes, prototype_share=0.4, prototype_average="sample", **settings)
    assert_close(separate, 0.4 * ce.mean() + 0.6 * F.supcon_loss(z, labels, temperature=temperature))
    with pytest.raises(ValueError, match=r"contrast_weight must be a finite number of at least 0; got -1"):
        F.prototype_loss(z, labels, prototypes, contrast_weight=-1)


def test_log_priors_and_targets_keep_the_loss_where_they_say_nothing() -> None:
    """Log priors of 0 and one-hot targets change nothing; a class with prior 0 takes no part."""
    z, labels, prototypes = example()
    settings = {"prototype_share": 0.3, "prototype_average": "sample"}
    plain = F.esupcon_loss(z, labels, prototypes, **settings)
    one_hot = torch.eye(4)[labels]
    assert_close(F.esupcon_loss(z, labels, prototypes, log_priors=torch.zeros(4), **settings), plain)
    assert_close(F.esupcon_loss(z, labels, prototypes, targets=one_hot, **settings), plain)
    without = F.prototype_loss(z, labels, prototypes, log_priors=torch.tensor([0.0, 0, 0, -math.inf]))
    assert_close(without, F.prototype_loss(z, labels, prototypes[:3]))


@each_loss
def test_order_of_samples_and_length_of_embeddings_do_not_matter(name: str) -> None:
    loss, (z, labels, prototypes) = LOSSES[name].loss, example()
    lengths = 10.0 ** torch.linspace(-30, 30, len(z), dtype=torch.float64)[:, None]
    order = torch.arange(len(z)) if name == "simclr" else torch.randperm(len(z))
    scaled = loss((z * lengths)[order], labels[order], prototypes * 1e-20, 0.1)
    assert_close(scaled, loss(z, labels, prototypes, 0.1))


@pytest.mark.parametrize("name", WITH_ANCHORS)
@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_anchors_add_up_to_the_whole(name: str, temperature: float) -> None:
    """Values and gradients of disjoint anchors sum to those of the batch, singletons included."""
    z, labels, prototypes = example(n=13)
    labels[4] = 3
    parts: list[Tensor | slice] = [slice(0, 5), torch.tensor([12, 6, 5]), slice(7, 12)]

    def value_and_gradients(anchors: list) -> list[Tensor]:
        a, b = z.clone().requires_grad_(), prototypes.clone().requires_grad_()
        loss = sum(LOSSES[name].loss(a, labels, b, temperature, anchors=part) for part in anchors)
        loss.backward()
        return [loss.detach(), a.grad] + ([] if b.grad is None else [b.grad])

    assert_close(value_and_gradients(parts), value_and_gradients([None]))


@each_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_only_the_rounding_of_the_input(name: str, dtype: torch.dtype) -> None:
    z, labels, prototypes = example(n=64, d=16, dtype=torch.float32)
    z, prototypes = z.to(dtype), prototypes.to(dtype)
    value = LOSSES[name].loss(z, labels, prototypes, 0.1)
    assert value.dtype == torch.float32
    exact = LOSSES[name].loss(z.double(), labels, prototypes.double(), 0.1)
    assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)


@each_loss
@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_autocast_changes_nothing(name: str, temperature: float) -> None:
    """Forward and backward inside autocast equal those outside to the last bit."""
    z, labels, prototypes = example(n=64, d=16, dtype=torch.float32)

    def run(enabled: bool) -> list[Tensor]:
        a = z.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = LOSSES[name].loss(a, labels, prototypes, temperature)
            loss.backward()
        return [loss.detach(), a.grad]

    assert_close(run(True), run(False), rtol=0, atol=0)


@given(batches(), st.sampled_from(sorted(LOSSES)))
def test_float32_is_finite_and_near_float64(batch: Batch, name: str) -> None:
    """Any temperature from 0.005 to 10, value and gradient."""
    assume(batch.has_pair)
    assume(name != "simclr" or len(batch.z) % 2 == 0)
    loss = LOSSES[name].loss
    z, prototypes = batch.z.float().requires_grad_(), batch.prototypes.float().requires_grad_()
    value = loss(z, batch.labels, prototypes, batch.temperature)
    value.backward()
    exact = loss(z.detach().double(), batch.labels, prototypes.detach().double(), batch.temperature)
    assert_close(value.double(), exact, rtol=1e-4, atol=1e-5 / min(batch.temperature, 1))
    assert z.grad.isfinite().all()
    assert prototypes.grad is None or prototypes.grad.isfinite().all()


@each_loss
def test_zero_vectors_have_similarity_zero_and_no_gradient(name: str) -> None:
    z, labels, prototypes = example()
    z[3] = 0
    z.requires_grad_()
    value = LOSSES[name].loss(z, labels, prototypes, 0.1)
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), z, retain_graph=True)
    value.backward()
    assert value.isfinite()
    for found in (z.grad, gradient, second):
        assert found.isfinite().all()
        assert (found[3] == 0).all()
        assert (found[4] != 0).any()


def test_absent_class_gets_gradient_only_as_a_negative() -> None:
    z, labels, prototypes = example()
    prototypes.requires_grad_()
    F.esupcon_loss(z, labels, prototypes).backward()
    assert (prototypes.grad[3] != 0).any()  # repelled by every sample
    prototypes.grad = None
    F.tightness_loss(z, labels, prototypes).backward()
    assert (prototypes.grad[3] == 0).all()


@given(st.integers(2, 40), st.integers(1, 45), st.sampled_from([0.001, 0.1]))
def test_block_size_does_not_matter(n: int, block: int, temperature: float) -> None:
    """Neither for the symmetric blocks (0.1) nor for the strips (0.001)."""
    z, labels, prototypes = example(n, d=4, k=2)

    def value_and_gradients() -> list[Tensor]:
        inputs = z.clone().requires_grad_(), prototypes.clone().requires_grad_()
        loss = F.esupcon_loss(inputs[0], labels, inputs[1], temperature=temperature)
        return [loss.detach(), *torch.autograd.grad(loss, inputs)]

    expected = value_and_gradients()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_contrast, "BLOCK", block)
        patch.setattr(_contrast, "STRIP_BYTES", 8 * n * block)
        patch.setattr(_contrast, "KEEP_BYTES", 3 * z.numel() * 8 + 4 * block**2 * 8)
        assert_close(value_and_gradients(), expected)


def test_kept_blocks_and_recomputed_blocks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels, _ = example(n=50, dtype=torch.float32)
    z.requires_grad_()
    monkeypatch.setattr(_contrast, "BLOCK", 16)
    (kept,) = torch.autograd.grad(F.supcon_loss(z, labels), z)
    monkeypatch.setattr(_contrast, "KEEP_BYTES", 0)
    (recomputed,) = torch.autograd.grad(F.supcon_loss(z, labels), z)
    assert torch.equal(recomputed, kept)


# --- Slow float64 twins, and values known in closed form -------------------------------------------------------------


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
