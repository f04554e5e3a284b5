"""What a random batch holds on average, in closed form.

A batch is B of N training images drawn without replacement, each seen in v views; class k has N_k of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def chance_of_none(n: int, n_marked: int, n_drawn: int) -> float:
    """P(no marked one among n_drawn of n, without replacement) = C(n - n_marked, n_drawn) / C(n, n_drawn)."""
    if n_drawn > n - n_marked:
        return 0.0
    return math.exp(
        math.lgamma(n - n_marked + 1)
        - math.lgamma(n - n_marked - n_drawn + 1)
        - math.lgamma(n + 1)
        + math.lgamma(n - n_drawn + 1)
    )


def absent_share(class_counts: Counts, batch_size: int) -> float:
    """The expected share of the classes, of those with training images, that a batch does not hold."""
    n = int(class_counts.sum())
    sizes, times = np.unique(class_counts[class_counts > 0], return_counts=True)
    absent = sum(int(m) * chance_of_none(n, int(size), batch_size) for size, m in zip(sizes, times, strict=True))
    return absent / int(times.sum())


def alone_share(class_counts: Counts, batch_size: int) -> float:
    """The expected share of a batch's images that are the only one of their class in it."""
    n = int(class_counts.sum())
    sizes, times = np.unique(class_counts[class_counts > 0], return_counts=True)
    alone = (
        int(m) * int(size) * chance_of_none(n - 1, int(size) - 1, batch_size - 1)
        for size, m in zip(sizes, times, strict=True)
    )
    return sum(alone) / n


def prototype_share(class_counts: Counts, batch_size: int, n_views: int = 2, prototype_weight: float = 1.0) -> float:
    """The share of the ESupCon objective that is prototypes: the sum of the coefficients of its l_pt terms.

    1/(n+K) [ w sum_k 1/n_k sum_{i: y_i = k} l_pt(z_i, theta_k) + sum_i l_SupCon(z_i, P_i) ]: the coefficients of a
    present class add up to w/(n+K), those of an absent one to 0; a sample has 1/(n+K), or 0 without a positive.
    Over many batches the divisor cancels and w E[present] / (w E[present] + E[samples with a positive]) is left;
    with all classes present and two views of N images that is w K / (2N + w K).
    """
    n_present = np.count_nonzero(class_counts) * (1 - absent_share(class_counts, batch_size))
    n_anchors = n_views * batch_size * (1.0 if n_views > 1 else 1 - alone_share(class_counts, batch_size))
    whole = prototype_weight * n_present + n_anchors
    return float(prototype_weight * n_present / whole) if whole > 0 else 0.0


def batch_size_for(class_counts: Counts, largest_absent_share: float) -> int:
    """The smallest batch whose expected share of absent classes is at most this."""
    low, high = 1, int(class_counts.sum())
    while low < high:
        middle = (low + high) // 2
        if absent_share(class_counts, middle) <= largest_absent_share:
            high = middle
        else:
            low = middle + 1
    return low
