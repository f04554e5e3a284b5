"""Check data before training (`check_data`) and the probabilities of a trained classifier (`check_after`)."""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from esupcon.doctor.finding import SEVERITIES, Finding, Severity, class_name, finding, percent
from esupcon.probability.predictions import (
    BoolArray,
    FloatArray,
    IntArray,
    as_count,
    as_labels,
    as_probabilities_and_labels,
)

# The largest class over the smallest. Long-tail benchmarks call 10 mild and 100 severe.
IMBALANCE_NOTE, IMBALANCE_WARNING = 10.0, 100.0
# A few blank images are normal in collected sets; one in a hundred means that a source of them is broken.
CONSTANT_WARNING = 0.01
# An absent class is no positive for any sample, and its prototype is only pushed away. If a quarter is absent, learning
# slows down; if half of them are, a prototype is pushed away more often than it is pulled.
ABSENT_NOTE, ABSENT_WARNING = 0.25, 0.5
# Share of absent classes that the suggested batch size reaches: one in ten does no harm.
ABSENT_GOAL = 0.1
# Samples without a positive are left out of the loss: this share of the computation is wasted.
ALONE_WARNING = 0.05
# From here on most samples have no positive but themselves, and augmentation decides more than the labels.
OWN_VIEWS_NOTE = 0.5
# Examples named in a message.
N_EXAMPLES = 3
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
    y_held: ArrayLike | None = None,
    *,
    x_test: Any = None,
    y_test: ArrayLike | None = None,
    n_classes: int,
    batch_size: int,
    n_views: int = 2,
    method_uses_positives: bool,
    prototypes: int | None,
    prototype_weight: float = 1.0,
    classes: Sequence[Any] | None = None,
) -> list[Finding]:
    """Return what is wrong with the data, or with batches of this size, the most severe first.

    x, x_held, x_test: training, held-out and test images (n, C, H, W) or tables (n, d), in memory or memory-mapped;
        parts other than the first may be None or empty.
    y, y_held, y_test: labels 0 .. n_classes - 1; `classes` are their names.
    batch_size: images in a step, each in `n_views` views.
    method_uses_positives: whether the loss compares samples with others of their class (supcon, spce, esupcon).
    prototypes: number of prototypes in a contrastive objective (esupcon), None if there are none.
    """
    n_classes, n_views = as_count(n_classes, name="n_classes"), as_count(n_views, name="n_views")
    batch_size = as_count(batch_size, name="batch_size")
    if not (math.isfinite(prototype_weight) and prototype_weight >= 0):
        raise ValueError(f"prototype_weight must be a finite number of at least 0; got {prototype_weight!r}.")
    if classes is not None and len(classes) != n_classes:
        raise ValueError(f"classes must name each of the {n_classes} classes; got {len(classes)} names.")
    if prototypes is not None and prototypes < n_classes:
        raise ValueError(f"prototypes must be at least one for each of {n_classes} classes; got {prototypes}.")
    samples = _samples({"train": x, "held-out": x_held, "test": x_test})
    given = {"train": y, "held-out": y_held, "test": y_test}
    labels = {
        name: as_labels(values, n=len(samples[name]), n_classes=n_classes, name=f"labels of the {name} part")
        for name, values in given.items()
        if values is not None
    }
    y = labels.pop("train")

    dtype = np.result_type(*(part.dtype for part in samples.values()))
    scans = {name: _scan(part, dtype) for name, part in samples.items()}
    class_counts = np.bincount(y, minlength=n_classes).astype(np.int64)
    is_table = len(samples["train"].shape) == 2
    found = [
        *_not_finite(scans),
        *_duplicates(scans, y, is_table=is_table, classes=classes),
        *_constant_images(scans),
        *_class_sizes(class_counts, [k for part in labels.values() for k in part.tolist()], classes),
        *_batches(
            class_counts,
            min(batch_size, len(y)),
            n_views,
            uses_positives=method_uses_positives,
            prototype_weight=None if prototypes is None else float(prototype_weight),
        ),
    ]
    return sorted(found, key=lambda one: -SEVERITIES.index(one.severity))


