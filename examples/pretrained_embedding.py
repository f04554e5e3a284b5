# %% [markdown]
# # Classify embeddings of a pretrained network, and add a class later
#
# Embeddings of a frozen network do not need a second network: one prototype per class makes a classifier, and a new
# class is one more prototype, without training. In this example a random layer stands for the frozen network. It
# loses some of the information in the digits.

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from esupcon import ContrastiveClassifier


def frozen_network(X: np.ndarray) -> np.ndarray:
    layer = np.random.default_rng(0).normal(size=(X.shape[1], 256)) / 8
    return np.maximum(X / 16 @ layer, 0)


X, y = load_digits(return_X_y=True)
names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])[y]
z, z_test, y, y_test = train_test_split(frozen_network(X), names, train_size=700, stratify=names, random_state=0)
print(f"{len(z)} rows of {z.shape[1]} numbers, {len(np.unique(y))} classes")

# %% [markdown]
# We compare two classifiers: one learns prototypes in the embedding as it is, the other also trains a small network
# on top of the embedding.


# %%
def prototypes_only() -> ContrastiveClassifier:
    return ContrastiveClassifier(encoder="identity", lr=0.05, epochs=20, random_state=0)


fixed = prototypes_only().fit(z, y)
trained = ContrastiveClassifier(epochs=20, random_state=0).fit(z, y)
accuracy = {"prototypes only": fixed.score(z_test, y_test), "with network": trained.score(z_test, y_test)}
print(f"prototypes only     : test accuracy {100 * accuracy['prototypes only']:.1f} %")
print(f"with a small network: test accuracy {100 * accuracy['with network']:.1f} %")

# %% [markdown]
# A classifier that was trained without zeros can learn them from a few samples: their mean becomes the new prototype.
# Nothing is trained. This works better in the original embedding than in one that was trained for the other nine
# classes.

# %%
is_zero, is_zero_in_test = y == "zero", y_test == "zero"
recognised = {}
for name, growing in (
    ("prototypes only", prototypes_only()),
    ("with network", ContrastiveClassifier(epochs=20, random_state=0)),
):
    growing.fit(z[~is_zero], y[~is_zero])
    before = growing.score(z_test[~is_zero_in_test], y_test[~is_zero_in_test])
    growing.add_class(z[is_zero], "zero")
    recognised[name] = growing.score(z_test[is_zero_in_test], y_test[is_zero_in_test])
    after = growing.score(z_test[~is_zero_in_test], y_test[~is_zero_in_test])
    print(
        f"{name:15}: {100 * recognised[name]:.1f} % of the zeros recognised; "
        f"accuracy on the other digits {100 * before:.1f} % before, {100 * after:.1f} % after"
    )

# %% [markdown]
# Where a classifier is used, classes may occur in other shares than in training, for example only ones and sevens.
# `adapt_priors` estimates the shares from rows without labels.

# %%
is_used = np.isin(y_test, ["one", "seven"])
before = trained.score(z_test[is_used], y_test[is_used])
trained.adapt_priors(z_test[is_used])
shares = dict(zip(trained.classes_.tolist(), trained.target_priors_.round(2).tolist(), strict=True))
print("estimated shares:", {name: share for name, share in shares.items() if share > 0})
after = trained.score(z_test[is_used], y_test[is_used])
print(f"accuracy on ones and sevens: {100 * before:.1f} % before, {100 * after:.1f} % after")
