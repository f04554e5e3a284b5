"""Write .npz files whose test part is a part of the training images, so that settings are not chosen on test images.

python studies/second/heldout.py DATA CIFAR100 OUT   # DATA holds CIFAR-10; CIFAR100 is a source that `load` reads
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from esupcon.data import load

_, data_dir, cifar100, out = sys.argv
rng = np.random.default_rng(20261118)
for name, source, n_held in (("cifar10", "cifar10", 5000), ("cifar100", cifar100, 4000)):
    dataset = load(source, data_dir=data_dir)
    order = rng.permutation(len(dataset.x_train))
    parts = {"test": np.sort(order[:n_held]), "train": np.sort(order[n_held:])}
    images, labels = np.asarray(dataset.x_train).transpose(0, 2, 3, 1), np.asarray(dataset.classes)[dataset.y_train]
    arrays = {f"x_{part}": images[rows] for part, rows in parts.items()}
    arrays |= {f"y_{part}": labels[rows] for part, rows in parts.items()}
    np.savez(Path(out) / f"{name}-held.npz", **arrays)
