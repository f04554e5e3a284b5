"""Check data before training (`check_data`) and the probabilities of a trained classifier (`check_after`)."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from esupcon._console import percent
from esupcon.doctor.finding import SEVERITIES, Finding, Severity, class_name, finding
from esupcon.probability.predictions import (
    BoolArray,
    FloatArray,
    IntArray,
    as_labels,
    as_probabilities,
    with_labels,
)

# Examples named in a message.
N_EXAMPLES, N_SUSPECTS = 3, 5
# Pairs of images kept in a finding, for a report to show.
N_PAIRS = 50
# Perceptual hashes of 64 bits that differ in so few mean one picture. Of 500 million pairs of CIFAR-10's parts, 121 do:
# looked at, all of them show the same object in the same pose. Up to 6 bits there are 247, of which 31 correlate below
# 0.8. Of copies saved again as JPEG of quality 60 at 0.8 of the size, 99 % differ in at most 4. Images with sides below
# 32 have too little detail.
NEAR_BITS, NEAR_SIDE = 4, 32
# Share of the test images from which such pairs are a warning: less hardly changes an accuracy.
NEAR_WARNING = 0.05
# The largest class divided by the smallest.
IMBALANCE_NOTE, IMBALANCE_WARNING = 10, 100
# Rows are read this many bytes at a time, in order: a memory-mapped array is never in memory as a whole.
CHUNK_BYTES = 16 * 2**20

# Confident predictions: this share of every predicted class, enough to count.
SUREST = 0.2
# In clean sets up to 3 % of the confident predictions are wrong; the estimate must exceed this by two standard errors.
CLEAN, STANDARD_ERRORS = 0.04, 2.0
# Errors relative to those of random predictions, 1 - 1/K. A classifier that makes half as many may simply be poor.
GOOD_ERROR = 0.5
# Among hard but clean samples, confident predictions are wrong far less often than all (measured: at most 0.37 times).
SHARE_OF_ERRORS = 0.4
# With many wrong labels even a good classifier disagrees often. Up to here noise differs from a poor classifier by
# being even: the most confident fifth is wrong as often as the most confident half. (Poor ones: at most 0.88 times.)
POOR_ERROR, EVEN = 0.7, 0.9
# The label of a suspect has less than half of the probability that is usual for its class.
UNLIKELY = 0.5
# Samples of other classes that must all be missed: with a recall of one half this happens in 3 % of the cases.
FEWEST_MISSED = 5

_CHANCE = " In a table of few distinct values, identical rows can be chance."


def check_data(
    x: Any,
    y: ArrayLike,
    x_held: Any = None,
    *,
    x_test: Any = None,
    n_classes: int,
    classes: Sequence[Any] | None = None,
) -> list[Finding]:
    """Return copies between the parts, near copies in the test part, contradicting labels, and unequal classes.

    x, x_held, x_test: arrays of training, held-out and test images (n, C, H, W) or tables (n, d), maybe memory-mapped.
    y: labels of `x`, 0 .. n_classes - 1; `classes` are their names.
    """
    given = {"train": x, "held-out": x_held, "test": x_test}
    samples = {name: part for name, part in given.items() if part is not None}
    labels = as_labels(y, n=len(samples["train"]), n_classes=n_classes, name="labels of the train part")
    shapes, dtype = [part.shape for part in samples.values()], np.result_type(*(one.dtype for one in samples.values()))
    if 0 in shapes[0] or len({shape[1:] for shape in shapes}) > 1:
        raise ValueError(f"all parts must hold samples of one shape, and train at least one; got shapes {shapes}.")
    digests = {name: _digests(part, dtype) for name, part in samples.items()}
    found = _duplicates(digests, labels, is_table=len(shapes[0]) == 2, classes=classes)
    found += _near_copies(samples["train"], samples.get("test"), digests)
    found += _imbalance(labels, n_classes, classes)
    return sorted(found, key=lambda one: -SEVERITIES.index(one.severity))


def _imbalance(labels: NDArray[np.int64], n_classes: int, classes: Sequence[Any] | None) -> list[Finding]:
    counts = np.bincount(labels, minlength=n_classes)
    largest, smallest = int(counts.argmax()), int(np.where(counts > 0, counts, len(labels) + 1).argmin())
    ratio = counts[largest] / counts[smallest]
    if ratio < IMBALANCE_NOTE:
        return []
    severity: Severity = "warning" if ratio >= IMBALANCE_WARNING else "note"
    named = {"largest": class_name(classes, largest), "smallest": class_name(classes, smallest)}
    sizes = {"n_largest": int(counts[largest]), "n_smallest": int(counts[smallest]), "ratio": float(ratio)}
    return [finding("imbalance", severity, **named, **sizes)]


def check_after(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[Any] | None = None,
    already_reported: Iterable[Finding] = (),
) -> list[Finding]:
    """Return whether many labels look wrong, and which most, and whether only one class is ever predicted.

    Pass probabilities of samples that the classifier was not trained on: a network that has memorised wrong labels no
    longer finds them unlikely. A classifier is unsure of hard samples, but wrong labels occur anywhere: so the share of
    its most confident predictions that contradict their label measures label noise. Single suspects are found as in
    confident learning (cleanlab flags 318 of 3,000 correct labels, this rule none).
    """
    p, y = with_labels(as_probabilities(probabilities), labels)
    n, n_classes = p.shape
    predicted = p.argmax(1)
    wrong, surest = predicted != y, most_confident(p, SUREST)
    found = []
    if (predicted == predicted[0]).all() and wrong.sum() >= FEWEST_MISSED:
        name = class_name(classes, int(predicted[0]))
        found.append(finding("one-prediction", n=n, samples="held-out samples", name=name, n_other=int(wrong.sum())))
    elif _is_label_noise(wrong, surest, most_confident(p, 0.5), n_classes):
        suspects = suspect_labels(p, y)
        examples = "; ".join(
            f"sample {i}: given {class_name(classes, y[i])} (probability {p[i, y[i]]:.2g}), looks like "
            f"{class_name(classes, predicted[i])} ({p[i, predicted[i]]:.2g})"
            for i in suspects[:N_SUSPECTS]
        )
        numbers = {"n": n, "n_surest": surest.sum(), "n_wrong": wrong[surest].sum(), "n_suspects": len(suspects)}
        share, shown = percent(float(wrong[surest].mean()), 0), f" (first {examples})" if examples else ""
        found.append(finding("suspect-labels", None, share=share, examples=shown, **numbers))
    known = {one.code for one in already_reported}
    return [one for one in found if one.code not in known]


def most_confident(p: FloatArray, part: float) -> BoolArray:
    """Return a mask of the most probable rows of every predicted class: this part of them, at least one."""
    predicted = p.argmax(1)
    order = np.lexsort((-p.max(1), predicted))
    sizes = np.bincount(predicted, minlength=p.shape[1])
    rank = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[predicted[order]]
    chosen = np.zeros(len(order), bool)
    chosen[order] = rank < np.maximum(1, part * sizes)[predicted[order]]
    return chosen


def suspect_labels(p: FloatArray, y: IntArray) -> IntArray:
    """Return the rows that look mislabelled, the clearest first."""
    predicted, sizes = p.argmax(1), np.bincount(y, minlength=p.shape[1])
    own, top = p[np.arange(len(p)), y], p.max(1)
    totals = np.bincount(y, weights=own, minlength=len(sizes))
    usual = np.divide(totals, sizes, out=np.full(len(sizes), np.inf), where=sizes > 0)
    rows = np.flatnonzero((predicted != y) & (top >= usual[predicted]) & (own < UNLIKELY * usual[y]))
    return rows[np.argsort(own[rows] - top[rows], kind="stable")]


def _is_label_noise(wrong: BoolArray, surest: BoolArray, surer_half: BoolArray, n_classes: int) -> bool:
    share, error = float(wrong[surest].mean()), float(wrong.mean())
    if share - STANDARD_ERRORS * math.sqrt(share * (1 - share) / surest.sum()) < CLEAN:
        return False
    of_guesses = 1 - 1 / n_classes
    if error <= GOOD_ERROR * of_guesses:
        return share >= SHARE_OF_ERRORS * error
    return error <= POOR_ERROR * of_guesses and share >= EVEN * float(wrong[surer_half].mean())


def _digests(x: Any, dtype: DTypeLike) -> list[bytes]:
    """Read every row once; rows that are equal in `dtype` have equal digests."""
    digests: list[bytes] = []
    height = max(1, CHUNK_BYTES // max(1, np.asarray(x[:1]).nbytes))
    for start in range(0, len(x), height):
        chunk = np.ascontiguousarray(x[start : start + height], dtype=dtype)
        chunk = chunk.reshape(len(chunk), -1)
        if chunk.dtype.kind == "f":
            chunk = chunk + chunk.dtype.type(0)  # -0.0 becomes 0.0, which it equals
        # 128 bits: among a billion rows, the chance that two different ones share a digest is below 1e-20.
        digests += [hashlib.blake2b(row.data, digest_size=16).digest() for row in chunk.view(np.uint8)]
    return digests


def _duplicates(
    digests: Mapping[str, list[bytes]], y: IntArray, *, is_table: bool, classes: Sequence[Any] | None
) -> list[Finding]:
    """Find rows of a later part that equal one of an earlier part, and equal training rows with different labels."""
    wording = {"things": "rows" if is_table else "images", "chance": _CHANCE if is_table else ""}
    severity: Severity = "note" if is_table else "warning"
    copies, examples, found = [], [], []
    known: dict[bytes, str] = {}  # the first row with each digest
    for name, rows in digests.items():
        pairs = [f"{name} {i} = {known[digest]}" for i, digest in enumerate(rows) if digest in known]
        if pairs:
            share = percent(len(pairs) / len(rows))
            copies.append(f"{len(pairs):,} of {len(rows):,} {name} {wording['things']} ({share})")
            examples += pairs[:N_EXAMPLES]
        for i, digest in enumerate(rows):
            known.setdefault(digest, f"{name} {i}")
    if copies:
        found.append(finding("leak", severity, copies=" and ".join(copies), examples=", ".join(examples), **wording))

    groups: dict[bytes, list[int]] = {}
    for i, digest in enumerate(digests["train"]):
        groups.setdefault(digest, []).append(i)
    contradicting = [rows for rows in groups.values() if len(rows) > 1 and (y[rows] != y[rows[0]]).any()]
    if contradicting:
        twins = [(rows[0], next(row for row in rows if y[row] != y[rows[0]])) for rows in contradicting[:N_EXAMPLES]]
        named = ", ".join(
            f"train {i} is {class_name(classes, y[i])} and its copy {j} {class_name(classes, y[j])}" for i, j in twins
        )
        n, n_groups = sum(map(len, contradicting)), len(contradicting)
        found.append(finding("contradicting-labels", severity, n=n, n_groups=n_groups, examples=named, **wording))
    return found


def near_pairs(x: Any, x_train: Any) -> list[tuple[int, int]]:
    """Return (i, j) for every image i of `x` that looks like one of `x_train`; j is the most similar one."""
    ours, theirs = perceptual_hashes(x), perceptual_hashes(x_train)
    pairs: list[tuple[int, int]] = []
    height = max(1, CHUNK_BYTES // (4 * len(theirs)))
    for start in range(0, len(ours), height):
        # Of bits as -1 and 1, each that differs lowers the product, which is exact, by two.
        products = ours[start : start + height] @ theirs.T
        nearest = products.argmax(axis=1)
        alike = np.flatnonzero(products.max(axis=1) >= ours.shape[1] - 2 * NEAR_BITS)
        pairs += zip((alike + start).tolist(), nearest[alike].tolist(), strict=True)
    return pairs


def perceptual_hashes(x: Any) -> NDArray[np.float32]:
    """Return 64 bits of every image (n, C, H, W), as -1 and 1: which of its 8x8 lowest frequencies exceed their median.

    An image of one colour has none and gets zeros, like no other.
    """
    from scipy.fft import dct  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import

    rows, columns = (dct(np.eye(side), axis=0, norm="ortho")[:8].astype(np.float32) for side in x.shape[2:])
    weights = np.array([0.299, 0.587, 0.114] if x.shape[1] == 3 else [1 / x.shape[1]] * x.shape[1], np.float32)
    hashes = np.empty((len(x), 64), np.float32)
    height = max(1, CHUNK_BYTES // (4 * math.prod(x.shape[1:])))
    for start in range(0, len(x), height):
        chunk = np.asarray(x[start : start + height], np.float32)
        low = (rows @ np.tensordot(weights, chunk, (0, 1)) @ columns.T).reshape(-1, 64)
        bits = np.where(low > np.median(low, axis=1, keepdims=True), 1, -1)
        one_colour = np.linalg.norm(low[:, 1:], axis=1) <= 0.01 * np.abs(low[:, 0])
        hashes[start : start + height] = np.where(one_colour[:, None], 0, bits)
    return hashes


def _near_copies(x: Any, x_test: Any, digests: Mapping[str, list[bytes]]) -> list[Finding]:
    """Find test images that look like a training image without being equal to one."""
    if x_test is None or len(x.shape) != 4 or min(x.shape[2:]) < NEAR_SIDE:
        return []
    known = set(digests["train"])
    pairs = [(i, j) for i, j in near_pairs(x_test, x) if digests["test"][i] not in known]
    if not pairs:
        return []
    share = len(pairs) / len(x_test)
    severity: Severity = "warning" if share >= NEAR_WARNING else "note"
    examples = ", ".join(f"test {i} and train {j}" for i, j in pairs[:N_EXAMPLES])
    values = {"n": len(pairs), "n_test": len(x_test), "share": percent(share), "examples": examples}
    return [finding("near-copies", severity, **values).model_copy(update={"pairs": tuple(pairs[:N_PAIRS])})]
