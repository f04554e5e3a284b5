"""Accuracy and proper scores of posterior probabilities."""

import numpy as np
from numpy.typing import ArrayLike

from esupcon.probability.validation import FloatArray, IntArray, as_probabilities_and_labels


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """The share of rows whose largest probability (the first of tied ones) is the label's."""
    p, y = as_probabilities_and_labels(probabilities, labels)
    return float(np.mean(p.argmax(axis=1) == y))


def confusion_matrix(probabilities: ArrayLike, labels: ArrayLike) -> IntArray:
    """(K, K) counts: row the true class, column the predicted one."""
    p, y = as_probabilities_and_labels(probabilities, labels)
    n_classes = p.shape[1]
    cells = np.bincount(y * n_classes + p.argmax(axis=1), minlength=n_classes**2)
    return cells.reshape(n_classes, n_classes)


def per_class_accuracy(probabilities: ArrayLike, labels: ArrayLike) -> FloatArray:
    """(K,): the share of each class's samples that is predicted as it (recall); NaN for a class without samples."""
    confusion = confusion_matrix(probabilities, labels)
    with np.errstate(invalid="ignore"):  # 0/0 is the NaN of an absent class
        recall: FloatArray = np.diag(confusion) / confusion.sum(axis=1)
    return recall


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """mean_i Σ_k (p_ik - 1[y_i = k])², between 0 and 2 (for two classes twice the one-column form)."""
    return float(brier_of_each(*as_probabilities_and_labels(probabilities, labels)).mean())


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """mean_i -log p_{i,y_i}, in nats; infinite, not clipped, where a label was given probability zero."""
    return float(surprise_of_each(*as_probabilities_and_labels(probabilities, labels)).mean())


def brier_of_each(p: FloatArray, y: IntArray) -> FloatArray:
    residual = p.copy()
    residual[np.arange(len(p)), y] -= 1.0
    squares: FloatArray = np.einsum("ik,ik->i", residual, residual)
    return squares


def surprise_of_each(p: FloatArray, y: IntArray) -> FloatArray:
    with np.errstate(divide="ignore"):  # log 0 is the documented infinity
        surprise: FloatArray = -np.log(p[np.arange(len(p)), y])
    return surprise
