"""How well out-of-distribution scores tell two sets apart, as numbers and as a table."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.validation import as_scores


def auroc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """P(out > in) + P(out = in)/2 for a random pair: 1.0 when every outlier scores higher, 0.5 when nothing is told."""
    inside = np.sort(as_scores(in_scores, name="in_scores"))
    outside = as_scores(out_scores, name="out_scores")
    below = np.searchsorted(inside, outside, side="left")
    not_above = np.searchsorted(inside, outside, side="right")
    return float((below + not_above).sum() / (2.0 * len(inside) * len(outside)))


def fpr_at_tpr(in_scores: ArrayLike, out_scores: ArrayLike, tpr: float = 0.95) -> float:
    """The share of outliers accepted by the strictest threshold that accepts at least `tpr` of the inliers.

    In-distribution is the positive class, as usual for "FPR at 95 % TPR": a sample is accepted if its score is at
    most the threshold, and samples tied with it are accepted together. 0 is best.
    """
    if not 0.0 < tpr <= 1.0:
        raise ValueError(f"tpr must lie in (0, 1]; got {tpr}. For 95 % pass 0.95.")
    inside = np.sort(as_scores(in_scores, name="in_scores"))
    outside = as_scores(out_scores, name="out_scores")
    needed = int(np.ceil(tpr * len(inside) - 1e-9))  # 0.95 · 20 is 19, whatever its last bit says
    threshold = inside[max(needed, 1) - 1]
    return float(np.mean(outside <= threshold))


@dataclass(frozen=True)
class Detection:
    """One score of one method on one pair of sets."""

    method: str
    score: str
    auroc: float
    fpr95: float
    n_in: int
    n_out: int


def detection_table(scores: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]]) -> list[Detection]:
    """Rows method x score from {method: {score: (in_scores, out_scores)}}, in the order given."""
    return [
        Detection(
            method=method,
            score=name,
            auroc=auroc(inside, outside),
            fpr95=fpr_at_tpr(inside, outside),
            n_in=len(np.asarray(inside)),
            n_out=len(np.asarray(outside)),
        )
        for method, by_name in scores.items()
        for name, (inside, outside) in by_name.items()
    ]


def format_detection_table(rows: list[Detection]) -> str:
    """The rows as a Markdown table, in per cent."""
    lines = [
        "| method | score | AUROC % | FPR at 95 % TPR, % | n in | n out |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.method} | {row.score} | {100 * row.auroc:.2f} | {100 * row.fpr95:.2f} | {row.n_in} | {row.n_out} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
