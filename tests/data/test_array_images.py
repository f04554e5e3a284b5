"""Resizing and recolouring arrays, against Pillow as the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from esupcon.data.array_images import resized, with_channels


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@settings(max_examples=80, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 99),
)
def test_resizing_is_pillows(size, target, seed):
    image = noise(seed, *size)
    got = resized(image[None, None], *target)[0, 0]
    expected = ImageOps.fit(Image.fromarray(image), target[::-1], Image.Resampling.BILINEAR)
    # Pillow rounds between its two passes and its crop to the pixel grid's twentieth; we round once.
    np.testing.assert_allclose(got, np.asarray(expected), atol=2)


def test_resizing_goes_by_batches_and_channels():
    images = noise(1, 600, 3, 12, 12)
    whole = resized(images, 8, 8)
    assert whole.shape == (600, 3, 8, 8)
    np.testing.assert_array_equal(whole[599, 2], resized(images[599:, 2:], 8, 8)[0, 0])


def test_a_size_that_fits_is_left_alone():
    images = noise(2, 4, 1, 8, 8)
    assert resized(images, 8, 8) is images


def test_a_constant_stays_constant():
    assert set(np.unique(resized(np.full((2, 3, 17, 23), 201, np.uint8), 40, 9))) == {201}


def test_channels():
    colour = noise(3, 300, 3, 5, 4)
    grey = with_channels(colour, 1)
    for i in (0, 255, 256, 299):
        expected = Image.fromarray(colour[i].transpose(1, 2, 0)).convert("L")
        np.testing.assert_allclose(grey[i, 0], np.asarray(expected), atol=1)
    np.testing.assert_array_equal(with_channels(grey, 3), np.repeat(grey, 3, axis=1))
    assert with_channels(colour, 3) is colour


@pytest.mark.parametrize("empty", [np.empty((0, 3, 8, 8), np.uint8)])
def test_no_images(empty):
    assert resized(empty, 4, 4).shape == (0, 3, 4, 4)
    assert with_channels(empty, 1).shape == (0, 1, 8, 8)
