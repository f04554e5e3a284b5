"""Statistics and normalisation by their definitions."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esupcon.data.augment import channel_statistics, normalise


@given(st.integers(1, 5), st.sampled_from([1, 3]), st.integers(1, 4), st.integers(0, 1000))
def test_statistics_and_normalisation_by_the_definition(n, channels, side, seed):
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, channels, side, side + 1), generator=source, dtype=torch.uint8)
    mean, std = channel_statistics(images)
    unit = images.double().numpy() / 255
    for k in range(channels):
        assert mean[k] == pytest.approx(unit[:, k].mean())
        assert std[k] == pytest.approx(unit[:, k].std() or 1.0)
    shaped = [np.reshape(values, (-1, 1, 1)) for values in (mean, std)]
    expected = (unit - shaped[0]) / shaped[1]
    result = normalise(images, mean, std)
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-4)
    np.testing.assert_allclose(normalise(images).numpy(), (unit - 0.5) / 0.25, atol=1e-5)


def test_statistics_of_an_array_on_disk_in_several_pieces(tmp_path):
    images = np.random.default_rng(0).integers(0, 200, (300, 3, 64, 64), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    mean, std = channel_statistics(mapped)
    np.testing.assert_allclose(mean, images.mean(axis=(0, 2, 3)) / 255)
    np.testing.assert_allclose(std, images.std(axis=(0, 2, 3)) / 255)
    json.dumps([mean, std])


def test_a_constant_channel_or_feature_is_normalised_to_zero():
    images = torch.full((3, 1, 4, 4), 77, dtype=torch.uint8)
    assert normalise(images, *channel_statistics(images)).abs().max() < 1e-6
    table = np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 3.0]])
    statistics = channel_statistics(table)
    assert statistics.std == (1.0, pytest.approx(math.sqrt(2 / 3)))
    assert normalise(torch.from_numpy(table), *statistics)[:, 0].abs().max() < 1e-6
