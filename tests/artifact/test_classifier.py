"""From arrays to classes and probabilities."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esupcon.artifact import ArtifactConfig, Classifier, load_artifact

SHAPE = (3, 8, 6)


def images(n: int = 7, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


@pytest.fixture(scope="module")
def of_images(make: Any) -> Classifier:
    return Classifier(*make("resnet10-w4", SHAPE))


@pytest.fixture(scope="module")
def of_tables(make: Any) -> Classifier:
    return Classifier(*make("mlp-8x2", (3,)))


def test_logits_are_the_network_on_normalised_pixels(of_images: Classifier) -> None:
    X = images()
    expected = np.empty((7, 3), np.float32)
    mean, std = of_images.config.preprocessing.mean, of_images.config.preprocessing.std  # type: ignore[union-attr]
    for row in range(7):
        channels = [(X[row, c] / 255.0 - mean[c]) / std[c] for c in range(3)]
        batch = torch.tensor(np.stack(channels)[None], dtype=torch.float32)
        with torch.no_grad():
            expected[row] = of_images.network(batch)[0].numpy()
    found = of_images.logits(X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_logits_are_the_network_on_standardised_columns(of_tables: Classifier) -> None:
    X = np.random.default_rng(0).normal(size=(5, 3))
    scaled = (X - [0.0, 0.1, 0.2]) / [1.0, 2.0, 3.0]
    with torch.no_grad():
        expected = of_tables.network(torch.tensor(scaled, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(of_tables.logits(X), expected, rtol=1e-5, atol=1e-5)


def slow_softmax(logits: list[float], temperature: float) -> list[float]:
    total = math.fsum(math.exp(z / temperature) for z in logits)
    return [math.exp(z / temperature) / total for z in logits]


@given(temperature=st.floats(0.05, 20))
def test_probabilities_are_the_softmax_of_calibrated_logits(of_tables: Classifier, temperature: float) -> None:
    X = np.random.default_rng(1).normal(size=(4, 3))
    calibrated = Classifier(of_tables.network, of_tables.config).set_calibration(temperature)
    expected = [slow_softmax(row, temperature) for row in calibrated.logits(X).astype(float).tolist()]
    np.testing.assert_allclose(calibrated.predict_proba(X), expected, rtol=1e-9, atol=1e-300)
    np.testing.assert_array_equal(calibrated.logits(X), of_tables.logits(X))
    np.testing.assert_array_equal(calibrated.predict(X), of_tables.predict(X))


def test_uncalibrated_is_temperature_one(of_tables: Classifier) -> None:
    X = np.random.default_rng(2).normal(size=(4, 3))
    np.testing.assert_allclose(
        of_tables.predict_proba(X), [slow_softmax(row, 1.0) for row in of_tables.logits(X).astype(float).tolist()]
    )
    calibrated = Classifier(of_tables.network, of_tables.config).set_calibration(3.0)
    assert not np.allclose(calibrated.predict_proba(X), of_tables.predict_proba(X))
    np.testing.assert_array_equal(calibrated.set_calibration(None).predict_proba(X), of_tables.predict_proba(X))


def test_calibration_is_saved(saved: Path) -> None:
    classifier = load_artifact(saved).set_calibration(2.5)
    assert load_artifact(saved).config.calibration_temperature is None
    classifier.save(saved, overwrite=True)
    again = load_artifact(saved)
    assert again.config == classifier.config
    assert again.config.calibration_temperature == 2.5
    assert "logits are divided by 2.5" in (saved / "README.md").read_text()


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, "warm", [1.0]])
def test_calibration_that_is_no_temperature(of_tables: Classifier, temperature: Any) -> None:
    config = of_tables.config
    with pytest.raises(ValueError, match=r"calibration_temperature.*Pass a number above 0, or None") as caught:
        of_tables.set_calibration(temperature)
    assert "\n" not in str(caught.value)
    assert of_tables.config is config


def test_prediction_is_the_class_of_the_largest_logit(make: Any) -> None:
    classifier = Classifier(*make("identity", (3,), classes=[30, 10, 20]))
    X = np.random.default_rng(3).normal(size=(20, 3))
    expected = [[30, 10, 20][row.index(max(row))] for row in classifier.logits(X).tolist()]
    assert classifier.predict(X).tolist() == expected
    assert len(set(expected)) == 3
    assert [classifier.classes_.tolist()[k] for k in classifier.predict_proba(X).argmax(axis=1)] == expected


def test_transform_is_what_the_prototypes_classify(of_images: Classifier) -> None:
    z, prototypes = of_images.transform(images()), of_images.prototypes_
    assert prototypes is not None
    np.testing.assert_allclose(np.linalg.norm(prototypes, axis=1), 1, rtol=1e-6)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(unit @ prototypes.T / 0.2, of_images.logits(images()), rtol=1e-4, atol=1e-4)


def test_a_linear_head_has_no_prototypes(make: Any) -> None:
    classifier = Classifier(*make("identity", (3,), head="linear"))
    assert classifier.prototypes_ is None
    X = np.eye(3)
    np.testing.assert_allclose(classifier.transform(X), (X - [0.0, 0.1, 0.2]) / [1, 2, 3], rtol=1e-6)


def test_channels_may_come_last_or_be_absent(of_images: Classifier, make: Any) -> None:
    X = images()
    np.testing.assert_array_equal(of_images.logits(X.transpose(0, 2, 3, 1)), of_images.logits(X))
    grey = Classifier(*make("resnet10-w2", (1, 8, 8)))
    X = images(4, (1, 8, 8))
    for same in (X[:, 0], X.transpose(0, 2, 3, 1)):
        np.testing.assert_array_equal(grey.logits(same), grey.logits(X))


def test_a_cube_is_channels_first(make: Any) -> None:
    classifier = Classifier(*make("resnet10-w2", (3, 3, 3)))
    X = images(4, (3, 3, 3))
    assert not np.allclose(classifier.logits(X), classifier.logits(X.transpose(0, 2, 3, 1)))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 100, None])
def test_batches_do_not_matter(of_images: Classifier, of_tables: Classifier, batch_size: int | None) -> None:
    np.testing.assert_allclose(
        of_images.predict_proba(images(), batch_size=batch_size),
        of_images.predict_proba(images()),
        rtol=1e-4,
        atol=1e-6,
    )
    table = np.random.default_rng(4).normal(size=(7, 3))
    np.testing.assert_allclose(
        of_tables.transform(table, batch_size=batch_size), of_tables.transform(table), rtol=1e-4, atol=1e-6
    )


def test_batches_are_as_large_as_asked_and_bounded_by_default(make: Any) -> None:
    classifier = Classifier(*make("identity", (3,)))
    seen: list[int] = []
    classifier.network.encoder.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    X = np.zeros((1100, 3)) + 1.0
    classifier.logits(X, batch_size=400)
    classifier.logits(X)
    assert seen == [400, 400, 300, 512, 512, 76]
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        classifier.logits(X, batch_size=0)


def test_large_images_come_in_small_batches(make: Any) -> None:
    classifier = Classifier(*make("mlp-2x1", (3, 1024, 1024)))
    seen: list[int] = []
    classifier.network.encoder.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    classifier.predict(np.zeros((3, 3, 1024, 1024), np.uint8))
    assert seen == [1, 1, 1]


def test_the_same_twice_and_no_trace(of_images: Classifier) -> None:
    state = {name: value.clone() for name, value in of_images.network.state_dict().items()}
    first = of_images.logits(images())
    of_images.network.train()
    np.testing.assert_array_equal(of_images.logits(images()), first)
    assert all(torch.equal(value, state[name]) for name, value in of_images.network.state_dict().items())
    assert not of_images.network.training


def test_what_arrays_may_be(of_images: Classifier, of_tables: Classifier, tmp_path: Path) -> None:
    X = images()
    expected = of_images.logits(X)
    np.save(tmp_path / "x.npy", X)
    frozen = X.copy()
    frozen.setflags(write=False)
    strided = np.repeat(X, 2, axis=0)[::2]
    for same in (np.load(tmp_path / "x.npy", mmap_mode="r"), torch.from_numpy(X), frozen, strided, X[::-1][::-1]):
        np.testing.assert_array_equal(of_images.logits(same), expected)

    table = np.array([[1, 2, 3], [4, 5, 6]])
    expected = of_tables.logits(table.astype(float))
    for same in (table, table.tolist(), torch.tensor(table), pd.DataFrame(table), table.astype(object)):
        np.testing.assert_array_equal(of_tables.logits(same), expected)
    np.testing.assert_array_equal(of_tables.logits(torch.tensor(table, dtype=torch.float16)), expected)


def test_no_rows_give_no_rows(of_images: Classifier, of_tables: Classifier) -> None:
    for classifier, X in ((of_images, images(0)), (of_tables, np.empty((0, 3)))):
        assert classifier.logits(X).shape == classifier.predict_proba(X).shape == (0, 3)
        assert classifier.predict(X).shape == (0,)
        assert classifier.predict(X).dtype == classifier.classes_.dtype


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (images().astype(float) / 255, r"uint8 images \(n, 3, 8, 6\) or \(n, 8, 6, 3\); got float64 .*\(255 \* X\)"),
        (images().astype(np.int64), "got int64"),
        (images()[0], r"got uint8 of shape \(3, 8, 6\). That is one image: pass X\[None\]"),
        (images()[0, 0], r"got uint8 of shape \(8, 6\). That is one image"),
        (
            images(2, (3, 9, 6)),
            r"of shape \(2, 3, 9, 6\). Load files with esupcon.data.load_images\(paths, \(8, 6\), 3\)",
        ),
        (images(2, (1, 8, 6)), r"of shape \(2, 1, 8, 6\)"),
        (images(2, (8, 6)), r"of shape \(2, 8, 6\)"),
        (images(2, (3, 6, 8)), r"of shape \(2, 3, 6, 8\)"),
        (np.uint8(3), r"of shape \(\)"),
        (["a.png"], "got <U5"),
        (None, "got object"),
    ],
)
def test_images_that_are_none(of_images: Classifier, X: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        of_images.predict(X)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((2, 4)), r"X must be a table \(n, 3\); got shape \(2, 4\). Pass the features"),
        (np.zeros(3), r"got shape \(3,\). That is one row: pass it as X.reshape\(1, -1\)"),
        (np.zeros((2, 3, 1)), r"got shape \(2, 3, 1\)"),
        ([["a", "b", "c"]], "X must hold numbers; got <U1"),
        (np.zeros((1, 3), complex), "X must hold numbers; got complex128"),
        ([[0, 0, 0], [0, np.nan, 0], [0, 0, np.inf]], "2 of 3 rows hold NaN or inf, first row 1. Impute"),
        ([[0, None, 0]], "1 of 1 rows hold NaN"),
        (np.array([[0, "a", 0]], object), r"X must hold numbers \(could not convert string to float: 'a'\)"),
        (np.array([[0, {}, 0]], object), r"X must hold numbers"),
        ([[0, 0, 0], [1e300, 0, 0]], "gave NaN or infinite numbers for 1 of 2 rows, first row 1"),
    ],
)
def test_tables_that_are_none(of_tables: Classifier, X: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        of_tables.predict(X)
    assert "\n" not in str(caught.value)


def test_columns_are_held_against_their_names(make: Any) -> None:
    network, config = make("identity", (3,))
    values = config.model_dump()
    values["preprocessing"]["feature_names"] = ["a", "b", "c"]
    classifier = Classifier(network, ArtifactConfig.model_validate(values))
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(4, 3)), columns=list("abc"))
    expected = classifier.logits(table)
    np.testing.assert_array_equal(classifier.logits(table.to_numpy()), expected)
    with pytest.raises(ValueError, match="column 1 should be 'b' and is 'c'"):
        classifier.logits(table[["a", "c", "b"]])
    with pytest.raises(ValueError, match="column 2 should be 'c' and is nothing"):
        classifier.logits(table[["a", "b"]])
    with pytest.raises(ValueError, match="column 3 should be nothing and is 'd'"):
        classifier.logits(table.assign(d=1.0))


def test_devices_that_are_none(saved: Path) -> None:
    for device in ("gpu", "cuda:99", "tpu:0"):
        with pytest.raises(ValueError, match=f"device '{device}' cannot be used here") as caught:
            load_artifact(saved, device=device)
        assert "\n" not in str(caught.value)
    assert load_artifact(saved, device=torch.device("cpu")).device == torch.device("cpu")


def test_repr_says_what_it_is(of_images: Classifier) -> None:
    assert repr(of_images) == "Classifier(resnet10-w4, esupcon, input 3x8x6, 3 classes)"
