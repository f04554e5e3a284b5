"""What decides the value of a loss besides the embedding: the terms, the batch, the temperature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from esupcon.doctor.batches import Counts
from esupcon.probability.validation import FloatArray, as_count
from esupcon.validation import check_choice, check_temperature, check_weight

CONTRASTIVE = ("supcon", "spce", "esupcon")
LOSSES = (*CONTRASTIVE, "ce", "tightness")
Head = Literal["linear", "prototype"]
Average = Literal["class", "batch"]


@dataclass(frozen=True, eq=False)
class Setting:
    losses: Mapping[str, float]  # weights by name
    n_batch: int
    n_views: int
    n_classes: int
    temperature: float
    head: Head
    prototype_weight: float
    spce_average: Average
    class_counts: Counts | None

    @classmethod
    def checked(
        cls,
        *,
        losses: Mapping[str, float],
        n_batch: int,
        n_views: int,
        n_classes: int,
        temperature: float,
        head: Head,
        prototype_weight: float,
        spce_average: Average,
        class_counts: Iterable[int] | None,
    ) -> Self:
        if not losses:
            raise ValueError(f"losses must name at least one of {', '.join(LOSSES)}; got none.")
        for name, weight in losses.items():
            check_choice("the name of a loss", name, LOSSES)
            check_weight(f"the weight of {name}", weight)
        check_choice("head", head, ("linear", "prototype"))
        check_choice("spce_average", spce_average, ("class", "batch"))
        n_batch, n_views = as_count(n_batch, name="n_batch"), as_count(n_views, name="n_views")
        if n_batch * n_views < 2:
            raise ValueError("a batch needs two rows or more; got n_batch=1 and n_views=1. Pass larger batches.")
        n_classes = as_count(n_classes, name="n_classes")
        counts = None if class_counts is None else np.asarray(list(class_counts), dtype=np.int64)
        if counts is not None and (counts.shape != (n_classes,) or counts.min() < 0 or counts.sum() == 0):
            raise ValueError(
                f"class_counts must hold the training samples of each of {n_classes} classes; got {counts.tolist()}."
            )
        return cls(
            losses=dict(losses),
            n_batch=n_batch,
            n_views=n_views,
            n_classes=n_classes,
            temperature=check_temperature(temperature),
            head=head,
            prototype_weight=check_weight("prototype_weight", prototype_weight),
            spce_average=spce_average,
            class_counts=counts,
        )

    @property
    def n_rows(self) -> int:
        return self.n_batch * self.n_views

    @property
    def has_temperature(self) -> bool:
        return any(name in CONTRASTIVE or (name == "ce" and self.head == "prototype") for name in self.losses)

    @property
    def class_shares(self) -> FloatArray:
        """Of the classes that have samples."""
        if self.class_counts is None:
            return np.full(self.n_classes, 1 / self.n_classes)
        shares: FloatArray = self.class_counts / self.class_counts.sum()
        return shares[shares > 0]
