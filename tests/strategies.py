"""Batches as hypothesis draws them: several views, classes with gaps, singletons, absent classes, one class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    z: Tensor  # (n, d) float64
    labels: Tensor  # (n,)
    prototypes: Tensor  # (n_classes, d) float64
    temperature: float

    @property
    def n_classes(self) -> int:
        return len(self.prototypes)

    @property
    def has_positive(self) -> bool:
        return len(self.labels.unique()) < len(self.labels)

    def rows(self) -> tuple[list[list[float]], list[int], list[list[float]]]:
        return self.z.tolist(), self.labels.tolist(), self.prototypes.tolist()


temperatures = st.one_of(st.sampled_from([0.005, 0.01, 0.07, 0.1, 0.5, 1.0, 10.0]), st.floats(0.005, 10))


@st.composite
def batches(draw: st.DrawFn, *, max_images: int = 7) -> Batch:
    images = draw(st.integers(1, max_images))
    views = draw(st.integers(1, 4))
    dim = draw(st.integers(1, 6))
    n_classes = draw(st.integers(1, 9))
    labels = draw(st.lists(st.integers(0, n_classes - 1), min_size=images, max_size=images))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([1e-6, 1.0, 1e6]))
    z = torch.randn(images * views, dim, dtype=torch.float64, generator=generator) * scale
    prototypes = torch.randn(n_classes, dim, dtype=torch.float64, generator=generator)
    return Batch(z, torch.tensor(labels * views), prototypes, draw(temperatures))
