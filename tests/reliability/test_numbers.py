"""Extreme values: a finite loss with a finite gradient, or an error that names the reason."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esupcon import ContrastiveClassifier
from esupcon.data import load
from strategies import LOSSES

pytestmark = pytest.mark.reliability

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@st.composite
def extreme_batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float]:
    """Rows of lengths from 1e-30 to 1e30 side by side, equal rows, zero rows, one class, a single positive pair."""
    n, dim = 2 * draw(st.integers(1, 6)), draw(st.integers(1, 5))
    some = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    labels = draw(st.sampled_from([some, [0] * n, [0, *range(n - 1)], list(range(n))]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    if draw(st.booleans()):
        z = z[:1].expand(n, dim).clone()  # all rows equal
    exponents = draw(st.lists(st.sampled_from([-30, -6, 0, 6, 30]), min_size=n, max_size=n))
    z = z * torch.tensor([10.0**e for e in exponents], dtype=torch.float64)[:, None]
    if draw(st.booleans()):
        z[draw(st.integers(0, n - 1))] = 0.0
    prototypes = torch.randn(max(5, n), dim, dtype=torch.float64, generator=generator)
    return z, torch.tensor(labels), prototypes, draw(st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 1e3, 1e6]))


def value_and_gradients(name: str, *tensors: Tensor, temperature: float) -> tuple[float, list[Tensor]]:
    z, labels, prototypes = tensors
    z, prototypes = z.clone().requires_grad_(), prototypes.clone().requires_grad_()
    value = LOSSES[name].loss(z, labels, prototypes, temperature)
    value.backward()
    return float(value.detach()), [leaf.grad for leaf in (z, prototypes) if leaf.grad is not None]


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=40)
@given(batch=extreme_batches(), dtype=st.sampled_from(DTYPES))
def test_losses_are_finite_at_extreme_values(
    name: str, batch: tuple[Tensor, Tensor, Tensor, float], dtype: torch.dtype
) -> None:
    z, labels, prototypes, temperature = batch
    given_z = z.clamp(-6e4, 6e4).to(dtype) if dtype == torch.float16 else z.to(dtype)
    given_prototypes = prototypes if dtype == torch.float64 else prototypes.float()
    try:
        value, gradients = value_and_gradients(name, given_z, labels, given_prototypes, temperature=temperature)
    except ValueError as refusal:
        assert "at least one positive pair" in str(refusal)
        assert len(labels.unique()) == len(labels)
        return
    assert math.isfinite(value)
    # The gradient of a direction is that of the loss divided by the length: a row of 1e-30 may have one beyond float16.
    assert all(gradient.isfinite().all() for gradient in gradients if gradient.dtype != torch.float16)
    exact, _ = value_and_gradients(name, given_z.double(), labels, prototypes, temperature=temperature)
    assert value == pytest.approx(exact, abs=1e-5 * len(z) * (1 + 1 / min(temperature, 0.3)) + 1e-6 * abs(exact))


def quick(**parameters: object) -> ContrastiveClassifier:
    settled = {"encoder": "mlp-8x1", "epochs": 2, "random_state": 0, "auto_calibrate": False, "precision": "32"}
    return ContrastiveClassifier(**{**settled, **parameters})


IMAGES = np.random.default_rng(0).random((24, 8, 8))
LABELS = np.arange(24) % 3


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
@pytest.mark.parametrize("table", [False, True])
def test_nan_pixels_are_refused(bad: float, word: str, table: bool) -> None:
    X = IMAGES.reshape(24, -1) if table else IMAGES
    broken = X.copy()
    broken.flat[7] = bad
    with pytest.raises(ValueError, match=word):
        quick().fit(broken, LABELS)
    classifier = quick().fit(X, LABELS)
    with pytest.raises(ValueError, match=word):
        classifier.predict_proba(broken)


RNG = np.random.default_rng(0)
ODD: dict[str, tuple[np.ndarray, np.ndarray, dict[str, object]]] = {
    "black images": (np.zeros((12, 8, 8)), np.arange(12) % 2, {}),
    "white images": (np.full((12, 8, 8), 255), np.arange(12) % 2, {}),
    "grey images": (np.full((12, 8, 8), 0.5), np.arange(12) % 2, {}),
    "constant table": (np.ones((12, 3)), np.arange(12) % 2, {}),
    "all labels wrong": (RNG.normal(size=(200, 6)), RNG.integers(0, 3, 200), {}),
    "a thousand classes": (RNG.normal(size=(2000, 6)), np.arange(2000) % 1000, {"batch_size": 500}),
    "a thousand classes, ce": (RNG.normal(size=(2000, 6)), np.arange(2000) % 1000, {"batch_size": 500, "method": "ce"}),
    **{
        f"one image per class, {method}": (IMAGES[:5], np.arange(5), {"method": method})  # two views of it are a pair
        for method in ("ce", "supcon_tt", "spce", "esupcon")
    },
}


@pytest.mark.filterwarnings("ignore")  # the doctor may say that there is nothing to learn
@pytest.mark.parametrize("name", ODD)
def test_odd_data_give_probabilities(name: str) -> None:
    X, y, parameters = ODD[name]
    classifier = quick(**parameters).fit(X, y)
    found = classifier.predict_proba(X[:50])
    assert found.shape == (len(X[:50]), len(np.unique(y)))
    assert np.isfinite(found).all()
    assert found.sum(axis=1) == pytest.approx(np.ones(len(found)))


@pytest.mark.parametrize("label", [1e300, np.inf, np.nan, 0.5])
def test_labels_out_of_range_are_refused(tmp_path: Path, label: float) -> None:
    np.savez(tmp_path / "d.npz", x_train=np.zeros((4, 8, 8), np.uint8), y_train=np.array([0, 1, 0, label]))
    with pytest.raises(ValueError, match="labels must be whole numbers"):
        load(tmp_path / "d.npz", log=lambda line: None)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="class"):
        quick().fit(IMAGES, np.zeros(24))
