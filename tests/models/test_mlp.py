"""The encoder of tables."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from esupcon.models import MLP


def test_forward_is_the_definition() -> None:
    network = MLP(5, hidden=7, layers=3).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(4, 5, dtype=torch.float64)
    parameters = list(network.parameters())
    expected = x
    for weight, bias, gain, shift in zip(*(parameters[i::4] for i in range(4)), strict=True):
        expected = expected @ weight.T + bias
        centred = expected - expected.mean(dim=1, keepdim=True)
        expected = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * gain + shift
        expected = expected.clamp(min=0)
    torch.testing.assert_close(network(x), expected)
    assert network.dim == expected.shape[1] == 7


def test_a_single_row_can_be_trained_on() -> None:
    network = MLP(10).train()
    network(torch.randn(1, 10)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_rows_do_not_depend_on_their_batch_while_training() -> None:
    network = MLP(10, hidden=16).train()
    x = torch.randn(6, 10)
    torch.testing.assert_close(network(x)[:2], network(x[:2]))


def test_the_length_of_a_row_is_seen_from_the_start() -> None:
    """Norms and cosines drop scale; without random biases rows of one direction would be one embedding."""
    network = MLP(4)
    x = torch.randn(32, 4)
    similarity = F.cosine_similarity(network(x), network(0.1 * x))
    assert similarity.mean() < 0.9


def test_more_dimensions_are_flattened() -> None:
    network = MLP(12, hidden=8)
    x = torch.randn(3, 3, 2, 2)
    assert torch.equal(network(x), network(x.reshape(3, 12)))


@pytest.mark.parametrize("settings", [{"hidden": 0}, {"layers": 0}, {"layers": 65}, {"hidden": 10**6}])
def test_sizes_out_of_range_are_refused(settings: dict[str, int]) -> None:
    (name, value), *_ = settings.items()
    with pytest.raises(ValueError, match=rf"{name} must be 1 to \d+; got {value}"):
        MLP(3, **settings)
