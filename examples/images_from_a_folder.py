# %% [markdown]
# # Images from a folder, to a model that can be shipped
#
# The estimator takes lists of file names. The folder is made here from scikit-learn's digits; any folder of class
# folders will do.

# %%
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import esupcon

folder = tempfile.TemporaryDirectory()
root = Path(folder.name) / "pictures"
digits = load_digits()
for i, (image, label) in enumerate(zip(digits.images[:500], digits.target[:500], strict=True)):
    place = root / f"digit {label}" / f"{i:04d}.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 255 / 16).astype(np.uint8)).save(place)

paths = sorted(root.glob("*/*.png"))
labels = [path.parent.name for path in paths]
train, test, y_train, y_test = train_test_split(paths, labels, stratify=labels, random_state=0)
print(f"{len(train)} pictures to train on, {len(test)} to test on, {len(set(labels))} classes by the folders' names")

# %% [markdown]
# Labels are the folders' names, and stay so: `classes_` has them, `predict` returns them.

# %%
classifier = esupcon.ContrastiveClassifier(image_size=8, epochs=30, augmentation="digits", random_state=0)
classifier.fit(train, y_train)
accuracy = classifier.score(test, y_test)
print(f"accuracy on pictures not seen before: {100 * accuracy:.1f} %")
print(f"temperature {classifier.calibration_temperature_:.2f}, {classifier.calibration_}")

# %% [markdown]
# Why did it say so? The nearest training pictures, and the similarity to the prototypes.

# %%
print(f"{test[0].relative_to(root)}: {classifier.explain(test[:1], n_neighbors=3)}")

# %% [markdown]
# What does not belong? Pure noise, measured by the threshold that 95 % of the test pictures stay below.

# %%
noise = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
rejected = float((classifier.ood_score(noise) > np.quantile(classifier.ood_score(test), 0.95)).mean())
print(f"{100 * rejected:.0f} % of 50 pictures of noise are stranger than 95 % of the test pictures")

# %% [markdown]
# The saved model is a folder of safetensors and JSON. Loaded again it gives the same probabilities, but for
# rounding.

# %%
classifier.save(Path(folder.name) / "model")
elsewhere = esupcon.load(Path(folder.name) / "model")
probabilities = elsewhere.predict_proba(test)
difference = float(np.abs(probabilities - classifier.predict_proba(test)).max())
best = probabilities[0].argmax()
print(f"the saved model says '{elsewhere.classes_[best]}' with probability {probabilities[0, best]:.2f}")
print(f"largest difference to the one in memory, over all test pictures: {difference:.0e}")
folder.cleanup()
