# %% [markdown]
# # A pretrained embedding, and a class that comes later
#
# Rows that a frozen network has computed need no second network: prototypes among them make a classifier, and a class
# more is a prototype more, without training. Here a random layer over the digits stands for the frozen network; it
# loses some of what was in them.

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
# The embedding as it is, with prototypes in it; and with a small network of its own on top, which reshapes the space.


# %%
def prototypes_alone() -> ContrastiveClassifier:
    return ContrastiveClassifier(encoder="identity", lr=0.05, epochs=20, random_state=0)


kept = prototypes_alone().fit(z, y)
reshaped = ContrastiveClassifier(epochs=20, random_state=0).fit(z, y)
accuracy = {"kept": kept.score(z_test, y_test), "reshaped": reshaped.score(z_test, y_test)}
print(f"embedding kept, prototypes learnt   : {100 * accuracy['kept']:.1f} % right")
print(f"a small network on top, both learnt : {100 * accuracy['reshaped']:.1f} % right")

# %% [markdown]
# A classifier that has never seen a zero learns of it from samples: their mean becomes a prototype. Nothing is trained.
# A space that was not shaped for the other classes has room for one more; one that was reshaped for nine classes has
# less.

# %%
is_zero, is_zero_in_test = y == "zero", y_test == "zero"
recognised = {}
for name, growing in (("kept", prototypes_alone()), ("reshaped", ContrastiveClassifier(epochs=20, random_state=0))):
    growing.fit(z[~is_zero], y[~is_zero])
    before = growing.score(z_test[~is_zero_in_test], y_test[~is_zero_in_test])
    growing.add_class(z[is_zero], "zero")
    recognised[name] = growing.score(z_test[is_zero_in_test], y_test[is_zero_in_test])
    after = growing.score(z_test[~is_zero_in_test], y_test[~is_zero_in_test])
    print(
        f"embedding {name:8}: {100 * recognised[name]:.1f} % of the zeros recognised; "
        f"of the others {100 * before:.1f} % before and {100 * after:.1f} % after"
    )

# %% [markdown]
# Where the classifier is used, other shares may hold: say ones and sevens alone. `adapt_priors` finds that from rows
# without labels.

# %%
low = np.isin(y_test, ["one", "seven"])
before = reshaped.score(z_test[low], y_test[low])
reshaped.adapt_priors(z_test[low])
shares = dict(zip(reshaped.classes_.tolist(), reshaped.target_priors_.round(2).tolist(), strict=True))
print("shares found without labels:", {name: share for name, share in shares.items() if share > 0})
after = reshaped.score(z_test[low], y_test[low])
print(f"accuracy there: {100 * before:.1f} % before, {100 * after:.1f} % after")
