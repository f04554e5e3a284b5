"""First and second derivatives of every loss, torch.func transforms, and torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.testing import assert_close

from esupcon import functional as F
from esupcon.heads import PrototypeHead
from strategies import LOSSES, example

each_loss = pytest.mark.parametrize("name", LOSSES)
# 0.2 uses the symmetric kernel, 0.002 the strips.
each_temperature = pytest.mark.parametrize("temperature", [0.2, 0.002])


def loss_of_z(
    name: str, temperature: float = 0.2
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]:
    """Return a loss and its twin as functions of z alone, and a z."""
    z, labels, prototypes = example(n=6, d=3)
    loss, twin, _ = LOSSES[name]
    return lambda a: loss(a, labels, prototypes, temperature), lambda a: twin(a, labels, prototypes, temperature), z


@each_loss
@pytest.mark.parametrize("temperature", [0.01, 0.1, 2.0])
def test_gradcheck(name: str, temperature: float) -> None:
    z, labels, prototypes = (x.requires_grad_(x.is_floating_point()) for x in example(n=8))
    # At low temperature the second derivative is large: a smaller step keeps the numerical gradient honest.
    assert torch.autograd.gradcheck(
        lambda z, p: LOSSES[name].loss(z, labels, p, temperature), (z, prototypes), eps=1e-7, atol=1e-4, rtol=1e-4
    )


@each_loss
def test_gradgradcheck(name: str) -> None:
    z, labels, prototypes = (x.requires_grad_(x.is_floating_point()) for x in example(n=6, d=3))
    assert torch.autograd.gradgradcheck(lambda z, p: LOSSES[name].loss(z, labels, p, 0.2), (z, prototypes))


@each_loss
@each_temperature
def test_hessian_equals_that_of_the_slow_twin(name: str, temperature: float) -> None:
    """All blocks: of z, of the prototypes, and mixed."""
    z, labels, prototypes = example(n=6, d=3)
    found, expected = (
        torch.autograd.functional.hessian(lambda a, b, f=f: f(a, labels, b, temperature), (z, prototypes))
        for f in LOSSES[name][:2]
    )
    assert expected[0][0].abs().max() > 0
    assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # used by torch.func itself
@each_loss
@each_temperature
def test_torch_func_transforms_equal_autograd(name: str, temperature: float) -> None:
    """Derivatives through torch.func are never silently zero."""
    loss, twin, z = loss_of_z(name, temperature)
    gradient = torch.autograd.functional.jacobian(loss, z)
    hessian = torch.autograd.functional.hessian(twin, z)
    direction = torch.randn_like(z)
    along = torch.func.grad(lambda a: (torch.func.grad(loss)(a) * direction).sum())(z)
    assert_close(torch.func.grad(loss)(z), gradient)
    assert_close(along, (hessian * direction).sum((2, 3)))
    assert_close(torch.func.hessian(loss)(z), hessian)
    assert_close(torch.func.jacrev(torch.func.jacrev(loss))(z), hessian)
    assert_close(torch.func.jvp(loss, (z,), (direction,))[1], (gradient * direction).sum())
    both = torch.stack([z, direction])
    assert_close(torch.vmap(loss)(both), torch.stack([loss(z), loss(direction)]))


@each_loss
def test_gradient_does_not_depend_on_create_graph(name: str) -> None:
    """Also for rows of any length: the bound on the gradient of tiny rows holds in both."""
    loss, _, z = loss_of_z(name)
    z = (z * 10.0 ** torch.tensor([[0.0], [-20], [20], [-40], [0], [-13]])).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(z), z)
    (with_graph,) = torch.autograd.grad(loss(z), z, create_graph=True)
    assert_close(with_graph, gradient)


@each_loss
def test_autocast_does_not_round_second_derivatives(name: str) -> None:
    z, labels, prototypes = example(n=6, d=3, dtype=torch.float32)

    def derivatives(enabled: bool) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = lambda a: LOSSES[name].loss(a, labels, prototypes, 0.2)  # noqa: E731
            return [torch.func.grad(loss)(z), torch.autograd.functional.hessian(loss, z)]

    assert_close(derivatives(True), derivatives(False))


@each_loss
def test_second_backward_gives_the_same_gradient(name: str) -> None:
    loss, _, z = loss_of_z(name)
    value = loss(z.requires_grad_())
    (first,) = torch.autograd.grad(value, z, retain_graph=True)
    (second,) = torch.autograd.grad(value, z)
    assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_what_is_not_supported_raises() -> None:
    """Forward-mode AD outside torch.func, vectorised second derivatives, and vmap over labels."""
    loss, _, z = loss_of_z("supcon")
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        loss(forward_ad.make_dual(z, torch.ones_like(z)))
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        torch.autograd.functional.hessian(loss, z, vectorize=True)
    with pytest.raises(RuntimeError, match="item"):
        torch.vmap(lambda labels: F.supcon_loss(z, labels))(torch.arange(12).view(2, 6) % 3)


Function = Callable[[Tensor], Tensor]
DIRECTION = torch.linspace(-1, 1, 18, dtype=torch.float64).view(6, 3)


def third(f: Function, z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    value = f(z)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, z, create_graph=True)
        value = (gradient * DIRECTION).sum()
    return value.detach()


def after_checkpointing(f: Function, z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(f, z, use_reentrant=False).backward()
    assert z.grad is not None
    return z.grad


jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian


def along(f: Function, z: Tensor) -> Any:
    return (hessian(f, z) * DIRECTION).sum((2, 3))


# A derivative of the loss, and the same of its slow twin by plain autograd.
DERIVATIVES: dict[str, tuple[Callable[[Function, Tensor], Any], Callable[[Function, Tensor], Any]]] = {
    "hvp": (lambda f, z: torch.autograd.functional.hvp(f, z, DIRECTION)[1], along),
    "vhp": (lambda f, z: torch.autograd.functional.vhp(f, z, DIRECTION)[1], along),
    "third derivative": (third, third),
    "vjp of the gradient": (lambda f, z: torch.func.vjp(torch.func.grad(f), z)[1](DIRECTION)[0], along),
    "jvp of the gradient": (lambda f, z: torch.func.jvp(torch.func.grad(f), (z,), (DIRECTION,))[1], along),
    "jacfwd of the gradient": (lambda f, z: torch.func.jacfwd(torch.func.grad(f))(z), hessian),
    "linearize": (
        lambda f, z: torch.func.linearize(f, z)[1](DIRECTION),
        lambda f, z: (jacobian(f, z) * DIRECTION).sum(),
    ),
    "gradients of several batches": (
        lambda f, z: torch.vmap(torch.func.grad(f))(torch.stack([z, DIRECTION])),
        lambda f, z: torch.stack([jacobian(f, z), jacobian(f, DIRECTION)]),
    ),
    "vectorised jacobian": (lambda f, z: jacobian(f, z, vectorize=True), jacobian),
    "checkpointing": (after_checkpointing, jacobian),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # used by torch.func itself
@pytest.mark.parametrize("name", ["supcon", "spce", "esupcon_share_sample"])
@pytest.mark.parametrize("kind", DERIVATIVES)
def test_derivatives_are_right_or_refused(name: str, kind: str) -> None:
    derivative, plain = DERIVATIVES[kind]
    z, labels, prototypes = example(n=6, d=3)
    try:
        found = derivative(lambda a: LOSSES[name].loss(a, labels, prototypes, 0.2), z)
    except (NotImplementedError, RuntimeError):
        return  # refused
    expected = plain(lambda a: LOSSES[name].twin(a, labels, prototypes, 0.2), z)
    assert expected.abs().max() > 1e-3
    assert_close(found, expected)


class Step(nn.Module):
    """A model with an encoder, a prototype head and a loss."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.encoder, self.head, self.loss = nn.Linear(5, 5), PrototypeHead(5, 4), loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        z = self.encoder(x)
        return self.loss(z, labels, self.head.weight, 0.2) + nn.functional.cross_entropy(self.head(z), labels)


