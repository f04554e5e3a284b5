"""What must hold of the losses whatever the numbers: identities, invariances, gradients, peers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.losses import SupConLoss as PeerSupConLoss
from torch import Tensor
from torch.testing import assert_close

from esupcon import contrast
from esupcon import functional as F
from strategies import Batch, batches

Loss = Callable[..., Tensor]
LOSSES: dict[str, Loss] = {
    "simclr": lambda z, y, p, t, **k: F.simclr_loss(z, temperature=t, **k),
    "supcon": lambda z, y, p, t, **k: F.supcon_loss(z, y, temperature=t, **k),
    "spce": lambda z, y, p, t, **k: F.spce_loss(z, y, temperature=t, **k),
    "spce_batch": lambda z, y, p, t, **k: F.spce_loss(z, y, temperature=t, average="batch", **k),
    "tightness": lambda z, y, p, t, **k: F.tightness_loss(z, y, p, **k),
    "prototype": lambda z, y, p, t, **k: F.prototype_loss(z, y, p, temperature=t, **k).sum(),
    "esupcon": lambda z, y, p, t, **k: F.esupcon_loss(z, y, p, temperature=t, prototype_weight=2.0, **k),
}
WITH_ANCHORS = ["supcon", "spce", "spce_batch", "prototype", "esupcon"]


def example(n: int = 12, d: int = 5, k: int = 4, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    labels = torch.arange(n) % (k - 1)  # the last class is absent
    return torch.randn(n, d, dtype=dtype), labels, torch.randn(k, d, dtype=dtype)


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


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("temperature", [0.01, 0.1, 2.0])
def test_gradcheck(name: str, temperature: float) -> None:
    z, labels, prototypes = (x.requires_grad_(x.is_floating_point()) for x in example(n=8))
    # At low temperature the second derivative is large: a smaller step keeps the numerical gradient honest.
    assert torch.autograd.gradcheck(
        lambda z, p: LOSSES[name](z, labels, p, temperature), (z, prototypes), eps=1e-7, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "simclr"])
def test_order_of_samples_does_not_matter(name: str) -> None:
    z, labels, prototypes = example()
    order = torch.randperm(len(z))
    assert_close(LOSSES[name](z[order], labels[order], prototypes, 0.1), LOSSES[name](z, labels, prototypes, 0.1))


@pytest.mark.parametrize("name", LOSSES)
def test_length_of_embeddings_does_not_matter(name: str) -> None:
    z, labels, prototypes = example()
    lengths = 10.0 ** torch.linspace(-30, 30, len(z), dtype=torch.float64)[:, None]
    scaled = LOSSES[name](z * lengths, labels, prototypes * 1e-20, 0.1)
    assert_close(scaled, LOSSES[name](z, labels, prototypes, 0.1))


@pytest.mark.parametrize("name", WITH_ANCHORS)
@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_anchors_add_up_to_the_whole(name: str, temperature: float) -> None:
    """Values and gradients of disjoint anchors sum to those of the batch, singletons included."""
    z, labels, prototypes = example(n=13)
    labels[4] = 3
    parts: list[Tensor | slice] = [slice(0, 5), torch.tensor([12, 6, 5]), slice(7, 12)]

    def value_and_gradients(anchors: list) -> list[Tensor]:
        a, b = z.clone().requires_grad_(), prototypes.clone().requires_grad_()
        loss = sum(LOSSES[name](a, labels, b, temperature, anchors=part) for part in anchors)
        loss.backward()
        return [loss.detach(), a.grad] + ([] if b.grad is None else [b.grad])

    for part, whole in zip(value_and_gradients(parts), value_and_gradients([None]), strict=True):
        assert_close(part, whole)


@pytest.mark.parametrize("name", LOSSES)
def test_second_backward_gives_the_same_gradient(name: str) -> None:
    z, labels, prototypes = (x.requires_grad_(x.is_floating_point()) for x in example())
    loss = LOSSES[name](z, labels, prototypes, 0.1)
    (first,) = torch.autograd.grad(loss, z, retain_graph=True)
    (second,) = torch.autograd.grad(loss, z)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_only_the_rounding_of_the_input(name: str, dtype: torch.dtype) -> None:
    z, labels, prototypes = example(n=64, d=16, dtype=torch.float32)
    z, prototypes = z.to(dtype), prototypes.to(dtype)
    exact = LOSSES[name](z.double(), labels, prototypes.double(), 0.1)
    value = LOSSES[name](z, labels, prototypes, 0.1)
    assert value.dtype == torch.float32
    assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_autocast_changes_nothing(name: str, temperature: float) -> None:
    """Forward and backward inside autocast equal those outside to the last bit."""
    z, labels, prototypes = example(n=64, d=16, dtype=torch.float32)

    def run(enabled: bool) -> list[Tensor]:
        a = z.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = LOSSES[name](a, labels, prototypes, temperature)
            loss.backward()
        return [loss.detach(), a.grad]

    for inside, outside in zip(run(True), run(False), strict=True):
        assert torch.equal(inside, outside)


@given(batches(), st.sampled_from(sorted(LOSSES)))
def test_float32_is_finite_and_near_float64(batch: Batch, name: str) -> None:
    """Any temperature from 0.005 to 10, value and gradient."""
    assume(batch.has_positive)
    assume(name != "simclr" or len(batch.z) % 2 == 0)
    z, prototypes = batch.z.float().requires_grad_(), batch.prototypes.float().requires_grad_()
    value = LOSSES[name](z, batch.labels, prototypes, batch.temperature)
    value.backward()
    exact = LOSSES[name](z.detach().double(), batch.labels, prototypes.detach().double(), batch.temperature)
    assert_close(value.double(), exact, rtol=1e-4, atol=1e-5 / min(batch.temperature, 1))
    assert z.grad.isfinite().all()
    assert prototypes.grad is None or prototypes.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_zero_vectors_have_similarity_zero_and_no_gradient(name: str) -> None:
    z, labels, prototypes = example()
    z[3] = 0
    z.requires_grad_()
    value = LOSSES[name](z, labels, prototypes, 0.1)
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()
    assert (z.grad[3] == 0).all()
    assert (z.grad[4] != 0).any()


@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_supcon_equals_pytorch_metric_learning(temperature: float) -> None:
    z, labels, _ = example(n=20)
    labels[7] = 9  # a singleton: left out of the mean by both
    assert_close(F.supcon_loss(z, labels, temperature=temperature), PeerSupConLoss(temperature=temperature)(z, labels))


def test_simclr_equals_pytorch_metric_learning_ntxent() -> None:
    z, _, _ = example(n=20)
    assert_close(F.simclr_loss(z, temperature=0.3), NTXentLoss(temperature=0.3)(z, torch.arange(10).repeat(2)))


def test_collapsed_embeddings_sit_at_log_n_minus_one() -> None:
    z = torch.ones(16, 4, dtype=torch.float64)
    assert F.supcon_loss(z, torch.arange(8).repeat(2)).item() == pytest.approx(math.log(15))


def test_absent_class_gets_gradient_only_as_a_negative() -> None:
    z, labels, prototypes = example()
    prototypes.requires_grad_()
    F.esupcon_loss(z, labels, prototypes).backward()
    assert (prototypes.grad[3] != 0).any()  # repelled by every sample
    prototypes.grad = None
    F.tightness_loss(z, labels, prototypes).backward()
    assert (prototypes.grad[3] == 0).all()


@given(st.integers(1, 40), st.integers(1, 45), st.booleans(), st.sampled_from([0.01, 0.1]))
def test_block_size_does_not_matter(n: int, block: int, with_extra: bool, temperature: float) -> None:
    z = torch.nn.functional.normalize(torch.randn(n, 4, dtype=torch.float64)).requires_grad_()
    extra = torch.nn.functional.normalize(torch.randn(3, 4, dtype=torch.float64)) if with_extra else None
    weights = torch.rand(n, dtype=torch.float64)

    def run(block: int | None) -> tuple[Tensor, Tensor]:
        lse = contrast.contrast_logsumexp(z, temperature=temperature, extra=extra, block=block)
        return lse, torch.autograd.grad((lse * weights)[lse.isfinite()].sum(), z)[0]

    for some, default in zip(run(block), run(None), strict=True):
        assert_close(some, default)
    dense = (z @ z.T / temperature).detach().fill_diagonal_(-math.inf)
    if extra is not None:
        dense = torch.cat([dense, z.detach() @ extra.T / temperature], 1)
    assert_close(run(block)[0].detach(), dense.logsumexp(1))


def test_kept_blocks_and_recomputed_blocks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.nn.functional.normalize(torch.randn(50, 8)).requires_grad_()

    def gradient() -> Tensor:
        return torch.autograd.grad(contrast.contrast_logsumexp(z, temperature=0.1, block=16).sum(), z)[0]

    kept = gradient()
    monkeypatch.setattr(contrast, "KEEP_BYTES", 0)
    assert torch.equal(gradient(), kept)


def test_torch_compile_gives_the_same_values() -> None:
    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.Linear(5, 5)
            self.prototypes = torch.nn.Parameter(torch.randn(4, 5))

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return F.esupcon_loss(self.encoder(x).relu(), labels, self.prototypes)

    step = Step()
    x, labels, _ = example(dtype=torch.float32)
    eager = step(x, labels)
    eager.backward()
    gradient = step.encoder.weight.grad.clone()
    step.zero_grad()
    compiled = torch.compile(step, backend="aot_eager")(x, labels)
    compiled.backward()
    assert_close(compiled, eager)
    assert_close(step.encoder.weight.grad, gradient)
