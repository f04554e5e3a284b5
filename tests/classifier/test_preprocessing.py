"""X in every accepted form becomes the same rows; everything else is refused with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from sklearn.datasets import load_digits

from esupcon.classifier.preprocessing import (
    ImagePreprocessing,
    TablePreprocessing,
    fit_preprocessing,
)


def digit_images(n: int = 40) -> Any:
    return np.rint(load_digits().images[:n] * (255 / 16)).astype(np.uint8)


def test_image_tensor_is_normalised_pixels_and_module_agrees() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 5, 4), dtype=np.uint8)
    preprocessing, rows = ImagePreprocessing.fit(images)
    expected = (images / 255 - np.reshape(preprocessing.mean, (3, 1, 1))) / np.reshape(preprocessing.std, (3, 1, 1))
    assert preprocessing.input_shape == (3, 5, 4)
    np.testing.assert_array_equal(rows, images)
    np.testing.assert_allclose(preprocessing.mean, (images / 255).mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(preprocessing.std, (images / 255).std(axis=(0, 2, 3)))
    np.testing.assert_allclose(preprocessing.tensor(rows), expected, atol=1e-6)
    np.testing.assert_allclose(preprocessing.module()(torch.from_numpy(images)), expected, atol=1e-6)
    assert fit_preprocessing(images) == preprocessing
    constant = np.full((2, 1, 4, 4), 7, np.uint8)
    assert fit_preprocessing(constant).tensor(constant).abs().max() < 1e-6


def test_table_tensor_is_standardised_in_float64_and_module_agrees() -> None:
    X = np.random.default_rng(0).normal(5, 3, (20, 4))
    X[:, 3] = 1e6  # a constant column is only centred
    preprocessing, rows = TablePreprocessing.fit(X)
    scale = np.array([*X.std(axis=0)[:3], 1.0])
    assert preprocessing.tensor(rows).dtype == torch.float64
    np.testing.assert_allclose(preprocessing.tensor(rows), (X - X.mean(axis=0)) / scale)
    np.testing.assert_allclose(
        preprocessing.module()(torch.from_numpy(X).float()), (X.astype(np.float32) - X.mean(axis=0)) / scale, atol=1e-5
    )
    kept, _ = TablePreprocessing.fit(X, standardise=False)
    np.testing.assert_array_equal(kept.tensor(rows), X)


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(2, 12), st.integers(1, 4)),
        elements=st.floats(-1e6, 1e6, allow_subnormal=False),
    ),
    st.integers(1, 11),
)
def test_moments_updated_by_parts_equal_moments_of_all_rows(X: Any, cut: int) -> None:
    cut = min(cut, len(X) - 1)
    updated = TablePreprocessing.fit(X[:cut])[0].updated(X[cut:])
    np.testing.assert_allclose(updated.mean, X.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(updated.variance, X.var(axis=0), rtol=1e-6, atol=1e-3)
    assert updated.n_seen == len(X) and (updated.centre_and_scale[1] > 0).all()


def test_layouts_and_containers_of_images_give_equal_rows(tmp_path: Path) -> None:
    images = digit_images()
    preprocessing, rows = ImagePreprocessing.fit(images)
    np.save(tmp_path / "x.npy", images)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    pictures = [Image.fromarray(image) for image in images]
    for same in (images[..., None], images[:, None], torch.from_numpy(images), images.tolist(), mapped, pictures):
        np.testing.assert_array_equal(preprocessing.rows(same), rows)
    assert preprocessing.rows(images[:0]).shape == (0, 1, 8, 8)
    cube = fit_preprocessing(np.zeros((2, 3, 8, 1), np.uint8))  # width 1 could be taken for a last channel
    assert cube.rows(np.zeros((5, 3, 8, 1), np.uint8)).shape == (5, 3, 8, 1)


def test_files_give_the_rows_of_their_pictures(tmp_path: Path) -> None:
    images = digit_images(6)
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    preprocessing, rows = ImagePreprocessing.fit(paths, image_size=8)
    np.testing.assert_array_equal(rows, np.repeat(images[:, None], 3, axis=1))
    for same in ([str(path) for path in paths], np.array([str(p) for p in paths]), pd.Series([str(p) for p in paths])):
        np.testing.assert_array_equal(preprocessing.rows(same), rows)
    assert ImagePreprocessing.fit(paths)[0].image_size == (8, 8)
    paths[3].write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"1 of 6 are not, first .*3\.png"):
        preprocessing.rows(paths)


@pytest.mark.parametrize("scale", [1 / 255, 16 / 255, 1.0])
def test_float_images_of_any_range_give_equal_rows(scale: float) -> None:
    images = digit_images()
    preprocessing, rows = ImagePreprocessing.fit(images * scale)
    np.testing.assert_array_equal(rows[:, 0], images)
    np.testing.assert_array_equal(preprocessing.rows(images * scale)[:, 0], images)


@pytest.mark.parametrize(
    ("trained", "given", "message"),
    [
        (1 / 255, np.uint8(1), r"values from 0 to 1; X has values from 0 to 255 \(uint8\).*X / 255"),
        (1 / 255, 1.1 / 255, "values from 0 to 1; X has values from 0 to 1.1"),
        (np.uint8(1), 1 / 255, r"values from 0 to 255; X has values from 0 to 1 \(float64\).*X \* 255"),
        (np.uint8(1), 257.0, "values from 0 to 255; X has values from 0 to 65535"),
        (np.uint8(1), -1.0, "values from 0 to 255; X has values from -255 to 0 "),
        (16 / 255, np.uint8(1), "values from 0 to 16; X has values from 0 to 255"),
        (16 / 255, 1 / 255, r"values from 0 to 16; X has values from 0 to 1 .*X \* 16"),
    ],
)
def test_values_out_of_the_range_of_training_are_refused_with_the_range(trained: Any, given: Any, message: str) -> None:
    images = digit_images()
    preprocessing, _ = ImagePreprocessing.fit(images * trained)
    with pytest.raises(ValueError, match=message) as caught:
        preprocessing.rows(images * given)
    assert "\n" not in str(caught.value)


def test_values_slightly_beyond_a_learnt_range_are_clipped_with_a_warning() -> None:
    images = np.random.default_rng(0).normal(size=(20, 8, 8))
    preprocessing, _ = ImagePreprocessing.fit(images)
    with pytest.warns(UserWarning, match="Values beyond the range are clipped"):
        rows = preprocessing.rows(images * 1.1)
    assert rows.max() == 255 and rows.min() == 0
    with pytest.raises(ValueError, match="image files do not have"):
        preprocessing.rows(["a.png"])


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((2, 9, 8), np.uint8), "X has images of 9x8 pixels and 1 channel; this classifier takes 8x8 pixels"),
        (np.zeros((2, 3, 8, 8), np.uint8), "X has images of 8x8 pixels and 3 channels"),
        (np.zeros((8, 8), np.uint8), r"one image of shape \(8, 8\). Pass X\[None\]"),
        (np.zeros((2, 64)), "images must be"),
    ],
)
def test_images_unlike_those_of_training_are_refused(X: Any, message: str) -> None:
    preprocessing, _ = ImagePreprocessing.fit(digit_images())
    with pytest.raises(ValueError, match=message) as caught:
        preprocessing.rows(X)
    assert "\n" not in str(caught.value)


def test_tables_of_every_type_give_equal_rows_and_columns_are_compared_by_name() -> None:
    table = pd.DataFrame(np.arange(12).reshape(4, 3), columns=list("abc"))
    preprocessing, rows = TablePreprocessing.fit(table)
    values = table.to_numpy()
    tensor = torch.tensor(values)
    for same in (table, values, values.tolist(), tensor, tensor.half(), values.astype(object)):
        np.testing.assert_array_equal(preprocessing.rows(same), rows)
    for wrong in (table[["a", "c", "b"]], table[["a", "b"]], table.assign(d=1.0)):
        with pytest.raises(ValueError, match="columns of X must be those of training, in the same order: a, b, c"):
            preprocessing.rows(wrong)
