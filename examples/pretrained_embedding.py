"""A pretrained embedding with a contrastive head: classes can be added without training, shares can be adapted.

    python examples/pretrained_embedding.py

Rows here stand for the features of any frozen network: the digits through a random layer, which loses some of them.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from esupcon import ContrastiveClassifier


def frozen_network(X: np.ndarray) -> np.ndarray:
    layer = np.random.default_rng(0).normal(size=(X.shape[1], 256)) / 8
    return np.maximum(X / 16 @ layer, 0)


def main() -> None:
    X, y = load_digits(return_X_y=True)
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])[y]
    z, z_test, y, y_test = train_test_split(frozen_network(X), names, stratify=names, random_state=0)

    kept = ContrastiveClassifier(encoder="identity", lr=0.05, random_state=0).fit(z, y)
    print(f"embedding kept, prototypes learnt  : accuracy {kept.score(z_test, y_test):.3f}")
    reshaped = ContrastiveClassifier(random_state=0).fit(z, y)
    print(f"a small network on top, both learnt: accuracy {reshaped.score(z_test, y_test):.3f}")

    known = y != "zero"
    # A space that was not shaped for the other classes has room for one more.
    growing = ContrastiveClassifier(encoder="identity", lr=0.05, random_state=0).fit(z[known], y[known])
    growing.add_class(z[~known], "zero")
    zeros = y_test == "zero"
    print(f"'zero' added without training      : {growing.score(z_test[zeros], y_test[zeros]):.3f} of them recognised,")
    print(f"                                     {growing.score(z_test[~zeros], y_test[~zeros]):.3f} of the others")

    low = np.isin(y_test, ["one", "seven"])  # where the classifier is used, two classes are all there is
    before = reshaped.score(z_test[low], y_test[low])
    reshaped.adapt_priors(z_test[low])
    shares = dict(zip(reshaped.classes_.tolist(), reshaped.target_priors_.round(2).tolist(), strict=True))
    print(f"class shares found without labels  : { ({k: p for k, p in shares.items() if p > 0}) }")
    after = reshaped.score(z_test[low], y_test[low])
    print(f"accuracy there                     : {before:.3f} before, {after:.3f} after")


if __name__ == "__main__":
    main()
