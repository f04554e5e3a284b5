"""Confidence against accuracy, bin by bin: the numbers behind calibration errors and the reliability diagram."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.validation import FloatArray, IntArray, as_count, as_probabilities_and_labels

BinStrategy = Literal["uniform", "quantile"]


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """One entry per bin, left to right. `confidence` and `accuracy` are the bin's means, NaN where it is empty.

    Bin b holds edges[b] <= confidence < edges[b + 1]; the last one with samples is closed on the right as well.
    """

    edges: FloatArray
    counts: IntArray
    confidence: FloatArray
    accuracy: FloatArray
    strategy: BinStrategy = "uniform"

    @property
    def gaps(self) -> FloatArray:
        """accuracy - confidence: negative where the classifier is overconfident, 0 in empty bins."""
        return np.where(self.counts > 0, self.accuracy - self.confidence, 0.0)

    @property
    def expected_calibration_error(self) -> float:
        """Σ_b counts_b / n · |gap_b|."""
        return float(self.counts @ np.abs(self.gaps) / self.counts.sum())

    @property
    def maximum_calibration_error(self) -> float:
        """max_b |gap_b| over the bins that hold samples."""
        return float(np.abs(self.gaps).max())


def reliability_bins(
    probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15, strategy: BinStrategy = "uniform"
) -> ReliabilityBins:
    """Group samples by confidence max_k p_k and compare it with the share of them that argmax_k p_k gets right.

    "uniform": edges at 0, 1/n_bins, ..., 1, taken as [a, b) and the last as [a, 1]: 0.0 lies in the first bin, 1.0
    in the last, an inner edge in the bin to its right. "quantile": bins of equal mass; a sample that s of n others
    are strictly below goes to bin floor(n_bins · s / n), so ties stay together and bins may then be empty.
    """
    p, y = as_probabilities_and_labels(probabilities, labels)
    confidence, correct = top_label(p, y)
    index = bin_index(confidence, n_bins, strategy)
    counts = np.bincount(index, minlength=n_bins)
    with np.errstate(invalid="ignore"):  # 0/0 is the NaN of an empty bin
        mean_confidence = np.bincount(index, weights=confidence, minlength=n_bins) / counts
        mean_accuracy = np.bincount(index, weights=correct, minlength=n_bins) / counts
    edges = _edges(confidence, index, n_bins, strategy)
    return ReliabilityBins(edges, counts, mean_confidence, mean_accuracy, strategy)


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15) -> float:
    """ECE = Σ_b n_b/n · |accuracy_b - confidence_b| over `n_bins` bins of equal width."""
    return reliability_bins(probabilities, labels, n_bins).expected_calibration_error


def adaptive_calibration_error(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15) -> float:
    """The sum of expected_calibration_error over bins of equal mass instead of equal width."""
    return reliability_bins(probabilities, labels, n_bins, "quantile").expected_calibration_error


def maximum_calibration_error(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15) -> float:
    """max_b |accuracy_b - confidence_b| over the non-empty of `n_bins` bins of equal width."""
    return reliability_bins(probabilities, labels, n_bins).maximum_calibration_error


def classwise_calibration_error(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15) -> float:
    """1/K Σ_k Σ_b n_bk/n · |share of class k - mean p_k| over `n_bins` equal-width bins of each column p_k."""
    p, y = as_probabilities_and_labels(probabilities, labels)
    n, n_classes = p.shape
    cells, residuals = classwise_cells(p, y, n_bins)
    sums = np.bincount(cells.ravel(), weights=residuals.ravel(), minlength=n_classes * as_count(n_bins, name="n_bins"))
    return float(np.abs(sums).sum() / (n * n_classes))


def top_label(p: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray]:
    """Confidence max_k p_k, and 1.0 where its class (the first of tied ones) is the label, else 0.0; both (n,)."""
    predicted = p.argmax(axis=1)
    return p.max(axis=1), (predicted == y).astype(np.float64)


def bin_index(confidence: FloatArray, n_bins: int, strategy: BinStrategy) -> IntArray:
    """The bin of each entry, 0 .. n_bins - 1, in the shape given."""
    as_count(n_bins, name="n_bins")
    if strategy == "uniform":
        # Row sums may exceed one by rounding, confidences then too: they belong to the last bin.
        index = np.searchsorted(_uniform_edges(n_bins), confidence, side="right") - 1
        return np.clip(index, 0, n_bins - 1)
    if strategy == "quantile":
        strictly_below = np.searchsorted(np.sort(confidence), confidence, side="left")
        return strictly_below * n_bins // len(confidence)
    raise ValueError(f"strategy must be 'uniform' or 'quantile'; got {strategy!r}. See reliability_bins.")


def classwise_cells(p: FloatArray, y: IntArray, n_bins: int) -> tuple[IntArray, FloatArray]:
    """For every entry of p: which of the K · n_bins cells it falls in, and 1[y = k] - p_k; both (n, K)."""
    n, n_classes = p.shape
    cells = bin_index(p, n_bins, "uniform") + n_bins * np.arange(n_classes)
    residuals = -p
    residuals[np.arange(n), y] += 1.0
    return cells, residuals


def _uniform_edges(n_bins: int) -> FloatArray:
    # A quotient is rounded once, so that 9 of 15 is the number written 0.6; multiples of 1/15 are not.
    edges: FloatArray = np.arange(n_bins + 1) / n_bins
    return edges


def _edges(confidence: FloatArray, index: IntArray, n_bins: int, strategy: BinStrategy) -> FloatArray:
    if strategy == "uniform":
        return _uniform_edges(n_bins)
    order = np.argsort(confidence, kind="stable")
    starts = np.searchsorted(index[order], np.arange(n_bins))
    values = np.append(confidence[order], confidence.max())
    return np.append(values[starts], confidence.max())
