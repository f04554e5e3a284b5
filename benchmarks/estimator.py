"""Default ContrastiveClassifier beside scikit-learn's classifiers: ten random splits of each data set.

    OMP_NUM_THREADS=1 python benchmarks/estimator.py [NAME ...]

Printed are means over the splits: accuracy, log loss, expected calibration error, CPU seconds of a fit. Log loss and
time also as ratios to LogisticRegression (standardised, C=1) in the same run. ContrastiveClassifier is measured before
its calibration, too, with the number of splits in which calibration made the calibration error worse by over a point.
Last, wrong labels found: ten per cent of the digits' labels are moved to another class; printed is the share of them
among the tenth of the samples that `label_issues` ranks first.
"""

from __future__ import annotations

import os
import sys
import time
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esupcon import ContrastiveClassifier
from esupcon.probability import expected_calibration_error, negative_log_likelihood, softmax

SPLITS = 10
OURS = "ContrastiveClassifier"
MODELS = {
    "LogisticRegression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "MLPClassifier": make_pipeline(StandardScaler(), MLPClassifier(max_iter=2000, random_state=0)),
    OURS: ContrastiveClassifier(random_state=0),
}


def data_sets() -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Samples, labels, and the number of them that are trained on."""
    digits = load_digits()
    made = make_classification(
        6000, 20, n_informative=10, n_redundant=5, n_classes=4, n_clusters_per_class=2, flip_y=0.02, random_state=0
    )
    rare = make_classification(
        2500, 15, n_informative=5, n_redundant=5, weights=[0.9, 0.1], flip_y=0.02, random_state=0
    )
    return {
        "iris": (*load_iris(return_X_y=True), 112),
        "wine": (*load_wine(return_X_y=True), 133),
        "breast cancer": (*load_breast_cancer(return_X_y=True), 500),
        "digits, table": (digits.data, digits.target, 1347),
        "made, 5,000 x 20": (*made, 5000),
        "made, one in ten": (*rare, 500),
        "digits, images": (digits.images, digits.target, 1347),
    }


def figures(p: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Accuracy, log loss and calibration error."""
    return float((p.argmax(1) == y).mean()), negative_log_likelihood(p, y), expected_calibration_error(p, y)


def measure(model, X, y, n_train: int) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy, log loss, calibration error and CPU seconds of each split, after and before calibration."""
    after, before = [], []
    for train, test in StratifiedShuffleSplit(SPLITS, train_size=n_train, random_state=0).split(X, y):
        fitted, start = clone(model), time.process_time()
        fitted.fit(X[train], y[train])
        seconds = time.process_time() - start
        after.append((*figures(fitted.predict_proba(X[test]), y[test]), seconds))
        if isinstance(fitted, ContrastiveClassifier):
            before.append((*figures(softmax(fitted.classifier_.logits(X[test])), y[test]), seconds))
    return np.array(after), np.array(before)


def wrong_labels_found(X, y, seed: int) -> float:
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(y))[: len(y) // 10]
    noisy = y.copy()
    noisy[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
    ranked = ContrastiveClassifier(random_state=seed).fit(X, noisy).label_issues()
    return float(np.isin(wrong, ranked[: len(y) // 10]).mean())


def main() -> None:
    warnings.simplefilter("ignore")
    X, y, _ = data_sets()["iris"]
    clone(MODELS[OURS]).fit(X, y)  # the imports of a first fit take about a second
    print(f"{os.environ.get('OMP_NUM_THREADS', 'all')} threads, {SPLITS} splits")
    print("| data | model | accuracy | log loss | ratio | ECE | CPU s | ratio |\n|---|---|--:|--:|--:|--:|--:|--:|")
    for name, (X, y, n_train) in data_sets().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        peer = None
        for model, estimator in MODELS.items():
            flat = X if model == OURS else X.reshape(len(X), -1)
            after, before = measure(estimator, flat, y, n_train)
            peer = after.mean(axis=0) if peer is None else peer
            for label, found in ((f"{model}, not calibrated", before), (model, after)):
                if len(found):
                    accuracy, loss, error, seconds = found.mean(axis=0)
                    print(
                        f"| {name} | {label} | {100 * accuracy:.2f} | {loss:.4f} | {loss / peer[1]:.2f} | "
                        f"{100 * error:.2f} | {seconds:.2f} | {seconds / peer[3]:.0f} |",
                        flush=True,
                    )
            if len(before):
                worse = int((after[:, 2] > before[:, 2] + 0.01).sum())
                print(f"calibration made ECE worse by over a point in {worse} of {SPLITS} splits of {name}")
    digits = load_digits()
    for form, X in (("table", digits.data), ("images", digits.images)):
        if not sys.argv[1:]:
            found = [wrong_labels_found(X, digits.target, seed) for seed in range(3)]
            print(f"wrong labels of digits ({form}) in the first tenth: {', '.join(f'{100 * f:.1f} %' for f in found)}")


if __name__ == "__main__":
    main()
