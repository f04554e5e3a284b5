"""Draw hard settings from a data set: few samples, rare classes, wrong labels, and a held-out part."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esupcon._console import check_choice
from esupcon._split import Indices, stratified_split

if TYPE_CHECKING:
    from esupcon.data.dataset import Dataset

#: How `label_noise` makes labels wrong.
NoiseKind = Literal["shuffle", "symmetric", "pair"]

Labels = NDArray[np.integer]


def low_sample(labels: ArrayLike, n_train: int, rng: np.random.Generator) -> Indices:
    """Return ascending indices of exactly ``n_train`` samples, stratified by class; at least one of each if possible.

    With equal class sizes and one generator state, a smaller sample is part of a larger one.
    """
    truth = np.asarray(labels)
    if not 1 <= n_train <= len(truth):
        raise ValueError(f"n_train is {n_train}, and there are {len(truth)} samples. Pass a number from 1 to that.")
    classes, counts = np.unique(truth, return_counts=True)
    quotas = _quotas(counts.tolist(), int(n_train), rng.permutation(len(classes)))
    chosen = [rng.permutation(np.flatnonzero(truth == k))[:q] for k, q in zip(classes, quotas, strict=True)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def imbalance(labels: ArrayLike, imbalance_rate: float, rng: np.random.Generator) -> tuple[Indices, Labels]:
    """Make half of the classes rare: each keeps this share of its samples, or one.

    Return the ascending indices of what is left, and the rare classes.
    """
    truth = np.asarray(labels)
    _check_rate("imbalance_rate", imbalance_rate)
    classes = _at_least_two_classes(truth)
    scarce = np.sort(rng.choice(classes, size=len(classes) // 2, replace=False))
    keep = np.ones(len(truth), dtype=bool)
    for k in scarce:
        members = rng.permutation(np.flatnonzero(truth == k))
        keep[members[max(1, round(float(imbalance_rate) * len(members))) :]] = False
    return np.flatnonzero(keep).astype(np.int64), scarce


def label_noise(labels: ArrayLike, noise_rate: float, rng: np.random.Generator, kind: NoiseKind = "shuffle") -> Labels:
    """Return the labels with exactly round(noise_rate * N) of them wrong.

    - ``shuffle``: the chosen labels are permuted so that every one changes class; no class may hold more than half.
    - ``symmetric``: each chosen label becomes one of the other classes, uniformly.
    - ``pair``: each chosen label becomes the next class in ascending order, the last one the first.
    """
    truth = np.asarray(labels)
    _check_rate("noise_rate", noise_rate)
    check_choice("noise_kind", kind, get_args(NoiseKind))
    n_wrong = round(float(noise_rate) * len(truth))
    noisy = truth.copy()
    if n_wrong == 0:
        return noisy
    classes = _at_least_two_classes(truth)
    codes = np.searchsorted(classes, truth)
    if kind == "shuffle":
        chosen = _shuffle_choice(codes, n_wrong, rng)
        wrong = _class_derangement(codes[chosen], rng)
    else:
        chosen = rng.choice(len(truth), size=n_wrong, replace=False)
        step = rng.integers(1, len(classes), size=n_wrong) if kind == "symmetric" else 1
        wrong = (codes[chosen] + step) % len(classes)
    noisy[chosen] = classes[wrong]
    return noisy


class ScenarioResult(NamedTuple):
    """The samples to train on, their labels, which may be wrong, and a record for JSON of what was drawn."""

    indices: Indices
    labels: Labels
    record: dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """The hard settings of one run, applied in this order: rare classes, ``n_train`` of the rest, wrong labels.

    Each has its own generator derived from ``seed``, so switching one on or off (None) does not redraw the others.
    """

    n_train: int | None = None
    imbalance_rate: float | None = None
    noise_rate: float | None = None
    noise_kind: NoiseKind = "shuffle"
    seed: int = 0

    def apply(self, labels: ArrayLike) -> ScenarioResult:
        """Apply the scenario to labels. The record holds everything that was drawn except the indices."""
        truth = np.asarray(labels)
        if truth.ndim != 1 or not len(truth) or truth.dtype.kind not in "iu":
            got = f"{truth.dtype} of shape {truth.shape}"
            raise ValueError(f"labels must be a one-dimensional array of integers, not empty; got {got}.")
        draw_rare, draw_sample, draw_noise = (np.random.default_rng([self.seed, i]) for i in range(3))
        indices, scarce = np.arange(len(truth), dtype=np.int64), None
        if self.imbalance_rate is not None:
            indices, scarce = imbalance(truth, self.imbalance_rate, draw_rare)
        if self.n_train is not None:
            indices = indices[low_sample(truth[indices], self.n_train, draw_sample)]
        noisy = kept = truth[indices]
        if self.noise_rate is not None:
            noisy = label_noise(kept, self.noise_rate, draw_noise, self.noise_kind)
        n_wrong = int((noisy != kept).sum())
        record = {
            "settings": asdict(self),
            "n_before": len(truth),
            "n_after": len(indices),
            "class_counts_before": _class_counts(truth),
            "class_counts_after": _class_counts(kept),
            "label_counts_after": _class_counts(noisy),
            "scarce_classes": None if scarce is None else scarce.tolist(),
            "n_wrong_labels": n_wrong,
            "effective_noise_rate": n_wrong / len(indices),
            # Equal on every platform and for every integer type.
            "sha256": hashlib.sha256(np.concatenate((indices, noisy)).astype("<i8").tobytes()).hexdigest(),
        }
        return ScenarioResult(indices, noisy, record)


class Prepared(NamedTuple):
    """Row indices into `Dataset.x_train` and the labels, maybe wrong, of the rows to train on and of those held out."""

    fit: Indices
    y_fit: NDArray[np.int64]
    held: Indices
    y_held: NDArray[np.int64]
    record: dict[str, Any]


def prepare(dataset: Dataset, scenario: Scenario, validation_fraction: float, seed: int) -> Prepared:
    """Apply a scenario to the training part, then hold out a stratified share of its rows, wrong labels included."""
    indices, noisy, drawn = scenario.apply(dataset.y_train)
    labels = noisy.astype(np.int64)
    fit, held = np.arange(len(labels)), np.empty(0, np.int64)
    if validation_fraction > 0:
        fit, held = stratified_split(labels, validation_fraction, seed)
    record = {
        "scenario": drawn,
        "validation_fraction": validation_fraction,
        "validation_seed": seed,
        "n_fit": len(fit),
        "n_held_out": len(held),
        "n_test": len(dataset.y_test),
    }
    return Prepared(indices[fit], labels[fit], indices[held], labels[held], record)


def _quotas(sizes: list[int], n: int, order: NDArray[np.int64]) -> list[int]:
    """Return n * sizes / N by largest remainder, ties by ``order``, then at least one of each class if n allows."""
    total = sum(sizes)
    quotas = [n * size // total for size in sizes]
    by_remainder = sorted(order.tolist(), key=lambda k: -(n * sizes[k] % total))
    for k in by_remainder[: n - sum(quotas)]:
        quotas[k] += 1
    if n >= len(sizes):
        for k in [k for k in by_remainder if quotas[k] == 0]:
            # The class that is furthest above its share gives one.
            giver = max((j for j in by_remainder if quotas[j] > 1), key=lambda j: quotas[j] * total - n * sizes[j])
            quotas[giver] -= 1
            quotas[k] = 1
    return quotas


def _shuffle_choice(codes: NDArray[np.intp], n_wrong: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return positions of ``n_wrong`` labels of which no class holds more than half: these can be permuted."""
    counts, half = np.bincount(codes), n_wrong // 2
    if np.minimum(counts, half).sum() < n_wrong:
        total, largest = len(codes), int(counts.max())
        # An even number can be permuted if all classes but the largest hold half of it.
        instead = max(2, min(2 * half, 2 * (total - largest)))
        raise ValueError(
            f"label_noise cannot shuffle {n_wrong} of {total} labels so that all change class: the largest class has "
            f"{largest}. Use noise_rate={instead / total:.8g} ({instead} labels), or noise_kind='symmetric' or 'pair'."
        )
    order = rng.permutation(len(codes))
    # The rank of each position among those of its class, in drawing order.
    by_class = np.argsort(codes[order], kind="stable")
    rank = np.empty(len(codes), dtype=np.intp)
    rank[by_class] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[rank < half][:n_wrong]


def _class_derangement(codes: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return a random permutation of the codes in which no place keeps its class.

    It is repaired class by class: places of class c that received c are swapped with random places that neither are nor
    received c. There are enough of these because at most half of the places are of class c.
    """
    dealt = rng.permutation(codes)
    for c in rng.permutation(np.unique(codes)):
        stuck = np.flatnonzero((codes == c) & (dealt == c))
        free = np.flatnonzero((codes != c) & (dealt != c))
        partners = rng.choice(free, size=len(stuck), replace=False)
        dealt[stuck], dealt[partners] = dealt[partners], c
    return dealt


def _class_counts(labels: Labels) -> dict[str, int]:
    classes, counts = np.unique(labels, return_counts=True)
    return {str(k): int(count) for k, count in zip(classes, counts, strict=True)}


def _at_least_two_classes(labels: Labels) -> Labels:
    classes = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(f"rare classes and wrong labels need at least two classes; all labels are {classes[0]}.")
    return classes


def _check_rate(name: str, rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"{name} must be from 0 to 1; got {rate!r}.")
