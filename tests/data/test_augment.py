"""Views against their definition, what must not change them, tables, and mistakes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from esupcon.data import augment
from esupcon.data.augment import two_views
from esupcon.data.augmentations import AUGMENTATIONS, ImageAugmentation, TableAugmentation

FOR_IMAGES = [name for name, augmentation in AUGMENTATIONS.items() if isinstance(augmentation, ImageAugmentation)]
SIMCLR = AUGMENTATIONS["simclr"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(n, channels=3, height=16, width=16, seed=0):
    return torch.randint(0, 256, (n, channels, height, width), generator=generator(seed), dtype=torch.uint8)


# The definition, pixel by pixel


def bilinear(channel, x, y, padding):
    """The value of a float64 image (H, W) at pixel coordinates x, y."""
    height, width = channel.shape

    def inside(place, size):
        if padding == "reflection":  # about the outer edges of the outermost pixels
            place = (place + 0.5) % (2 * size)
            place = min(place, 2 * size - place) - 0.5
        return min(max(place, 0), size - 1) if padding != "zeros" else place

    x, y = inside(x, width), inside(y, height)
    total = 0.0
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < height and 0 <= column < width:
                total += (1 - abs(x - column)) * (1 - abs(y - row)) * channel[row, column]
    return total


def slow_view(image, u, augmentation, mean, std):
    """One view of a uint8 image (C, H, W), operation by operation, from its row of uniform draws."""
    channels, height, width = image.shape
    share_x = share_y = 1.0
    if augmentation.crop_area is not None:
        shares = []
        for k in range(augment.CROP_TRIES):
            low, high = augmentation.crop_area
            area = (low + (high - low) * u[k]) * height * width
            low, high = np.log(augmentation.crop_aspect)
            aspect = math.exp(low + (high - low) * u[augment.CROP_TRIES + k])
            shares.append((math.sqrt(area * aspect) / width, math.sqrt(area / aspect) / height))
        fitting = [s for s in shares if max(s) <= 1]
        share_x, share_y = fitting[0] if fitting else (min(1, s) for s in shares[0])
    u = u[2 * augment.CROP_TRIES :]
    left, top = u[0] * (1 - share_x) * width, u[1] * (1 - share_y) * height
    pad_x, pad_y = (math.floor(v * (2 * augmentation.pad + 1)) - augmentation.pad for v in u[2:4])
    shift_x, shift_y = ((2 * v - 1) * augmentation.shift for v in u[4:6])
    magnified = math.exp(math.log(augmentation.zoom[0]) * (1 - u[6]) + math.log(augmentation.zoom[1]) * u[6])
    angle = math.radians((2 * u[7] - 1) * augmentation.rotation)
    view = np.empty((channels, height, width))
    for row in range(height):
        for column in range(width):
            # Relative to the middle of the view, then of the crop in the image; in pixels of the image.
            x, y = (column + 0.5 - width / 2) * share_x, (row + 0.5 - height / 2) * share_y
            x, y = (-x if u[8] < augmentation.flip else x) / magnified, y / magnified
            x, y = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
            x += left + share_x * width / 2 + pad_x + shift_x * width - 0.5
            y += top + share_y * height / 2 + pad_y + shift_y * height - 0.5
            view[:, row, column] = [bilinear(c / 255, x, y, augmentation.padding) for c in image.astype(float)]
    luma = np.array(augment.LUMA if channels == 3 else (1.0,))
    if u[9] < augmentation.jitter:
        view = view * (1 + augmentation.brightness * (2 * u[10] - 1))
        contrast = 1 + augmentation.contrast * (2 * u[11] - 1)
        view = contrast * view + (1 - contrast) * np.tensordot(luma, view, 1).mean()
    if channels == 3:
        if u[9] < augmentation.jitter:
            saturation = 1 + augmentation.saturation * (2 * u[12] - 1)
            view = saturation * view + (1 - saturation) * np.tensordot(luma, view, 1)
            turn = 2 * math.pi * augmentation.hue * (2 * u[13] - 1)
            to_yiq = np.array([augment.LUMA, *augment.IQ])
            rotation = [[1, 0, 0], [0, math.cos(turn), -math.sin(turn)], [0, math.sin(turn), math.cos(turn)]]
            view = np.tensordot(np.linalg.inv(to_yiq) @ rotation @ to_yiq, view, 1)
        if u[14] < augmentation.grey:
            view = np.repeat(np.tensordot(luma, view, 1)[None], 3, axis=0)
    return (view.clip(0, 1) - mean) / std


GEOMETRY = {"crop_area": (0.3, 0.9), "crop_aspect": (0.5, 2.0), "pad": 1, "shift": 0.2, "zoom": (0.7, 1.4)}
COLOUR = {"jitter": 0.7, "brightness": 0.6, "contrast": 0.7, "saturation": 0.8, "hue": 0.3, "grey": 0.3}
EVERYTHING = ImageAugmentation(**GEOMETRY, **COLOUR, rotation=40.0, flip=0.5)


@pytest.mark.parametrize("padding", ["border", "zeros", "reflection"])
@pytest.mark.parametrize("size", [(3, 7, 7), (3, 5, 8), (1, 9, 6)])
def test_views_equal_the_definition(padding, size):
    augmentation = replace(EVERYTHING, padding=padding)
    images = pictures(12, *size)
    mean, std = (0.4, 0.5, 0.6)[: size[0]], (0.2, 0.25, 0.3)[: size[0]]
    views = two_views(images, generator(5), augmentation, mean=mean, std=std).double().numpy()
    columns = augment.GEOMETRY_DRAWS + augment.COLOUR_DRAWS
    draws = torch.rand(12, 2, columns, generator=generator(5)).double().numpy()
    of_channel = [np.reshape(values, (-1, 1, 1)) for values in (mean, std)]
    for view in range(2):
        for i in range(12):
            twin = slow_view(images[i].numpy(), draws[i, view], augmentation, *of_channel)
            np.testing.assert_allclose(views[view * 12 + i], twin, atol=1e-4)


# What must not change a view


@settings(max_examples=25)
@given(
    st.integers(1, 9),
    st.sampled_from([1, 3]),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([*FOR_IMAGES, EVERYTHING]),
    st.integers(0, 10**6),
)
def test_shape_type_range_and_purity_on_any_size(n, channels, height, width, augmentation, seed):
    images = pictures(n, channels, height, width, seed)
    before = images.clone()
    views = two_views(images, generator(seed), augmentation)
    assert views.shape == (2 * n, channels, height, width)
    assert views.dtype == torch.float32
    assert views.is_contiguous()
    assert views.min() >= -2
    assert views.max() <= 2
    assert torch.equal(images, before)
    assert torch.equal(views, two_views(images, generator(seed), augmentation))


@pytest.mark.parametrize("name", FOR_IMAGES)
def test_view_depends_on_no_other_image(name):
    images, others = pictures(40), pictures(40, seed=1)
    others[7] = images[7]
    first, second = (two_views(batch, generator(3), name) for batch in (images, others))
    assert torch.equal(first[7], second[7])
    assert torch.equal(first[47], second[47])
    assert not torch.equal(first[8], second[8])
    # Nor on how many come after it.
    fewer = two_views(images[:11], generator(3), name)
    assert torch.equal(fewer[7], first[7])
    assert torch.equal(fewer[18], first[47])


@pytest.mark.parametrize("name", ["simclr", "light", "none"])
def test_threads_blocks_autocast_dtype_and_strides_do_not_change_a_bit(name, monkeypatch):
    images, state, threads = pictures(60), torch.get_rng_state(), torch.get_num_threads()
    plain = two_views(images, generator(), name)
    assert not plain.requires_grad
    assert torch.equal(torch.get_rng_state(), state)

    def same(batch):
        return torch.equal(two_views(batch, generator(), name), plain)

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(images)
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3 - min(2, threads))
        assert same(images)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    assert same(images.to(memory_format=torch.channels_last))
    assert same(torch.stack((images, images))[1])
    monkeypatch.setattr(augment, "BLOCK_FLOATS", 1)
    assert same(images)


def test_views_differ_and_augmentations_share_their_draws():
    images, source = pictures(30), generator()
    first, second = two_views(images, source, "simclr"), two_views(images, source, "simclr")
    assert not torch.equal(first, second)
    assert not torch.equal(first[:30], first[30:])
    colourful = two_views(images, generator(), replace(SIMCLR, grey=0))
    assert 0 < (first == colourful).flatten(1).all(dim=1).sum() < 60
    assert two_views(images[:0], generator(), "simclr").shape == (0, 3, 16, 16)
    assert two_views(torch.zeros(0, 4), generator(), "table").shape == (0, 4)


# Tables


def table(n=400, seed=0):
    return torch.randn(n, 3, generator=generator(seed)) * torch.tensor([1.0, 50.0, 0.0]) + torch.tensor([0, 9e3, 4])


def test_corruption_takes_values_of_the_same_feature_from_the_batch():
    x = table()
    views = two_views(x, generator(), TableAugmentation(corruption=0.3))
    assert views.shape == (800, 3)
    assert views.dtype == torch.float32
    replaced = views != torch.cat((x, x))
    own_value_drawn = 0.3 / 400
    for view, changed in zip(views.chunk(2), replaced.chunk(2), strict=True):
        share = changed[:, :2].float().mean().item()
        assert abs(share - (0.3 - own_value_drawn)) < 4 * (0.3 * 0.7 / 800) ** 0.5
        for column in range(3):
            assert torch.isin(view[:, column], x[:, column]).all()
    assert not torch.equal(*replaced.chunk(2))


def test_noise_is_gaussian_in_units_of_the_feature():
    x = table(4000)
    noise = (two_views(x, generator(), TableAugmentation(noise=0.1)) - torch.cat((x, x))) / x.std(dim=0, correction=0)
    for feature in (0, 1):
        assert stats.kstest(noise[:, feature].numpy(), stats.norm(scale=0.1).cdf).pvalue > 1e-3
    constant = two_views(x, generator(), "table")[:, 2]
    assert (constant == 4).all()


def test_table_views_commute_with_the_scale_of_the_features():
    x = table().double()
    mean, std = x.mean(0), x.std(0, correction=0).clamp(min=1.0)
    direct = two_views(x, generator(), "table", mean=mean, std=std)
    torch.testing.assert_close(direct, two_views((x - mean) / std, generator(), "table"), atol=1e-5, rtol=0)
    assert torch.equal(two_views(x, generator(), "table"), two_views(x, generator(), AUGMENTATIONS["table"]))
    assert torch.equal(two_views(x, generator(), TableAugmentation()), torch.cat((x, x)).float())


# Mistakes, and pairs of mirrored views


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: two_views(x, generator(), "simclair"), "one of simclr, simclr_no_flip, light, .*got 'simclair'"),
        (lambda x: two_views(x.float(), generator(), "simclr"), r"uint8 images .* got torch.float32 of shape \(2, 3"),
        (lambda x: two_views(x, generator(), "table"), "TableAugmentation must be .* table .*; got torch.uint8"),
        (lambda x: two_views(torch.zeros(2, 2), generator(), "light"), "ImageAugmentation must be .* torch.float32"),
        (lambda x: two_views(torch.full((2, 2), torch.nan), generator(), "table"), "with NaN or inf"),
        (lambda x: two_views(x, generator(), "light", mean=(0.5, 0.5)), "mean .* each of 3 channels; got "),
    ],
)
def test_mistakes_give_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    assert "\n" not in str(caught.value)


def test_flip_one_mirrors_exactly_one_of_the_two_views():
    images = torch.randint(0, 256, (32, 3, 6, 6), dtype=torch.uint8)
    augmentation = ImageAugmentation(flip=0.5, flip_one=True, mean=0.0, std=1.0)
    first, second = two_views(images, generator(), augmentation).chunk(2)
    torch.testing.assert_close(first, second.flip(-1), atol=1e-5, rtol=0)
    flipped = [not torch.allclose(view, image / 255, atol=1e-5) for view, image in zip(first, images, strict=True)]
    assert 4 < sum(flipped) < 28
