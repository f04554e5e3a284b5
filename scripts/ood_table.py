"""Every method and every out-of-distribution score: digits against the same digits, perturbed.

    python scripts/ood_table.py [--epochs 30]

Prints a Markdown table. The classifiers see clean training digits only; the test digits count as inside, and a copy of
them with the pixels of each image shuffled within 4 x 4 quarters as outside.
"""

from __future__ import annotations

import argparse
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from esupcon.data import load
from esupcon.engine import Fitted, TrainData, TrainSpec, fit
from esupcon.methods import METHODS
from esupcon.probability import (
    detection_table,
    energy_score,
    fit_mahalanobis,
    format_detection_table,
    knn_score,
    max_logit_score,
    max_softmax_score,
    prototype_distance_score,
)


def perturbed(images: NDArray[np.uint8], seed: int = 0) -> NDArray[np.uint8]:
    """Strokes broken up: the pixels of every quarter in another order, the brightness unchanged."""
    rng = np.random.default_rng(seed)
    out = images.copy()
    for image in out:
        for rows in (slice(0, 4), slice(4, 8)):
            for columns in (slice(0, 4), slice(4, 8)):
                image[0, rows, columns] = rng.permutation(image[0, rows, columns].ravel()).reshape(4, 4)
    return out


def scores(fitted: Fitted, x: NDArray[np.uint8]) -> dict[str, NDArray[np.float64]]:
    """Higher is further out. A linear head has no prototypes; its class weights stand in for them."""
    logits, z = fitted.logits(x), fitted.embed(x)
    reference = fitted.embed(cast("NDArray[np.uint8]", fitted.data.x))
    prototypes = cast("nn.Parameter", fitted.network.head.weight).detach().numpy()
    return {
        "max softmax": max_softmax_score(logits),
        "energy": energy_score(logits),
        "max logit": max_logit_score(logits),
        "nearest prototype": prototype_distance_score(z, prototypes),
        "k nearest neighbours": knn_score(z, reference),
        "Mahalanobis": fit_mahalanobis(reference, fitted.data.y).score(z),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    digits = load("digits", log=lambda line: None)
    data = TrainData(digits.x_train, digits.y_train, digits.n_classes)
    table = {}
    for key, method in METHODS.items():
        spec = TrainSpec(method=key, encoder="mlp-256x2", epochs=arguments.epochs, batch_size=128, precision="32")
        fitted = fit(spec, data, log=lambda line: None)
        inside, outside = scores(fitted, digits.x_test), scores(fitted, perturbed(digits.x_test))
        table[method.title] = {name: (inside[name], outside[name]) for name in inside}
    print(format_detection_table(detection_table(table)))


if __name__ == "__main__":
    main()