def check_after(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[Any] | None = None,
    n_show: int = 5,
    already_reported: Iterable[Finding] = (),
) -> list[Finding]:
    """Return whether many labels look wrong, and which most, and whether only one class is ever predicted.

    Pass probabilities of samples that the classifier was not trained on (held-out or out of fold): a network that has
    memorised wrong labels no longer finds them unlikely. `classes` are the names of the columns.

    A classifier is wrong on hard samples, and unsure there. Wrong labels occur anywhere, also among its most confident
    predictions, so the share of those that contradict their label measures label noise, with or without calibration,
    as long as the classifier is good enough to be rightly confident of some. Single suspects are found as in confident
    learning: their label is far less likely than is usual for samples with that label, and another class is as likely
    as is usual for its samples. (cleanlab flags 318 of 3,000 correct labels, this rule none.)
    """
    p, y = as_probabilities_and_labels(probabilities, labels)
    n, n_classes = p.shape
    if classes is not None and len(classes) != n_classes:
        raise ValueError(f"classes must name each of the {n_classes} columns; got {len(classes)} names.")
    if n_show < 0:
        raise ValueError(f"n_show must be 0 or more; got {n_show}.")
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
            for i in suspects[:n_show]
        )
        found.append(
            finding(
                "suspect-labels",
                share=percent(float(wrong[surest].mean())),
                n=n,
                n_surest=int(surest.sum()),
                n_wrong=int(wrong[surest].sum()),
                n_suspects=len(suspects),
                examples=f" (first {examples})" if examples else "",
            )
        )
    known = {one.code for one in already_reported}
    return [one for one in found if one.code not in known]


def absent_share(class_counts: IntArray, batch_size: int) -> float:
    """Return the expected share of the classes with training images that a random batch does not contain."""
    n = int(class_counts.sum())
    sizes, times = np.unique(class_counts[class_counts > 0], return_counts=True)
    absent = sum(int(m) * _chance_of_none(n, int(size), batch_size) for size, m in zip(sizes, times, strict=True))
    return absent / int(times.sum())


def alone_share(class_counts: IntArray, batch_size: int) -> float:
    """Return the expected share of a batch's images that are the only one of their class in it."""
    n = int(class_counts.sum())
    sizes, times = np.unique(class_counts[class_counts > 0], return_counts=True)
    alone = (
        int(m) * int(size) * _chance_of_none(n - 1, int(size) - 1, batch_size - 1)
        for size, m in zip(sizes, times, strict=True)
    )
    return sum(alone) / n


def batch_size_for(class_counts: IntArray, largest_absent_share: float) -> int:
    """Return the smallest batch whose expected share of absent classes is at most this."""
    sizes = range(1, int(class_counts.sum()) + 1)
    return sizes[bisect_left(sizes, -largest_absent_share, key=lambda size: -absent_share(class_counts, size))]


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


def _chance_of_none(n: int, n_marked: int, n_drawn: int) -> float:
    """Return P(no marked one among n_drawn of n, without replacement) = C(n - n_marked, n_drawn) / C(n, n_drawn)."""
    if n_drawn > n - n_marked:
        return 0.0
    return math.exp(
        math.lgamma(n - n_marked + 1)
        - math.lgamma(n - n_marked - n_drawn + 1)
        - math.lgamma(n + 1)
        + math.lgamma(n - n_drawn + 1)
    )


@dataclass(frozen=True, eq=False)
class _Scan:
    """Of every row: a digest that is equal for equal rows, whether it is a blank image, whether it is not finite."""

    digests: list[bytes]
    constant: BoolArray
    not_finite: BoolArray


