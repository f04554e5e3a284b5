"""Small classifiers with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from esupcon.classifier.classifier import Classifier
from esupcon.classifier.folder import ModelInfo
from esupcon.classifier.preprocessing import ImagePreprocessing, Preprocessing, TablePreprocessing
from esupcon.models import Network, build_network
from esupcon.probability import Calibration


def preprocessing_for(shape: tuple[int, ...]) -> Preprocessing:
    if len(shape) == 1:
        d = shape[0]
        return TablePreprocessing(mean=[0.1 * i for i in range(d)], variance=[(1.0 + i) ** 2 for i in range(d)])  # type: ignore[arg-type]
    c, h, w = shape
    return ImagePreprocessing(channels=c, image_size=(h, w), mean=(0.4, 0.5, 0.6)[:c], std=(0.2, 0.3, 0.4)[:c])  # type: ignore[arg-type]


def make_classifier(encoder: Any = "mlp-8x2", shape: tuple[int, ...] = (3,), **settings: Any) -> Classifier:
    """Return a classifier with random weights and random statistics of its batch norms.

    With `pretrained`, the encoder keeps its own: with random ones, a deep network gives one embedding for all images.
    """
    classes = settings.pop("classes", ["cat", "dog", "eel"])
    names = ("head", "projection_dim", "temperature", "neck", "mirror", "pretrained")
    parts = {
        "temperature": 0.2,
        "pretrained": False,
        **{name: settings.pop(name) for name in names if name in settings},
    }
    network = build_network(encoder=encoder, input_shape=shape, n_classes=len(classes), **parts)
    randomise_statistics(network.neck if parts["pretrained"] else network)
    if len(shape) == 1 and isinstance(encoder, str):
        network = network.double()
    calibration = settings.pop("calibration", None) or Calibration(class_counts=(4,) * len(classes))
    name = encoder if isinstance(encoder, str) else "custom"
    about = ModelInfo(encoder=name, method="esupcon", **settings)
    return Classifier(network.eval(), preprocessing_for(shape), classes, calibration=calibration, about=about)


def randomise_statistics(network: nn.Module) -> None:
    """Give batch norms statistics that change what passes through them."""
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.uniform_(-0.2, 0.2)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)


def same_state(a: Network, b: Network) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(
        torch.equal(value, two[name].to(value.dtype)) for name, value in one.items()
    )


def some_rows(shape: tuple[int, ...], n: int = 5) -> Any:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, *shape)) if len(shape) == 1 else rng.integers(0, 256, (n, *shape), dtype=np.uint8)
