"""The residual networks against the published architectures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from esupcon.models import ResNet

# Parameters with a classifier of 1,000 classes, as published: 18, 34 and 50 by torchvision, 10 and 14 and the
# narrow 18s by pytorchcv.
PUBLISHED = {10: 5_418_792, 14: 5_788_200, 18: 11_689_512, 34: 21_797_672, 50: 25_557_032}
PUBLISHED_NARROW = {16: 831_096, 32: 3_055_880}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def on_meta(depth: int, **settings: object) -> ResNet:
    """Shapes without memory."""
    with torch.device("meta"):
        return ResNet(depth, **settings)  # type: ignore[arg-type]  # each test passes what it tests


@pytest.mark.parametrize("depth", PUBLISHED)
def test_parameter_count_is_the_published_one(depth: int) -> None:
    network = on_meta(depth, stem="224x224")
    classifier = nn.Linear(network.dim, 1000, device="meta")
    assert count(network) + count(classifier) == PUBLISHED[depth]


def test_resnet50_without_classifier() -> None:
    assert count(on_meta(50, stem="224x224")) == 23_508_032


@pytest.mark.parametrize("width", PUBLISHED_NARROW)
def test_width_scales_as_published(width: int) -> None:
    network = on_meta(18, width=width, stem="224x224")
    assert network.dim == 8 * width
    assert count(network) + 1000 * network.dim + 1000 == PUBLISHED_NARROW[width]


@pytest.mark.parametrize("depth", PUBLISHED)
def test_depth_counts_the_layers_with_weights(depth: int) -> None:
    """Convolutions outside of the shortcuts, and the classifier that is not here."""
    named = on_meta(depth).named_modules()
    layers = [name for name, module in named if isinstance(module, nn.Conv2d) and "shortcut" not in name]
    assert len(layers) + 1 == depth


@pytest.mark.parametrize(
    ("stem", "image", "sides"),
    [
        ("224x224", 224, (56, 56, 28, 14, 7)),
        ("32x32", 32, (32, 32, 16, 8, 4)),
        ("32x32", 8, (8, 8, 4, 2, 1)),
        ("32x32", 1, (1, 1, 1, 1, 1)),
    ],
)
@pytest.mark.parametrize("depth", PUBLISHED)
def test_shapes_of_every_stage(depth: int, stem: str, image: int, sides: tuple[int, ...]) -> None:
    network = on_meta(depth, stem=stem)
    x = torch.empty(2, 3, image, image, device="meta")
    expansion = 4 if depth == 50 else 1
    x = network.stem(x)
    assert x.shape == (2, 64, sides[0], sides[0])
    for stage, side, channels in zip(network.stages, sides[1:], (64, 128, 256, 512), strict=True):
        x = stage(x)
        assert x.shape == (2, channels * expansion, side, side)
    assert network(torch.empty(2, 3, image, image, device="meta")).shape == (2, network.dim)
    assert network.dim == 512 * expansion


def reference_forward(weights: dict[str, Tensor], x: Tensor, depth: int, stem: str) -> Tensor:
    """The architecture as the paper draws it, in eval mode, written on functions alone."""

    def norm(name: str, x: Tensor) -> Tensor:
        mean, var = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        scaled = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]

    def convolve(name: str, x: Tensor, stride: int = 1) -> Tensor:
        kernel = weights[f"{name}.weight"]
        return F.conv2d(x, kernel, stride=stride, padding=(kernel.shape[-1] - 1) // 2)

    if stem == "224x224":
        x = F.max_pool2d(norm("stem.1", convolve("stem.0", x, 2)).clamp(min=0), 3, 2, 1)
    else:
        x = norm("stem.1", convolve("stem.0", x)).clamp(min=0)
    blocks = {10: (1, 1, 1, 1), 14: (2, 2, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}[depth]
    for stage in range(4):
        for block in range(blocks[stage]):
            at = f"stages.{stage}.{block}"
            stride = 2 if stage > 0 and block == 0 else 1
            if depth == 50:
                y = norm(f"{at}.bn1", convolve(f"{at}.conv1", x)).clamp(min=0)
                y = norm(f"{at}.bn2", convolve(f"{at}.conv2", y, stride)).clamp(min=0)
                y = norm(f"{at}.bn3", convolve(f"{at}.conv3", y))
            else:
                y = norm(f"{at}.bn1", convolve(f"{at}.conv1", x, stride)).clamp(min=0)
                y = norm(f"{at}.bn2", convolve(f"{at}.conv2", y))
            if y.shape != x.shape:
                x = norm(f"{at}.shortcut.1", convolve(f"{at}.shortcut.0", x, stride))
            x = (x + y).clamp(min=0)
    return x.flatten(2).mean(dim=2)


@pytest.mark.parametrize("stem", ["32x32", "224x224"])
@pytest.mark.parametrize("depth", PUBLISHED)
def test_forward_is_the_definition(depth: int, stem: str) -> None:
    network = ResNet(depth, width=4, stem=stem).double().eval()  # type: ignore[arg-type]
    for name, value in network.state_dict().items():
        if value.is_floating_point() and "conv" not in name:
            value.uniform_(0.5, 1.5)  # norms that do something, written into the network itself
    x = torch.randn(3, 3, 20, 20, dtype=torch.float64)
    expected = reference_forward(dict(network.state_dict()), x, depth, stem)
    assert (expected.std(dim=0) > 0).float().mean() > 0.5  # not a dead network
    torch.testing.assert_close(network(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("depth", PUBLISHED)
def test_gradients_reach_every_parameter(depth: int, channels: int) -> None:
    network = ResNet(depth, width=4, in_channels=channels)
    network(torch.randn(8, channels, 16, 16)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_eval_rows_do_not_depend_on_each_other_and_statistics_rest() -> None:
    network = ResNet(10, width=4).eval()
    x = torch.randn(4, 3, 8, 8)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.testing.assert_close(network(x)[:1], network(x[:1]))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    network.train()
    network(x)
    assert any(not torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_zero_init_residual_starts_as_the_shortcuts() -> None:
    for depth in (18, 50):
        plain, zeroed = (ResNet(depth, width=4, zero_init_residual=zero) for zero in (False, True))
        assert not any((p == 0).all() for n, p in plain.named_parameters() if ".bn" in n and n.endswith("weight"))
        block = zeroed.stages[0][1]
        x = torch.rand(2, plain.stages[0][1].conv1.in_channels, 4, 4)
        assert torch.equal(block(x), x)


def test_convolutions_start_with_kaiming_variance() -> None:
    network = ResNet(18)
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1), name


def test_channels_last_gives_the_same() -> None:
    network = ResNet(14, width=8).eval()
    x = torch.randn(4, 3, 16, 16)
    expected = network(x)
    network = network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(network(x.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 19}, r"depth must be one of 10, 14, 18, 34, 50; got 19"),
        ({"width": 0}, r"width must be 1 to 4096 .* got 0"),
        ({"width": 5000}, r"width must be 1 to 4096 .* got 5000"),
        ({"stem": "big"}, r"stem must be one of '32x32', '224x224'; got 'big'"),
    ],
)
def test_what_does_not_exist_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResNet(**settings)  # type: ignore[arg-type]
