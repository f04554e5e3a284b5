"""The encoder `fast`: its architecture, and whitening filters from training images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from esupcon.models import FastEncoder, build_encoder
from esupcon.models.fast import Whitening


def smooth_images(n: int = 64, channels: int = 3, side: int = 32) -> Tensor:
    """Random images whose neighbouring pixels are correlated."""
    noise = torch.randn(n, channels, side // 4, side // 4)
    return F.interpolate(noise, size=(side, side), mode="bilinear") + 0.1 * torch.randn(n, channels, side, side)


def test_forward_is_the_definition() -> None:
    encoder = FastEncoder((3, 32, 32)).double().eval()
    for name, value in encoder.state_dict().items():
        if "running" in name or name.endswith("bias"):
            value.uniform_(0.5, 1.5)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    weights = dict(encoder.state_dict())
    y = F.gelu(F.conv2d(x, weights["whitening.filters"], weights["whitening.bias"]))

    def norm(y: Tensor, name: str) -> Tensor:
        mean, var, bias = (weights[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "bias"))
        return (y - mean) / (var + 1e-5).sqrt() + bias

    for group in range(3):
        y = F.max_pool2d(F.conv2d(y, weights[f"groups.{group}.0.weight"], padding=1), 2)
        y = F.gelu(norm(y, f"groups.{group}.2"))
        y = F.gelu(norm(F.conv2d(y, weights[f"groups.{group}.4.weight"], padding=1), f"groups.{group}.5"))
    assert_close(encoder(x), y.flatten(2).max(2).values)
    assert {norm.momentum for norm in encoder.modules() if isinstance(norm, nn.BatchNorm2d)} == {0.4}
    widths = [tuple(m.weight.shape[:2]) for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    assert widths == [(64, 24), (64, 64), (256, 64), (256, 256), (256, 256), (256, 256)]


def test_convolutions_start_as_the_identity_on_their_first_channels() -> None:
    encoder = FastEncoder((1, 16, 16))
    for convolution in (m for m in encoder.modules() if isinstance(m, nn.Conv2d)):
        x = torch.randn(1, convolution.in_channels, 5, 5)
        assert_close(convolution(x)[:, : convolution.in_channels], x)


@pytest.mark.parametrize(("sides", "sizes"), [((8, 8), (1, 1)), ((8, 20), (1, 3)), ((9, 9), (3, 3))])
def test_filters_along_a_side_of_one_pixel_have_one_row(sides: tuple[int, int], sizes: tuple[int, int]) -> None:
    """The others would only meet the padding: the same function as with 3x3 filters."""
    encoder = FastEncoder((1, *sides)).double().eval()
    x = torch.randn(2, 1, *sides, dtype=torch.float64)
    last = encoder.groups[1][4]
    assert last.kernel_size == sizes
    expected, (rows, columns) = encoder(x), [int(size == 1) for size in sizes]
    last.weight = nn.Parameter(F.pad(last.weight, [columns, columns, rows, rows]))
    last.padding = (1, 1)
    assert_close(encoder(x), expected)


def test_every_side_from_8_to_224_leaves_a_last_map_of_1_to_5_pixels() -> None:
    with torch.device("meta"):
        for side in (*range(8, 20), 31, 32, 33, 45, 46, *range(63, 67), 90, 91, 181, 182, 224):
            encoder = FastEncoder((3, side, side))
            last = encoder.groups(encoder.whitening(torch.empty(2, 3, side, side)))
            assert 1 <= last.shape[2] <= 5, side
    lengths = [len(FastEncoder((1, side, side)).groups) for side in (8, 16, 28, 32, 64, 128, 224)]
    assert lengths == [2, 2, 3, 3, 4, 4, 5]


@pytest.mark.parametrize("shape", [(1, 8, 224), (3, 224, 8), (2, 16, 300), (5, 32, 48), (3, 96, 65)])
def test_images_of_any_channels_and_sides(shape: tuple[int, int, int]) -> None:
    encoder = build_encoder("fast", input_shape=shape)
    encoder.whitening.fit(torch.randn(1, *shape))
    assert encoder(torch.randn(2, *shape)).isfinite().all()


def test_gradients_reach_every_parameter_and_no_filter_of_the_whitening() -> None:
    encoder = FastEncoder((3, 32, 32))
    assert not encoder.whitening.fitted
    encoder.whitening.fit(smooth_images())
    assert encoder.whitening.fitted
    before = encoder.whitening.filters.clone()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    encoder(smooth_images()).square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    optimizer.step()
    assert torch.equal(encoder.whitening.filters, before)


@pytest.mark.parametrize(("size", "stride"), [(2, 1), (3, 2)])
def test_whitened_patches_are_uncorrelated(size: int, stride: int) -> None:
    images = smooth_images()
    whitening = Whitening(3, size, stride)
    whitening.fit(images)
    dim = 3 * size * size
    responses = F.conv2d(images, whitening.filters)[:, :dim].transpose(0, 1).flatten(1)
    covariance = responses @ responses.T / responses.shape[1]
    assert_close(covariance, covariance.diag().diag(), atol=1e-3, rtol=0)
    patches = F.unfold(images, size).transpose(1, 2).flatten(0, 1)
    eigenvalues = torch.linalg.eigvalsh(patches.T @ patches / len(patches)).flip(0)
    assert_close(covariance.diag(), eigenvalues / (eigenvalues + 5e-4), atol=1e-3, rtol=0)
    assert torch.equal(whitening.filters[dim:], -whitening.filters[:dim])


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_images_without_variance_give_finite_filters(value: float) -> None:
    encoder = FastEncoder((3, 16, 16))
    encoder.whitening.fit(torch.full((4, 3, 16, 16), value))
    assert encoder.whitening.filters.isfinite().all()
    assert encoder.whitening.filters.flatten(1).norm(dim=1).max() <= 1.001 / 5e-4**0.5
    assert encoder(torch.randn(4, 3, 16, 16)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grey_images_stored_in_colour_give_gradients_like_those_of_grey_images(dtype: torch.dtype) -> None:
    """Their patches vary in a third of the directions only; the others must not become channels of noise."""
    grey = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    largest = []
    for images in (grey, grey.expand(-1, 3, -1, -1).contiguous()):
        torch.manual_seed(0)
        encoder = FastEncoder(tuple(images.shape[1:]))
        encoder.whitening.fit(images)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            z = encoder.train()(images)
        (z.float() * torch.randn_like(z.float())).sum().backward()
        filters = [p.grad for p in encoder.parameters() if p.ndim == 4 and p.grad is not None]
        largest.append(max(float(grad.abs().max()) for grad in filters))
    assert largest[1] < 30 * largest[0]
