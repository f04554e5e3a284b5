"""Modules that users bring."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esupcon.models import MLP, ResNet, build_encoder, build_network


class Restless(nn.Module):
    """Everything a dry run could disturb: modes that differ, statistics, counters, randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Dropout())
        self.frozen = nn.BatchNorm2d(5)
        self.register_buffer("calls", torch.zeros(()))
        self.modes_seen: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.modes_seen.append(any(module.training for module in self.modules()))
        noise = torch.randn(len(x), 5)
        return self.frozen(self.normed(x)).mean(dim=(2, 3)) + noise


def test_dry_run_leaves_no_trace() -> None:
    module = Restless().train()
    module.frozen.eval()
    attributes = set(vars(module))
    modes = [part.training for part in module.modules()]
    state = {name: value.clone() for name, value in module.state_dict().items()}
    random_state = torch.get_rng_state()

    encoder = build_encoder(module, input_shape=(3, 8, 8))

    assert encoder.dim == 5
    assert module.modes_seen == [False]
    assert set(vars(module)) == attributes
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_modes_are_put_back_after_a_failure_too() -> None:
    module = nn.Sequential(nn.Dropout(), nn.Linear(3, 2)).train()
    with pytest.raises(ValueError, match="must map a batch"):
        build_encoder(module, input_shape=(4,))
    assert all(part.training for part in module.modules())


def test_the_module_itself_is_trained() -> None:
    module = nn.Linear(4, 3)
    network = build_network(encoder=module, input_shape=(4,), n_classes=2)
    assert module.weight in set(network.parameters())
    x = torch.randn(5, 4)
    assert torch.equal(network.embed(x), module(x))


def test_a_module_with_a_dim_of_its_own_is_asked_all_the_same() -> None:
    module = nn.Linear(4, 3)
    module.dim = 99  # type: ignore[assignment]
    assert build_encoder(module, input_shape=(4,)).dim == 3


@pytest.mark.parametrize("module", [ResNet(10, width=4), MLP(3 * 8 * 8, hidden=8)])
def test_own_encoders_are_taken_as_they_are(module: nn.Module) -> None:
    encoder = build_encoder(module, input_shape=(3, 8, 8))
    assert encoder is module
    assert build_encoder(build_encoder(nn.Flatten(), input_shape=(3, 8, 8)), input_shape=(3, 8, 8)).dim == 192


def test_precision_of_the_module_is_respected() -> None:
    assert build_encoder(nn.Linear(4, 3).double(), input_shape=(4,)).dim == 3


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.long()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Conv2d(3, 4, 3),
            r"Conv2d must map a batch of shape \(2, 3, 8, 8\) to \(2, dim\); it gave .*\(2, 4, 6, 6\)",
        ),
        (nn.Conv2d(1, 4, 3), r"it raised RuntimeError \(.*channels.*\). Check it against the shape"),
        (nn.Flatten(0), r"of shape \(384,\)"),
        (nn.Flatten(0, 1), r"of shape \(6, 8, 8\). Pool and flatten"),
        (Pair(), "it gave tuple. Wrap it"),
        (nn.Sequential(nn.Flatten(), Whole()), "it gave torch.int64"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), r"Sequential has lazy layers.*Run it once on a batch"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_modules_that_are_no_encoders(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_encoder(module, input_shape=(3, 8, 8))
    assert "\n" not in str(caught.value)
