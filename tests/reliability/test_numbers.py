"""Extreme values: a finite loss with a finite gradient, or an error that names the reason."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esupcon import ContrastiveClassifier
from esupcon import functional as F
from esupcon.data import load

pytestmark = pytest.mark.reliability

Loss = Callable[[Tensor, Tensor, Tensor, float], Tensor]
LOSSES: dict[str, Loss] = {
    "simclr": lambda z, y, theta, t: F.simclr_loss(z, temperature=t),
    "supcon": lambda z, y, theta, t: F.supcon_loss(z, y, temperature=t),
    "spce class": lambda z, y, theta, t: F.spce_loss(z, y, temperature=t),
    "spce batch": lambda z, y, theta, t: F.spce_loss(z, y, temperature=t, average="batch", n_classes=len(theta)),
    "tightness": lambda z, y, theta, t: F.tightness_loss(z, y, theta),
    "prototype": lambda z, y, theta, t: F.prototype_loss(z, y, theta, temperature=t).mean(),
    "esupcon": lambda z, y, theta, t: F.esupcon_loss(z, y, theta, temperature=t),
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@st.composite
def extreme_batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float]:
    """Rows of lengths from 1e-30 to 1e30 side by side, equal rows, zero rows, one class, a single positive pair."""
    n = 2 * draw(st.integers(1, 6))
    dim = draw(st.integers(1, 5))
    n_classes = draw(st.integers(1, 5))
    kinds = ("any", "one class", "one pair", "as many classes as rows")
    kind = draw(st.sampled_from(kinds))
    n_classes = max(n_classes, n) if kind in kinds[2:] else n_classes
    labels = {
        "any": draw(st.lists(st.integers(0, n_classes - 1), min_size=n, max_size=n)),
        "one class": [0] * n,
        "one pair": [0, *range(n - 1)],
        "as many classes as rows": list(range(n)),
    }[kind]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    if draw(st.booleans()):
        z = z[:1].expand(n, dim).clone()  # all rows equal
    exponents = draw(st.lists(st.sampled_from([-30, -6, 0, 6, 30]), min_size=n, max_size=n))
    z = z * torch.tensor([10.0**e for e in exponents], dtype=torch.float64)[:, None]
    if draw(st.booleans()):
        z[draw(st.integers(0, n - 1))] = 0.0
    theta = torch.randn(n_classes, dim, dtype=torch.float64, generator=generator)
    temperature = draw(st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 1e3, 1e6]))
    return z, torch.tensor(labels), theta, temperature


def value_and_gradient(loss: Loss, z: Tensor, y: Tensor, theta: Tensor, t: float) -> tuple[float, Tensor, Tensor]:
    z, theta = z.clone().requires_grad_(), theta.clone().requires_grad_()
    value = loss(z, y, theta, t)
    value.backward()
    none = torch.zeros(())
    return float(value.detach()), none if z.grad is None else z.grad, none if theta.grad is None else theta.grad


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=60)
@given(batch=extreme_batches(), dtype=st.sampled_from(DTYPES))
def test_losses_are_finite_at_extreme_values(
    name: str, batch: tuple[Tensor, Tensor, Tensor, float], dtype: torch.dtype
) -> None:
    z, y, theta, t = batch
    loss = LOSSES[name]
    given_z = z.clamp(-6e4, 6e4).to(dtype) if dtype == torch.float16 else z.to(dtype)
    try:
        found = value_and_gradient(loss, given_z, y, theta.float() if dtype != torch.float64 else theta, t)
    except ValueError as refusal:
        assert "at least one positive pair" in str(refusal)
        assert len(y.unique()) == len(y)
        return
    value, of_z, of_theta = found
    assert math.isfinite(value)
    assert of_theta.isfinite().all()
    # The gradient of a direction is that of the loss divided by the length: a row of 1e-30 may have one beyond float16.
    if dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert of_z.isfinite().all()
    exact, *_ = value_and_gradient(loss, given_z.double(), y, theta, t)
    assert value == pytest.approx(exact, abs=1e-5 * (1 + 1 / t) + 1e-6 * abs(exact))


def quick(**parameters: object) -> ContrastiveClassifier:
    settled = {"encoder": "mlp-8x1", "epochs": 2, "random_state": 0, "auto_calibrate": False, "precision": "32"}
    return ContrastiveClassifier(**{**settled, **parameters})


def assert_probabilities(classifier: ContrastiveClassifier, X: np.ndarray) -> None:
    found = classifier.predict_proba(X)
    assert found.shape == (len(X), len(classifier.classes_))
    assert np.isfinite(found).all()
    assert found.sum(axis=1) == pytest.approx(np.ones(len(X)))


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


@pytest.mark.parametrize(
    "X", [np.zeros((12, 8, 8)), np.full((12, 8, 8), 255), np.full((12, 8, 8), 0.5), np.ones((12, 3))]
)
def test_constant_images_and_tables(X: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the doctor may say that there is nothing to learn
        classifier = quick().fit(X, np.arange(12) % 2)
    assert_probabilities(classifier, X)


@pytest.mark.parametrize("method", ["ce", "supcon_tt", "spce", "esupcon"])
def test_one_image_per_class(method: str) -> None:
    """Two views of an image are a pair, so there is something to learn."""
    classifier = quick(method=method).fit(IMAGES[:5], np.arange(5))
    assert_probabilities(classifier, IMAGES)


@pytest.mark.parametrize("method", ["ce", "esupcon"])
def test_a_thousand_classes(method: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2000, 6)), np.arange(2000) % 1000
    classifier = quick(method=method, batch_size=500).fit(X, y)
    assert_probabilities(classifier, X[:50])
    assert len(classifier.classes_) == 1000


def test_all_labels_wrong() -> None:
    """Nothing can be learnt, and nothing breaks: on other samples it is right about as often as chance is."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 6)), rng.integers(0, 3, 300)
    classifier = quick(epochs=5).fit(X[:200], y[:200])
    assert_probabilities(classifier, X)
    assert 0.15 < classifier.score(X[200:], y[200:]) < 0.55


@pytest.mark.parametrize("label", [1e300, np.inf, np.nan, 0.5])
def test_labels_out_of_range_are_refused(tmp_path: Path, label: float) -> None:
    np.savez(tmp_path / "d.npz", x_train=np.zeros((4, 8, 8), np.uint8), y_train=np.array([0, 1, 0, label]))
    with pytest.raises(ValueError, match="labels must be whole numbers"):
        load(tmp_path / "d.npz", log=lambda line: None)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="class"):
        quick().fit(IMAGES, np.zeros(24))