def value_and_gradients(step: Callable[..., Tensor], model: nn.Module, *arguments: Tensor) -> list[Tensor]:
    model.zero_grad()
    value = step(*arguments)
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize(
    "name", ["simclr", "supcon", "spce", "spce_batch", "tightness", "prototype_priors", "esupcon", "esupcon_targets"]
)
def test_compiled_model_has_one_graph_and_the_same_gradients(name: str) -> None:
    torch.compiler.reset()
    model = Step(LOSSES[name].loss)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for n in (12, 18):  # the second with dynamic shapes
        x, labels, _ = example(n, dtype=torch.float32)
        found = value_and_gradients(compiled, model, x, labels)
        assert_close(found, value_and_gradients(model, model, x, labels))


@pytest.mark.parametrize(
    "arguments",
    [
        {"anchors": slice(2, 5)},
        {"anchors": torch.tensor([0, 7])},
        {"temperature": 0.002},
        {"temperature": 1},
        {"prototype_share": 0.3, "prototype_average": "sample", "targets": torch.full((12, 4), 0.25)},
    ],
)
def test_compiled_loss_takes_every_argument(arguments: dict[str, Any]) -> None:
    torch.compiler.reset()
    z, labels, prototypes = example()
    compiled = torch.compile(F.esupcon_loss, fullgraph=True, backend="aot_eager")
    assert_close(compiled(z, labels, prototypes, **arguments), F.esupcon_loss(z, labels, prototypes, **arguments))


def test_compiled_losses_check_labels() -> None:
    torch.compiler.reset()
    z, labels, prototypes = example()
    compiled = torch.compile(F.esupcon_loss, fullgraph=True, backend="aot_eager")
    compiled(z, labels, prototypes)
    for wrong, message in ((labels - 1, "lowest is -1"), (labels + 3, "highest 5"), (labels[:3], "one positive pair")):
        with pytest.raises(ValueError, match=message):
            compiled(z[: len(wrong)], wrong, prototypes)


def test_operators_are_registered_correctly() -> None:
    """Schema, fake implementation, autograd and tracing, by torch's own checks."""
    rows, labels, columns = example()
    rows.requires_grad_()
    columns.requires_grad_()
    for arguments in [(rows, columns, 0.2, None), (rows, rows, 0.02, torch.arange(12))]:
        torch.library.opcheck(torch.ops.esupcon.logsumexp, arguments)
    counts, weight = torch.bincount(labels, minlength=4), torch.rand(4, dtype=torch.float64)
    for prototypes, prototype_weight in ((None, None), (columns, weight)):
        arguments = (rows, prototypes, labels, counts, weight, prototype_weight, 0.2, 0.3, 0.5, True)
        torch.library.opcheck(torch.ops.esupcon.contrastive_loss, arguments)
    torch.library.opcheck(torch.ops.esupcon.count_classes, (labels, 4, False, True))
    torch.library.opcheck(torch.ops.esupcon.count_classes, (labels, None, True, False))