def _samples(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts as arrays or array-like objects that are read by slices, such as memory maps."""
    found: dict[str, Any] = {}
    for name, values in parts.items():
        part = found["train"][:0] if values is None else values
        part = part if isinstance(getattr(part, "dtype", None), np.dtype) else np.asarray(part)
        if len(part.shape) < 2 or part.dtype.kind not in "biuf" or 0 in part.shape[1:]:
            raise ValueError(
                f"the {name} part must hold images (n, C, H, W) or a table (n, d) of numbers; got {part.dtype} "
                f"{part.shape}."
            )
        found[name] = part
        if len(found["train"]) == 0 or part.shape[1:] != found["train"].shape[1:]:
            raise ValueError(
                f"there must be training samples, and samples of equal shape in every part; got {part.shape} in the "
                f"{name} part and {found['train'].shape} in the train part."
            )
    return found


def _scan(x: Any, dtype: DTypeLike) -> _Scan:
    """Read every row once. Equal values in `dtype` have equal digests."""
    digests: list[bytes] = []
    constant, not_finite = np.zeros(len(x), bool), np.zeros(len(x), bool)
    height = max(1, CHUNK_BYTES // max(1, np.asarray(x[:1]).nbytes))
    for start in range(0, len(x), height):
        chunk = np.ascontiguousarray(x[start : start + height], dtype=dtype)
        rows = slice(start, start + len(chunk))
        if chunk.dtype.kind == "f":
            chunk = chunk + chunk.dtype.type(0)  # -0.0 becomes 0.0, which it equals
            not_finite[rows] = ~np.isfinite(chunk.reshape(len(chunk), -1)).all(1)
        if chunk.ndim > 2:
            pixels = chunk.reshape(len(chunk), chunk.shape[1] if chunk.ndim > 3 else 1, -1)
            # The middle pixel rules out nearly every real image before all are compared.
            maybe = np.flatnonzero((pixels[:, :, 0] == pixels[:, :, pixels.shape[2] // 2]).all(1))
            constant[start + maybe] = (pixels[maybe] == pixels[maybe, :, :1]).all((1, 2))
        as_bytes = chunk.reshape(len(chunk), -1).view(np.uint8)
        # 128 bits: among a billion rows, the chance that two different ones share a digest is below 1e-20.
        digests += [hashlib.blake2b(row.data, digest_size=16).digest() for row in as_bytes]
    return _Scan(digests, constant, not_finite)


def _not_finite(scans: Mapping[str, _Scan]) -> list[Finding]:
    rows = {name: np.flatnonzero(scan.not_finite) for name, scan in scans.items()}
    samples = [f"{len(bad):,} {_part(name)} samples (the first is {bad[0]})" for name, bad in rows.items() if len(bad)]
    return [finding("data-not-finite", samples=" and ".join(samples))] if samples else []


def _constant_images(scans: Mapping[str, _Scan]) -> list[Finding]:
    blank = {name: scan.constant for name, scan in scans.items() if scan.constant.any()}
    if not blank:
        return []
    share = sum(map(np.sum, blank.values())) / sum(len(scan.constant) for scan in scans.values())
    name, first = next((name, int(rows.argmax())) for name, rows in blank.items())
    return [
        finding(
            "constant-images",
            "warning" if share >= CONSTANT_WARNING else "note",
            images=" and ".join(f"{rows.sum():,} {_part(name)} images" for name, rows in blank.items()),
            share=percent(float(share)),
            first=f"{name} {first}",
        )
    ]


def _duplicates(
    scans: Mapping[str, _Scan], y: IntArray, *, is_table: bool, classes: Sequence[Any] | None
) -> list[Finding]:
    """Find rows of a later part that equal one of an earlier part, and equal training rows with different labels.

    Blank images, all alike, are left out: they have a finding of their own.
    """
    wording = {"things": "rows" if is_table else "images", "chance": _CHANCE if is_table else ""}
    severity: Severity = "note" if is_table else "warning"
    copies, examples, found = [], [], []
    known: dict[bytes, tuple[str, int]] = {}  # the first row with each digest
    for name, scan in scans.items():
        rows = {int(row): scan.digests[row] for row in np.flatnonzero(~scan.constant)}
        pairs = ["{} {} = {} {}".format(name, row, *known[digest]) for row, digest in rows.items() if digest in known]
        if pairs:
            n = len(scan.digests)
            copies.append(f"{len(pairs):,} of {n:,} {name} {wording['things']} ({percent(len(pairs) / n)})")
            examples += pairs[:N_EXAMPLES]
        for row, digest in rows.items():
            known.setdefault(digest, (name, row))
    if copies:
        found.append(finding("leak", severity, copies=" and ".join(copies), examples=", ".join(examples), **wording))

    groups: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(~scans["train"].constant).tolist():
        groups.setdefault(scans["train"].digests[row], []).append(row)
    contradicting = [rows for rows in groups.values() if len(rows) > 1 and (y[rows] != y[rows[0]]).any()]
    if contradicting:
        twins = [(rows[0], next(row for row in rows if y[row] != y[rows[0]])) for rows in contradicting[:N_EXAMPLES]]
        named = ", ".join(
            f"train {i} is {class_name(classes, y[i])} and its copy {j} {class_name(classes, y[j])}" for i, j in twins
        )
        n, n_groups = sum(map(len, contradicting)), len(contradicting)
        found.append(finding("contradicting-labels", severity, n=n, n_groups=n_groups, examples=named, **wording))
    return found


def _class_sizes(counts: IntArray, other_labels: list[int], classes: Sequence[Any] | None) -> list[Finding]:
    filled, empty = np.flatnonzero(counts), np.flatnonzero(counts == 0).tolist()
    largest, smallest = int(counts.argmax()), int(filled[counts[filled].argmin()])
    ratio, found = counts[largest] / counts[smallest], []
    values = {
        "n_largest": counts[largest],
        "n_smallest": counts[smallest],
        "largest": class_name(classes, largest),
        "smallest": class_name(classes, smallest),
    }
    if len(filled) == 1:
        found.append(finding("one-class", **values))
    if empty:
        names = ", ".join(class_name(classes, k) for k in empty[:N_EXAMPLES])
        names += f" and {len(empty) - N_EXAMPLES} more" if len(empty) > N_EXAMPLES else ""
        n_missed, n = int(np.isin(other_labels, empty).sum()), len(other_labels)
        missed = f"; {n_missed:,} of {n:,} held-out and test samples belong to them" if n else ""
        found.append(finding("empty-class", n_empty=len(empty), n_classes=len(counts), names=names, missed=missed))
    if ratio >= IMBALANCE_NOTE:
        found.append(finding("imbalance", _warning_if(ratio >= IMBALANCE_WARNING), ratio=ratio, **values))
    return found


def _batches(
    counts: IntArray, batch_size: int, n_views: int, *, uses_positives: bool, prototype_weight: float | None
) -> list[Finding]:
    """Find what batches of this size lack; `prototype_weight` is None for objectives without prototypes."""
    found, n_classes = [], int(np.count_nonzero(counts))
    absent, alone = absent_share(counts, batch_size), alone_share(counts, batch_size)
    values: dict[str, Any] = {"batch_size": batch_size, "n_classes": n_classes}
    if (uses_positives or prototype_weight is not None) and absent >= ABSENT_NOTE:
        rarest = _chance_of_none(int(counts.sum()), int(counts[counts > 0].min()), batch_size)
        shares = {"share": percent(absent), "rarest": percent(rarest), "goal": percent(ABSENT_GOAL)}
        values |= {"n_absent": absent * n_classes, "suggested": batch_size_for(counts, ABSENT_GOAL)}
        found.append(finding("absent-classes", _warning_if(absent >= ABSENT_WARNING), **shares, **values))
    if uses_positives and n_views == 1 and alone >= ALONE_WARNING:
        severity: Severity = "error" if alone > 1 - 1e-9 else "warning"
        found.append(finding("no-positives", severity, share=percent(alone), **values))
    if uses_positives and n_views > 1 and alone >= OWN_VIEWS_NOTE:
        found.append(finding("own-views-only", share=percent(alone), **values))
    if prototype_weight == 0:
        found.append(finding("prototype-share"))
    return found


def _part(name: str) -> str:
    return "training" if name == "train" else name


def _warning_if(is_severe: bool) -> Severity:
    return "warning" if is_severe else "note"
