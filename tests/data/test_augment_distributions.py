"""Distributions of views over many draws, measured on the images."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from esupcon.data import augment
from esupcon.data.augment import two_views
from esupcon.data.augmentations import AUGMENTATIONS, ImageAugmentation

SIMCLR = AUGMENTATIONS["simclr"]
# Views as plain pixels in [0, 1].
RAW = {"mean": 0.0, "std": 1.0}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def same_distribution(sample, expected):
    """Kolmogorov-Smirnov against a reference sample or a distribution; seeds are fixed, so this never flickers."""
    test = stats.ks_2samp if isinstance(expected, np.ndarray) else stats.kstest
    return test(np.asarray(sample, dtype=float), expected).pvalue > 1e-3


def frequency_is(hits, probability):
    """Within four standard deviations of a binomial."""
    hits = np.asarray(hits)
    return abs(hits.mean() - probability) < 4 * math.sqrt(probability * (1 - probability) / hits.size) + 1e-12


# Geometry


@pytest.mark.parametrize("padding", ["reflection", "zeros"])
def test_light_views_are_pad_crop_and_flip(padding):
    image = torch.randint(0, 256, (1, 3, 8, 10), generator=generator(), dtype=torch.uint8)
    views = two_views(
        image.expand(2000, -1, -1, -1), generator(), replace(AUGMENTATIONS["light"], padding=padding), **RAW
    )
    mode = {"reflection": "symmetric", "zeros": "constant"}[padding]
    padded = np.pad(image[0].numpy(), ((0, 0), (4, 4), (4, 4)), mode=mode)
    outcomes = {}
    for top in range(9):
        for left in range(9):
            crop = padded[:, top : top + 8, left : left + 10]
            outcomes[crop.tobytes()] = (top, left, False)
            outcomes[np.ascontiguousarray(crop[:, :, ::-1]).tobytes()] = (top, left, True)
    seen = [outcomes[view.tobytes()] for view in (views * 255).round().to(torch.uint8).numpy()]
    tops, lefts, flips = zip(*seen, strict=True)
    for offsets in (tops, lefts):
        assert stats.chisquare([offsets.count(k) for k in range(9)]).pvalue > 1e-3
    assert frequency_is(flips, 0.5)


def ramp(height=64, width=64):
    """Red is 4x, green 4y, blue nothing: a view of it tells from where it was taken."""
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[0] = 4 * torch.arange(width)
    image[1] = 4 * torch.arange(height)[:, None]
    return image


def measured(augmentation, n=1500, height=64, width=64, seed=0):
    """The maps of 2n views of a ramp, in pixels: derivatives (2n, 2, 2) and the middle's origin (2n, 2)."""
    batch = ramp(height, width).expand(n, -1, -1, -1)
    places = two_views(batch, generator(seed), augmentation, **RAW)[:, :2].double() * 255 / 4
    row, column = height // 2, width // 2
    along_x = (places[:, :, row, column + 7] - places[:, :, row, column - 8]) / 15
    along_y = (places[:, :, row + 7, column] - places[:, :, row - 8, column]) / 15
    middle = places[:, :, row - 1 : row + 1, column - 1 : column + 1].mean(dim=(2, 3))
    return torch.stack((along_x, along_y), dim=-1).numpy(), middle.numpy() + 0.5


def reference_crops(n, height, width, seed=0):
    """Random resized crops by the textbook: draw area and aspect until the crop fits, then place it."""
    rng = np.random.default_rng(seed)
    crops = []
    while len(crops) < n:
        area = rng.uniform(0.2, 1.0) * height * width
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, tall = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if wide <= width and tall <= height:
            left, top = rng.uniform(0, width - wide), rng.uniform(0, height - tall)
            crops.append((wide * tall / (height * width), wide / tall, left + wide / 2, top + tall / 2))
    return np.array(crops).T


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 64)])
def test_simclr_crops_and_flips_have_the_reference_distribution(height, width):
    derivative, middle = measured(replace(SIMCLR, jitter=0.0, grey=0.0), height=height, width=width)
    s_x, s_y = derivative[:, 0, 0], derivative[:, 1, 1]
    assert np.abs(derivative[:, [0, 1], [1, 0]]).max() < 1e-3
    wide, tall = np.abs(s_x) * width, np.abs(s_y) * height
    area, aspect, middle_x, middle_y = reference_crops(4000, height, width)
    assert same_distribution(np.abs(s_x * s_y), area)
    assert same_distribution(wide / tall, aspect)
    assert same_distribution(middle[:, 0], middle_x)
    assert same_distribution(middle[:, 1], middle_y)
    assert frequency_is(s_x < 0, 0.5)
    assert (s_y > 0).all()
    share = np.abs(s_x * s_y)
    assert 0.2 <= share.min() + 1e-3 < 0.22
    assert share.max() <= 1 + 1e-3
    assert abs(stats.pearsonr(share[:1500], share[1500:]).statistic) < 0.1
    assert abs(stats.pearsonr(share, s_x < 0).statistic) < 0.1


