# %% [markdown]
# # From a folder of images to a saved model
#
# The estimator accepts lists of file names. This example writes the digits of scikit-learn to a folder first; you can
# use any folder that has one folder per class.

# %%
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import esupcon

folder = tempfile.TemporaryDirectory()
root = Path(folder.name) / "images"
digits = load_digits()
for i, (image, label) in enumerate(zip(digits.images[:500], digits.target[:500], strict=True)):
    place = root / f"digit {label}" / f"{i:04d}.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 255 / 16).astype(np.uint8)).save(place)

paths = sorted(root.glob("*/*.png"))
labels = [path.parent.name for path in paths]
train, test, y_train, y_test = train_test_split(paths, labels, stratify=labels, random_state=0)
print(f"{len(train)} images for training, {len(test)} for testing, {len(set(labels))} classes")

# %% [markdown]
# The labels are the names of the folders. They are stored in `classes_`, and `predict` returns them. Images of 8 pixels
# need a small network only; without `encoder` one is chosen for the images.

# %%
classifier = esupcon.ContrastiveClassifier(
    encoder="mlp-128x1", image_size=8, epochs=30, augmentation="digits", random_state=0
)
classifier.fit(train, y_train)
accuracy = classifier.score(test, y_test)
print(f"accuracy on the test images: {100 * accuracy:.1f} %")
print(f"temperature {classifier.calibration_temperature_:.2f}, {classifier.calibration_}")

# %% [markdown]
# `explain` shows why an image got its label: the nearest training images, and the similarity to the prototypes.

# %%
print(f"{test[0].relative_to(root)}: {classifier.explain(test[:1], n_neighbors=3)}")

# %% [markdown]
# With `unknown`, `predict` finds images that belong to no class: those further out than 99 % of the images that the
# classifier was calibrated on. As an example we use images of pure noise.

# %%
noise = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
rejected = float((classifier.predict(noise, unknown="none of these") == "none of these").mean())
wrongly_rejected = float((classifier.predict(test, unknown="none of these") == "none of these").mean())
print(f"unknown: {100 * rejected:.0f} % of 50 images of noise, {100 * wrongly_rejected:.0f} % of the test images")

# %% [markdown]
# The saved model is a folder of safetensors and JSON files. After loading it gives the same probabilities, except for
# rounding errors.

# %%
classifier.save(Path(folder.name) / "model")
loaded = esupcon.load(Path(folder.name) / "model")
probabilities = loaded.predict_proba(test)
difference = float(np.abs(probabilities - classifier.predict_proba(test)).max())
best = probabilities[0].argmax()
print(f"the loaded model predicts '{loaded.classes_[best]}' with probability {probabilities[0, best]:.2f}")
print(f"largest difference between saved and loaded model on the test images: {difference:.0e}")
folder.cleanup()
