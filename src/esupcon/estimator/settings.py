"""From the estimator's parameters and the data's shape to a training run's specification."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from pydantic import ValidationError
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn

from esupcon.artifact.config import in_one_line
from esupcon.data.recipes import RECIPES
from esupcon.engine import TrainSpec
from esupcon.methods import METHODS

__all__ = ["CONSTRAINTS", "train_spec"]

#: What scikit-learn's own validation, with its own messages, holds the parameters to.
CONSTRAINTS: dict[str, list[Any]] = {
    "method": [StrOptions(METHODS.keys())],  # a view: a method registered later counts
    "encoder": [str, nn.Module],
    "temperature": [Interval(Real, 0, None, closed="neither")],
    "prototype_weight": [Interval(Real, 0, None, closed="left")],
    "epochs": [Interval(Integral, 1, None, closed="left"), None],
    "batch_size": [Interval(Integral, 2, None, closed="left"), None],
    "lr": [Interval(Real, 0, None, closed="neither"), None],
    "optimizer": [StrOptions({"adamw", "sgd"})],
    "weight_decay": [Interval(Real, 0, None, closed="left")],
    "augmentation": [StrOptions({"auto", *RECIPES})],
    "class_weight": [StrOptions({"balanced"}), dict, None],
    "calibrate": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "early_stopping": ["boolean"],
    "patience": [Interval(Integral, 1, None, closed="left")],
    "image_size": [Interval(Integral, 1, None, closed="left"), tuple, None],
    "precision": [StrOptions({"32", "bf16"})],
    "device": [str],
    "warm_start": ["boolean"],
    "verbose": ["verbose"],
    "random_state": ["random_state"],
}

#: Optimiser steps of a default fit: enough for small data to settle; large data is seen a few times instead.
TABLE_STEPS, IMAGE_STEPS = 300, 200
FEWEST_EPOCHS, MOST_EPOCHS = 10, 200
SMALL_BATCH, LARGE_BATCH, LARGE_DATA = 128, 512, 8192
#: With AdamW, for encoders of ours that start from nothing; modules and pretrained networks get the engine's own.
FRESH_LR = 3e-3
#: Encoder and views of a table: a second layer helps only where there are samples to teach it, and it learns wrong
#: labels by heart unless its views are stronger.
SMALL_TABLE, LARGE_TABLE, ENOUGH_FOR_DEPTH = ("mlp-256x1", "table_noise"), ("mlp-256x2", "table"), 1000
#: Parameters that mean to a run what they mean to the estimator.
SHARED = ("method", "optimizer", "weight_decay", "temperature", "prototype_weight", "precision")


def train_spec(
    parameters: dict[str, Any], *, n: int, is_table: bool, seed: int, epochs: int | None = None
) -> TrainSpec:
    """The run for n samples. `epochs`, where given, goes before the parameter of that name."""
    batch_size = parameters["batch_size"] or (LARGE_BATCH if is_table and n > LARGE_DATA else SMALL_BATCH)
    wanted = epochs or parameters["epochs"] or _epochs(n, batch_size, is_table)
    encoder, lr = parameters["encoder"], parameters["lr"]
    fresh = isinstance(encoder, str) and not encoder.startswith("timm:")
    if lr is None and fresh and parameters["optimizer"] == "adamw":
        lr = FRESH_LR
    if isinstance(encoder, nn.Module):  # it is passed beside the specification
        encoder = "auto"
    augmentation = parameters["augmentation"]
    if is_table:
        by_size = SMALL_TABLE if n < ENOUGH_FOR_DEPTH else LARGE_TABLE
        encoder = by_size[0] if encoder == "auto" and fresh else encoder
        augmentation = by_size[1] if augmentation == "auto" else augmentation
    try:
        return TrainSpec.model_validate(
            {
                **{name: parameters[name] for name in SHARED},
                "lr": lr,
                "encoder": encoder,
                "epochs": int(wanted),
                "batch_size": int(batch_size),
                "augmentation": augmentation,
                "class_weight": "balanced" if parameters["class_weight"] == "balanced" else None,
                "patience": int(parameters["patience"]) if parameters["early_stopping"] else None,
                "seed": seed,
            }
        )
    except ValidationError as error:
        raise ValueError(f"{in_one_line(error)}. Change this parameter of ContrastiveClassifier.") from error


def _epochs(n: int, batch_size: int, is_table: bool) -> int:
    steps_per_epoch = math.ceil(n / batch_size)
    steps = TABLE_STEPS if is_table else IMAGE_STEPS
    return min(max(round(steps / steps_per_epoch), FEWEST_EPOCHS), MOST_EPOCHS)
