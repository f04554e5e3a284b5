"""What X may be: tables, images in every layout, files, frames; and what it may not be."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_data import blobs, digit_images, quick
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from esupcon.estimator.inputs import TableForm, channels_first, holds_images, images_form, is_paths


def test_layouts_and_number_types_of_images_are_one_to_the_classifier() -> None:
    images, y = digit_images(120)
    colour = np.repeat(images[..., None], 3, axis=3)
    classifier = quick(encoder="mlp-32x1", epochs=2).fit(images, y)
    expected = classifier.predict_proba(images)
    for same in (images[..., None], images[:, None], torch.from_numpy(images), images.tolist()):
        np.testing.assert_allclose(classifier.predict_proba(same), expected, atol=1e-6)
    in_colour = quick(encoder="mlp-32x1", epochs=2).fit(colour, y)
    np.testing.assert_allclose(
        in_colour.predict_proba(colour.transpose(0, 3, 1, 2)), in_colour.predict_proba(colour), atol=1e-6
    )


@pytest.mark.parametrize("scale", [1 / 255, 16 / 255, 1.0])
def test_float_images_of_any_range_train_the_same_network(scale: float) -> None:
    images, y = digit_images(120)
    as_bytes = quick(encoder="mlp-32x1", epochs=2).fit(images, y).predict_proba(images)
    scaled = images * scale
    found = quick(encoder="mlp-32x1", epochs=2).fit(scaled, y).predict_proba(scaled)
    np.testing.assert_allclose(found, as_bytes, atol=1e-6)


@given(arrays(np.uint8, st.tuples(st.integers(1, 3), st.sampled_from([1, 3]), st.integers(4, 6), st.integers(4, 6))))
def test_channels_go_first_whatever_the_layout(first: np.ndarray) -> None:
    np.testing.assert_array_equal(channels_first(first), first)
    np.testing.assert_array_equal(channels_first(np.moveaxis(first, 1, 3)), first)
    if first.shape[1] == 1:
        np.testing.assert_array_equal(channels_first(first[:, 0]), first)


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(2, 12), st.integers(1, 4)),
        elements=st.floats(-1e6, 1e6, allow_subnormal=False),
    ),
    st.integers(1, 11),
)
def test_moments_by_instalments_are_those_of_all_rows(X: np.ndarray, cut: int) -> None:
    cut = min(cut, len(X) - 1)
    form = TableForm.of(X[:cut], standardise=True)
    form.update(X[cut:])
    np.testing.assert_allclose(form.mean, X.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(form.variance, X.var(axis=0), rtol=1e-6, atol=1e-3)
    assert (form.scale > 0).all()


def test_a_constant_column_is_left_alone() -> None:
    X, y = blobs()
    X = np.column_stack([X, np.full(len(X), 1e6), np.zeros(len(X))])
    classifier = quick().fit(X, y)
    assert classifier.form_.scale[-2:].tolist() == [1.0, 1.0]
    assert classifier.score(X, y) > 0.9


def test_scales_of_columns_do_not_matter() -> None:
    X, y = blobs()
    factors = np.array([1e-6, 1.0, 1e6, 3.0, 1e3])
    plain, scaled = quick().fit(X, y), quick().fit(X * factors + 5, y)
    np.testing.assert_allclose(scaled.predict_proba(X * factors + 5), plain.predict_proba(X), atol=1e-3)


@pytest.fixture
def files(tmp_path):
    images, y = digit_images(60)
    paths = [tmp_path / f"{i:03d}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    return paths, images, y


def test_files_train_as_their_pictures_do(files) -> None:
    paths, images, y = files
    of_files = quick(encoder="mlp-32x1", epochs=2, image_size=8).fit([str(path) for path in paths], y)
    colour = np.repeat(images[..., None], 3, axis=3)
    of_arrays = quick(encoder="mlp-32x1", epochs=2).fit(colour, y)
    expected = of_arrays.predict_proba(colour)
    for same in (paths, np.array([str(path) for path in paths]), pd.Series([str(path) for path in paths])):
        np.testing.assert_allclose(of_files.predict_proba(same), expected, atol=1e-6)
    np.testing.assert_allclose(of_files.predict_proba(colour), expected, atol=1e-6)


def test_an_unreadable_file_is_named(files, tmp_path) -> None:
    paths, _, y = files
    (tmp_path / "007.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"1 of 60 are not, first .*007\.png"):
        quick(image_size=8).fit(paths, y)


def test_what_is_images_and_what_is_not() -> None:
    assert is_paths(["a.png"]) and is_paths(np.array(["a.png"], dtype=object)) and not is_paths([])
    assert not is_paths([1.0]) and not is_paths(np.zeros((2, 2))) and not is_paths(["a.png", 3])
    assert holds_images(np.zeros((2, 3, 3))) and not holds_images(np.zeros((2, 3))) and not holds_images([[1, 2], [3]])
    with pytest.raises(ValueError, match="single path"):
        is_paths("a.png")


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((4, 8, 8, 4)), "alpha"),
        (np.zeros((4, 8, 8, 5)), "1 or 3 channels"),
        (np.full((4, 8, 8), np.nan), "Input X contains NaN"),
        (np.full((4, 8, 8), np.inf), "Input X contains infinity"),
        (np.zeros((0, 8, 8)), "0 sample"),
        (np.zeros((4, 8, 8), complex), "real numbers"),
    ],
)
def test_images_that_are_refused(X, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        images_form(X, None)


def test_shapes_not_seen_in_training_are_refused_at_prediction() -> None:
    images, y = digit_images(60)
    classifier = quick(encoder="mlp-32x1", epochs=1).fit(images, y)
    with pytest.raises(ValueError, match="X has images of 9x8 pixels and 1 channel, but ContrastiveClassifier is exp"):
        classifier.predict(np.zeros((2, 9, 8), np.uint8))
    with pytest.raises(ValueError, match="images are"):
        classifier.predict(np.zeros((2, 64)))
    X, y = blobs()
    table = quick(epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="X has 4 features, but ContrastiveClassifier is expecting 5 features"):
        table.predict(X[:, :4])


def test_image_size_is_for_files() -> None:
    images, y = digit_images(20)
    with pytest.raises(ValueError, match="image_size is for lists of files"):
        quick(image_size=16).fit(images, y)


def test_a_classifier_of_tables_becomes_one_of_images() -> None:
    X, y = blobs()
    classifier = quick(encoder="mlp-32x1", epochs=1).fit(X, y)
    images, digits = digit_images(60)
    classifier.fit(images, digits)
    assert not hasattr(classifier, "n_features_in_")
    assert classifier.predict(images).shape == (60,)
