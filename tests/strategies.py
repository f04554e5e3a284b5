"""The losses under test, each with its slow twin, and batches to try them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import reference
from esupcon import functional as F


class Case(NamedTuple):
    """A loss and its twin as functions of (z, labels, prototypes, temperature)."""

    loss: Callable[..., Tensor]  # also takes anchors and check_finite
    twin: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    needs_pair: bool = False


def _esupcon(**settings: Any) -> Callable[..., Tensor]:
    return lambda z, y, p, t, **k: F.esupcon_loss(z, y, p, temperature=t, **settings, **k)


def log_priors(prototypes: Tensor) -> Tensor:
    return torch.linspace(-3, 0.5, len(prototypes), dtype=torch.float64)


def targets(labels: Tensor, prototypes: Tensor) -> Tensor:
    """Return soft labels that follow the labels, for any order of samples."""
    k = len(prototypes)
    return 0.7 * torch.eye(k, dtype=torch.float64)[labels] + 0.3 * torch.arange(1, k + 1).double() / (k * (k + 1) / 2)


LOSSES = {
    "simclr": Case(
        lambda z, y, p, t, **k: F.simclr_loss(z, temperature=t, **k), lambda z, y, p, t: reference.simclr(z, t)
    ),
    "supcon": Case(
        lambda z, y, p, t, **k: F.supcon_loss(z, y, temperature=t, **k),
        lambda z, y, p, t: reference.supcon(z, y, t),
        needs_pair=True,
    ),
    "spce": Case(
        lambda z, y, p, t, **k: F.spce_loss(z, y, temperature=t, **k),
        lambda z, y, p, t: reference.spce(z, y, t, "class", len(p)),
    ),
    "spce_batch": Case(
        lambda z, y, p, t, **k: F.spce_loss(z, y, temperature=t, average="batch", **k),
        lambda z, y, p, t: reference.spce(z, y, t, "batch", int(y.max()) + 1),
    ),
    "spce_batch_all_classes": Case(
        lambda z, y, p, t, **k: F.spce_loss(z, y, temperature=t, average="batch", n_classes=len(p), **k),
        lambda z, y, p, t: reference.spce(z, y, t, "batch", len(p)),
    ),
    "tightness": Case(
        lambda z, y, p, t, **k: F.tightness_loss(z, y, p, **k), lambda z, y, p, t: reference.tightness(z, y, p)
    ),
    "prototype": Case(
        lambda z, y, p, t, **k: F.prototype_loss(z, y, p, temperature=t, **k).sum(),
        lambda z, y, p, t: reference.prototype(z, y, p, t, t).sum(),
    ),
    "prototype_temperature": Case(
        lambda z, y, p, t, **k: F.prototype_loss(z, y, p, temperature=t, prototype_temperature=0.3, **k).sum(),
        lambda z, y, p, t: reference.prototype(z, y, p, t, 0.3).sum(),
    ),
    "prototype_priors": Case(
        lambda z, y, p, t, **k: F.prototype_loss(z, y, p, temperature=t, log_priors=log_priors(p), **k).sum(),
        lambda z, y, p, t: reference.prototype(z, y, p, t, t, log_priors(p)).sum(),
    ),
    "esupcon": Case(_esupcon(), lambda z, y, p, t: reference.esupcon(z, y, p, t, t, 1.0), needs_pair=True),
    "esupcon_weight": Case(
        _esupcon(prototype_weight=2.0, prototype_temperature=0.3),
        lambda z, y, p, t: reference.esupcon(z, y, p, t, 0.3, 2.0),
        needs_pair=True,
    ),
    "esupcon_share_class": Case(
        _esupcon(prototype_share=0.4),
        lambda z, y, p, t: reference.esupcon_share(z, y, p, t, t, 0.4, "class"),
        needs_pair=True,
    ),
    "esupcon_share_sample": Case(
        _esupcon(prototype_share=0.4, prototype_average="sample", prototype_temperature=0.3),
        lambda z, y, p, t: reference.esupcon_share(z, y, p, t, 0.3, 0.4, "sample"),
        needs_pair=True,
    ),
    "esupcon_priors": Case(
        lambda z, y, p, t, **k: F.esupcon_loss(z, y, p, temperature=t, log_priors=log_priors(p), **k),
        lambda z, y, p, t: reference.esupcon(z, y, p, t, t, 1.0, log_priors(p)),
        needs_pair=True,
    ),
    "esupcon_targets": Case(
        lambda z, y, p, t, **k: _esupcon(
            prototype_share=0.4, prototype_average="sample", prototype_temperature=0.3, targets=targets(y, p)
        )(z, y, p, t, **k),
        lambda z, y, p, t: reference.esupcon_targets(z, y, p, t, 0.3, 0.4, "sample", targets(y, p)),
        needs_pair=True,
    ),
    "esupcon_targets_class": Case(
        lambda z, y, p, t, **k: _esupcon(prototype_share=0.4, targets=targets(y, p))(z, y, p, t, **k),
        lambda z, y, p, t: reference.esupcon_targets(z, y, p, t, t, 0.4, "class", targets(y, p)),
        needs_pair=True,
    ),
    "esupcon_contrast": Case(
        _esupcon(prototype_share=0.4, prototype_average="sample", contrast_weight=0.3),
        lambda z, y, p, t: reference.esupcon_share(z, y, p, t, t, 0.4, "sample", 0.3),
        needs_pair=True,
    ),
    "esupcon_mean_contrast": Case(
        _esupcon(prototype_share=0.4, prototype_average="sample", contrast_weight="mean"),
        lambda z, y, p, t: reference.esupcon_share(z, y, p, t, t, 0.4, "sample", len(p) / (len(z) - 1)),
        needs_pair=True,
    ),
    "esupcon_separate": Case(
        _esupcon(prototype_share=0.4, prototype_average="sample", contrast_weight=0.0),
        lambda z, y, p, t: reference.esupcon_share(z, y, p, t, t, 0.4, "sample", 0.0),
        needs_pair=True,
    ),
}
WITH_ANCHORS = [name for name in LOSSES if name not in ("simclr", "tightness")]


def example(n: int = 12, d: int = 5, k: int = 4, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Random z, labels and prototypes; the last class is absent from the labels."""
    return torch.randn(n, d, dtype=dtype), torch.arange(n) % (k - 1), torch.randn(k, d, dtype=dtype)


@dataclass(frozen=True)
class Batch:
    z: Tensor  # (n, d) float64
    labels: Tensor  # (n,)
    prototypes: Tensor  # (n_classes, d) float64
    temperature: float

    @property
    def has_pair(self) -> bool:
        return len(self.labels.unique()) < len(self.labels)


@st.composite
def batches(draw: st.DrawFn, *, max_images: int = 7) -> Batch:
    """Draw several views, classes with gaps, singletons, absent classes, one class, and any temperature."""
    images = draw(st.integers(1, max_images))
    views = draw(st.integers(1, 4))
    dim = draw(st.integers(1, 6))
    n_classes = draw(st.integers(1, 9))
    labels = draw(st.lists(st.integers(0, n_classes - 1), min_size=images, max_size=images))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([1e-6, 1.0, 1e6]))
    z = torch.randn(images * views, dim, dtype=torch.float64, generator=generator) * scale
    prototypes = torch.randn(n_classes, dim, dtype=torch.float64, generator=generator)
    temperature = draw(st.one_of(st.sampled_from([0.005, 0.01, 0.07, 0.1, 0.5, 1.0, 10.0]), st.floats(0.005, 10)))
    return Batch(z, torch.tensor(labels * views), prototypes, temperature)
