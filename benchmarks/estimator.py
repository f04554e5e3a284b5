"""Default ContrastiveClassifier beside scikit-learn's own classifiers: five-fold accuracy, and CPU seconds of a fit.

    OMP_NUM_THREADS=1 python benchmarks/estimator.py

Also: wrong labels found. Ten per cent of the digits' labels are moved to another class; printed is the share of them
among the tenth of the samples that `label_issues` ranks first.
"""

from __future__ import annotations

import os
import time
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esupcon import ContrastiveClassifier
from esupcon.probability import expected_calibration_error

PEERS = {
    "LogisticRegression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "MLPClassifier": make_pipeline(StandardScaler(), MLPClassifier(max_iter=2000, random_state=0)),
    "ContrastiveClassifier": ContrastiveClassifier(random_state=0),
}


def five_folds(model, X, y, seed: int) -> tuple[float, float, float]:
    """Accuracy, expected calibration error over all test parts together, and CPU seconds of one fit."""
    right, probabilities, truth, seconds = [], [], [], []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y):
        fitted, start = clone(model), time.process_time()
        fitted.fit(X[train], y[train])
        seconds.append(time.process_time() - start)
        probabilities.append(fitted.predict_proba(X[test]))
        right.append(np.mean(fitted.predict(X[test]) == y[test]))
        truth.append(y[test])
    error = expected_calibration_error(np.concatenate(probabilities), np.concatenate(truth))
    return float(np.mean(right)), float(error), float(np.mean(seconds))


def wrong_labels_found(X, y, seed: int) -> float:
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(y))[: len(y) // 10]
    noisy = y.copy()
    noisy[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
    ranked = ContrastiveClassifier(random_state=seed).fit(X, noisy).label_issues()
    return float(np.isin(wrong, ranked[: len(y) // 10]).mean())


def main() -> None:
    warnings.simplefilter("ignore")
    digits = load_digits()
    data = {
        "wine": load_wine(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "digits, table": (digits.data, digits.target),
        "digits, images": (digits.images, digits.target),
    }
    print(
        f"{os.environ.get('OMP_NUM_THREADS', 'all')} threads; accuracy and calibration error in per cent, CPU s a fit"
    )
    for name, (X, y) in data.items():
        for peer, model in PEERS.items():
            is_ours = peer == "ContrastiveClassifier"
            table = X if is_ours else X.reshape(len(X), -1)
            seeds = range(1 if X.ndim == 3 else 3)
            figures = np.array([five_folds(model, table, y, seed) for seed in seeds])
            accuracy, error, seconds = figures.mean(axis=0)
            print(
                f"{name:15} {peer:22} accuracy {100 * accuracy:6.2f} (n={len(seeds)})  ECE {100 * error:5.2f}  "
                f"{seconds:6.2f} s",
                flush=True,
            )
    for form, X in (("table", digits.data), ("images", digits.images)):
        found = [wrong_labels_found(X, digits.target, seed) for seed in range(3)]
        print(f"wrong labels of digits ({form}) in the first tenth: {', '.join(f'{100 * f:.1f} %' for f in found)}")


if __name__ == "__main__":
    main()
