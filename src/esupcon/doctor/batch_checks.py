"""Before training: what batches of the chosen size will lack."""

from __future__ import annotations

import numpy as np

from esupcon.doctor.batches import (
    Counts,
    absent_share,
    alone_share,
    batch_size_for,
    chance_of_none,
    prototype_share,
)
from esupcon.doctor.finding import Finding, percent

# An absent class is no positive for anyone, and its prototype is only pushed away. A quarter absent slows learning
# down; where half of them are absent, a prototype is pushed away more often than it is pulled.
ABSENT_NOTE, ABSENT_WARNING = 0.25, 0.5
# What a larger batch should reach: one class in ten absent is of no consequence.
ABSENT_GOAL = 0.1
# Samples without a positive are left out of the loss: this share of the computation is wasted.
ALONE_WARNING = 0.05
# From here on most samples have no positive but themselves, and the labels decide less than the augmentation.
OWN_VIEWS_NOTE = 0.5
# The share suggested where prototypes learn too slowly: ten times the usual one or so, samples still dominate.
PROTOTYPE_GOAL = 0.1


def batch_findings(
    class_counts: Counts,
    batch_size: int,
    n_views: int,
    *,
    uses_positives: bool,
    has_prototypes: bool,
    prototype_weight: float,
) -> list[Finding]:
    found = []
    if uses_positives or has_prototypes:
        found += _absent(class_counts, batch_size)
    if uses_positives:
        found += _without_positive(class_counts, batch_size) if n_views == 1 else _own_views(class_counts, batch_size)
    if has_prototypes:
        found += _prototypes(class_counts, batch_size, n_views, prototype_weight)
    return found


def _absent(class_counts: Counts, batch_size: int) -> list[Finding]:
    share, n_filled = absent_share(class_counts, batch_size), np.count_nonzero(class_counts)
    if share < ABSENT_NOTE:
        return []
    rarest = chance_of_none(int(class_counts.sum()), int(class_counts[class_counts > 0].min()), batch_size)
    return [
        Finding(
            "absent-classes",
            "warning" if share >= ABSENT_WARNING else "note",
            f"a batch of {batch_size:,} images lacks {share * n_filled:.1f} of the {n_filled:,} classes on average "
            f"({percent(share)}), the rarest in {percent(rarest)} of the batches: in such a step "
            "they teach nothing, and prototypes of theirs are only pushed away.",
            f"Use batches of {batch_size_for(class_counts, ABSENT_GOAL):,} images, which lack {percent(ABSENT_GOAL)} "
            "of the classes; a small micro_batch makes them fit the memory.",
        )
    ]


def _without_positive(class_counts: Counts, batch_size: int) -> list[Finding]:
    share = alone_share(class_counts, batch_size)
    if share < ALONE_WARNING:
        return []
    never = share > 1 - 1e-9
    return [
        Finding(
            "no-positives",
            "error" if never else "warning",
            f"with one view, {percent(share)} of the samples are alone of their class in a batch of {batch_size:,} "
            f"({np.count_nonzero(class_counts):,} classes): without a positive they take no part in the loss"
            + (", so there is nothing to minimise." if never else "."),
            "Train with two views of each image, so that every sample has a positive, or with larger batches.",
        )
    ]


def _own_views(class_counts: Counts, batch_size: int) -> list[Finding]:
    share = alone_share(class_counts, batch_size)
    if share < OWN_VIEWS_NOTE:
        return []
    return [
        Finding(
            "own-views-only",
            "note",
            f"{percent(share)} of the samples find no other sample of their class in a batch of {batch_size:,} "
            f"({np.count_nonzero(class_counts):,} classes): their only positive is their own other view, so the labels "
            "hardly shape the embedding.",
            "Use larger batches; a small micro_batch makes them fit the memory.",
        )
    ]


def _prototypes(class_counts: Counts, batch_size: int, n_views: int, weight: float) -> list[Finding]:
    share, at_one = (prototype_share(class_counts, batch_size, n_views, w) for w in (weight, 1.0))
    n_present = np.count_nonzero(class_counts) * (1 - absent_share(class_counts, batch_size))
    # share = w p / (w p + a) solved for the weight that gives PROTOTYPE_GOAL
    suggested = PROTOTYPE_GOAL / (1 - PROTOTYPE_GOAL) * (1 - at_one) / at_one
    if weight == 0:
        return [
            Finding(
                "prototype-share",
                "warning",
                "prototype_weight is 0: the prototypes have no part in the objective, get no gradient, and classify "
                "at random.",
                "Use prototype_weight=1, the published objective.",
            )
        ]
    return [
        Finding(
            "prototype-share",
            "note",
            f"the {n_present:.3g} prototypes of the classes in a batch make up {percent(share)} of the objective, its "
            f"{n_views * batch_size:,} samples the rest (prototype_weight {weight:g}).",
            "Nothing to do."
            if share >= PROTOTYPE_GOAL
            else "Nothing to do, unless the accuracy lags behind that of the embedding's nearest class means: "
            f"prototype_weight={suggested:.2g} gives the prototypes {percent(PROTOTYPE_GOAL)}.",
        )
    ]
