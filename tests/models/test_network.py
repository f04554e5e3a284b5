"""Encoder, head and projector put together."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esupcon.models import Neck, Network, ProjectionHead, build_network


class Counting(nn.Module):
    """Returns twice its input and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return 2 * x


NAMES = ("embedding", "projection", "logits")


@pytest.mark.parametrize("names", [c for size in (1, 2, 3) for c in combinations(NAMES, size)])
def test_outputs_computes_each_part_once_and_nothing_else(names: tuple[str, ...]) -> None:
    network = Network(Counting(), Counting(), Counting())
    x = torch.randn(3, 2)
    found = network.outputs(x, names)
    assert tuple(found) == names
    assert network.encoder.calls == 1
    assert network.head.calls == ("logits" in names)
    assert network.projector.calls == ("projection" in names)
    for name, value in found.items():
        assert torch.equal(value, 2 * x if name == "embedding" else 4 * x)


@pytest.mark.parametrize("neck", ["none", "norm", "linear"])
def test_mirror_averages_an_image_and_its_mirror_image_in_evaluation_only(neck: Any) -> None:
    network = build_network(encoder="fast", input_shape=(3, 8, 10), n_classes=3, neck=neck, mirror=True)
    x = torch.randn(4, 3, 8, 10)
    network.eval()
    both = network.outputs(x, NAMES[::2])
    for name, value in network.outputs(x.flip(-1), NAMES[::2]).items():
        torch.testing.assert_close(value, both[name])
    network.mirror = False
    one, other = network.outputs(x, ("embedding",)), network.outputs(x.flip(-1), ("embedding",))
    torch.testing.assert_close(both["embedding"], (one["embedding"] + other["embedding"]) / 2)
    network.train()
    torch.manual_seed(0)
    expected = network.outputs(x, ("logits",))["logits"]
    network.mirror = True
    assert torch.equal(network.outputs(x, ("logits",))["logits"], expected)


def test_neck_centres_and_scales_and_its_linear_map_starts_as_the_identity() -> None:
    z = torch.rand(64, 5) * torch.tensor([1.0, 10, 100, 1, 1]) + 3
    neck = Neck(5, linear=True)
    torch.testing.assert_close(neck(z), (z - z.mean(0)) / z.std(0, unbiased=False), atol=1e-3, rtol=1e-3)
    assert [name for name, _ in Neck(5).named_parameters()] == []


def test_projection_head_is_fc_relu_fc() -> None:
    head = ProjectionHead(6, 3)
    z = torch.randn(4, 6)
    first, second = head[0], head[2]
    expected = (z @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    kept = z.clone()
    torch.testing.assert_close(head(z), expected)
    assert torch.equal(z, kept)  # the activation works in place, on the projector's own values only
    assert first.weight.shape == (6, 6)
    assert ProjectionHead(6)(z).shape == (4, 128)
