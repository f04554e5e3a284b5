"""Images from a folder: train on file names, look at one answer, find what does not belong, ship the model.

    python examples/images_from_a_folder.py

The folder is made here from scikit-learn's digits; any folder of class folders will do.
"""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import esupcon


def make_folder(root: Path, n: int = 500) -> None:
    """root/3/0042.png and so on: pictures of written digits, a folder for each."""
    digits = load_digits()
    for i, (image, label) in enumerate(zip(digits.images[:n], digits.target[:n], strict=True)):
        folder = root / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255 / 16).astype(np.uint8)).save(folder / f"{i:04d}.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "pictures"
        make_folder(root)

        paths = sorted(root.glob("*/*.png"))
        labels = [path.parent.name for path in paths]
        train, test, y_train, y_test = train_test_split(paths, labels, stratify=labels, random_state=0)

        classifier = esupcon.ContrastiveClassifier(image_size=8, epochs=30, augmentation="digits", random_state=0).fit(
            train, y_train
        )
        print(f"accuracy on {len(test)} pictures not seen before: {classifier.score(test, y_test):.3f}")
        print("one of them:", classifier.explain(test[:1], n_neighbors=3))

        noise = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
        known, foreign = classifier.ood_score(test), classifier.ood_score(noise)
        share = (foreign > np.quantile(known, 0.95)).mean()
        print(f"pure noise that looks stranger than 95 % of the pictures: {share:.0%}")

        classifier.save(Path(folder) / "model")
        elsewhere = esupcon.load(Path(folder) / "model")
        probabilities = elsewhere.predict_proba(test[:1])[0]
        best = probabilities.argmax()
        print(f"the saved model says: {elsewhere.classes_[best]} with probability {probabilities[best]:.2f}")


if __name__ == "__main__":
    main()