def test_crop_is_cut_to_a_very_long_image():
    derivative, middle = measured(
        ImageAugmentation(crop_area=(1.0, 1.0), crop_aspect=(1.0, 1.0)), 3, height=20, width=64
    )
    # A square of the full area is 35.8 pixels: cut to 20 in height.
    np.testing.assert_allclose(derivative[:, 1, 1], 1.0, atol=1e-3)
    np.testing.assert_allclose(derivative[:, 0, 0], math.sqrt(20 * 64) / 64, atol=1e-3)
    np.testing.assert_allclose(middle[:, 1], 10, atol=1e-3)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (40, 64)])
def test_digits_move_a_little_and_never_flip(height, width):
    augmentation = AUGMENTATIONS["digits"]
    derivative, middle = measured(augmentation, height=height, width=width)
    determinant = np.linalg.det(derivative)
    assert (determinant > 0).all()
    zoom = determinant**-0.5
    angle = np.degrees(np.arctan2(derivative[:, 1, 0], derivative[:, 0, 0]))
    # Turns and magnifies alike in both directions: a similarity in pixels whatever the sides.
    np.testing.assert_allclose(derivative[:, 0, 0], derivative[:, 1, 1], atol=1e-3)
    np.testing.assert_allclose(derivative[:, 0, 1], -derivative[:, 1, 0], atol=1e-3)
    low, high = np.log(augmentation.zoom)
    assert same_distribution(np.log(zoom), stats.uniform(low, high - low).cdf)
    assert same_distribution(angle, stats.uniform(-12, 24).cdf)
    assert same_distribution(middle[:, 0] / width - 0.5, stats.uniform(-0.1, 0.2).cdf)
    assert same_distribution(middle[:, 1] / height - 0.5, stats.uniform(-0.1, 0.2).cdf)


def flat_views(colour, augmentation, n=3000):
    """Views of an image of one colour: (2n, 3) in [0, 1]."""
    batch = torch.tensor(colour, dtype=torch.uint8).view(1, 3, 1, 1).expand(n, -1, 2, 2)
    return two_views(batch, generator(2), augmentation, **RAW)[:, :, 0, 0].double().numpy()


def jittered_uniformly(factors, strength):
    on = np.abs(factors - 1) > 1e-4
    in_range = np.abs(factors - 1).max() <= strength + 1e-4
    return frequency_is(on, 0.8) and in_range and same_distribution(factors[on], stats.uniform(0.6, 0.8).cdf)


def test_brightness_range():
    # Grey of one level is left alone by contrast, saturation, hue and greyscale: the whole augmentation may act.
    assert jittered_uniformly(flat_views((120, 120, 120), SIMCLR)[:, 1] / (120 / 255), 0.4)


def chroma(colours):
    return colours @ np.array(augment.IQ).T


def test_hue_range_and_luma():
    views = flat_views((140, 100, 120), ImageAugmentation(jitter=0.8, hue=0.1))
    before = np.array([140, 100, 120]) / 255
    i, q = chroma(views).T
    i0, q0 = chroma(before)
    turns = np.angle((i + 1j * q) / (i0 + 1j * q0)) / (2 * np.pi)
    on = np.abs(turns) > 1e-5
    assert frequency_is(on, 0.8)
    assert same_distribution(turns[on], stats.uniform(-0.1, 0.2).cdf)
    np.testing.assert_allclose(views @ augment.LUMA, before @ augment.LUMA, atol=1e-5)
    np.testing.assert_allclose(np.hypot(i, q), np.hypot(i0, q0), atol=1e-5)


def test_greyscale_frequency_in_each_view_and_in_both():
    views = flat_views((150, 90, 110), SIMCLR)
    grey = np.ptp(views, axis=1) < 1e-5
    first, second = grey[:3000], grey[3000:]
    assert frequency_is(first, 0.2)
    assert frequency_is(second, 0.2)
    assert frequency_is(first & second, 0.04)
