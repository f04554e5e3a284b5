"""A table with few and partly wrong labels: who is mislabelled, and how much does mending it help?

python examples/table_with_noisy_labels.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esupcon import ContrastiveClassifier


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, train_size=600, stratify=y, random_state=0)

    rng = np.random.default_rng(0)
    wrong = rng.permutation(len(y))[:60]
    noisy = y.copy()
    noisy[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
    print(f"{len(y)} rows, {len(wrong)} of them with a wrong label")

    usual = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, noisy)
    classifier = ContrastiveClassifier(random_state=0).fit(X, noisy)
    print(f"logistic regression    : {usual.score(X_test, y_test):.3f} of the clean test labels right")
    print(f"contrastive classifier : {classifier.score(X_test, y_test):.3f}")

    issues = classifier.label_issues(return_details=True)
    print(f"wrong labels among the 60 most doubtful: {np.isin(issues.indices[:60], wrong).sum()}")
    for row, given, suggested, likelihood in list(
        zip(issues.indices, issues.given, issues.suggested, issues.likelihood, strict=True)
    )[:3]:
        print(f"  row {row}: labelled {given} (likelihood {likelihood:.2f}), rather {suggested}; in truth {y[row]}")

    mended = noisy.copy()
    mended[issues.indices[:60]] = issues.suggested[:60]
    again = ContrastiveClassifier(random_state=0).fit(X, mended)
    print(f"after taking over the 60 suggestions: {again.score(X_test, y_test):.3f}")


if __name__ == "__main__":
    main()
