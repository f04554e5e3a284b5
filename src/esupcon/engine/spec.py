"""What a training run is: every setting that its result depends on, in one validated, hashable record."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from esupcon.data.recipes import RECIPES
from esupcon.methods import METHODS, Stage

REFERENCE_BATCH = 1024


class TrainSpec(BaseModel):
    """The settings of one run. Equal specs on equal data give equal results, bit for bit, on one kind of machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    method: str = Field("esupcon", description="one of " + ", ".join(METHODS))
    encoder: str = Field("auto", description="auto, resnet18, resnet10-w32, mlp-256x2, timm:NAME, ...")
    epochs: int = Field(100, ge=1, description="passes over the training data")
    steps: int | None = Field(None, ge=1, description="optimiser steps of the main stage, instead of epochs")
    batch_size: int = Field(256, ge=2, description="images a step; each is seen in two views")
    micro_batch: int | None = Field(
        None, ge=1, description="images encoded at once; the losses still see the whole batch"
    )
    lr: float | None = Field(None, gt=0, description="default: the method's reference rate, scaled to the batch")
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="sgd (Nesterov momentum) or adamw")
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0, description="not applied to norms, biases and prototypes")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps in which the rate rises from 0")
    temperature: float = Field(0.1, gt=0, description="divides every cosine similarity")
    prototype_weight: float = Field(1.0, ge=0, description="weight of the prototype term of esupcon")
    prototype_lr: float = Field(1.0, gt=0, description="rate of the prototypes relative to that of the encoder")
    spce_average: Literal["class", "batch"] = "class"
    projection_dim: int = Field(128, ge=1)
    augmentation: str = Field("auto", description="auto, " + ", ".join(RECIPES))
    precision: Literal["auto", "32", "bf16", "64"] = Field(
        "auto", description="auto measures 32 against bf16 on this network and takes the faster"
    )
    compile: bool = Field(False, description="torch.compile the network")
    class_weight: Literal["balanced"] | None = Field(
        None, description="balanced: every class is drawn equally often, however few samples it has"
    )
    patience: int | None = Field(None, ge=1, description="stop after so many epochs without a better held-out accuracy")
    seed: int = Field(0, ge=0)

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str, info: ValidationInfo) -> str:
        # A specification that is read back to be shown may name a method that only the process that ran it knew.
        shown_only = bool(info.context and info.context.get("shown_only")) and value.isidentifier()
        if value not in METHODS and not shown_only:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {value!r}")
        return value

    @field_validator("augmentation")
    @classmethod
    def _known_recipe(cls, value: str) -> str:
        if value != "auto" and value not in RECIPES:
            raise ValueError(f"augmentation must be auto or one of {', '.join(RECIPES)}; got {value!r}")
        return value

    @field_validator("lr", "temperature", "prototype_weight", "prototype_lr", "weight_decay")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"must be finite; got {value}")
        return value

    def key(self, **context: Any) -> str:
        """The identity of a run: a hash of the spec and of what else decides its result (data, classes)."""
        text = json.dumps({"spec": self.model_dump(), **context}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def stage_lr(self, stage: Stage, batch_size: int) -> float:
        """The peak rate of a stage.

        The reference recipe trains with batches of 1,024 images; noise in the gradient falls with the square root
        of the batch, and so does the rate that keeps its effect. AdamW normalises gradients: one rate fits all.
        """
        if self.lr is not None:
            return self.lr * stage.reference_lr / 0.5 if stage.trains == ("head",) else self.lr
        if self.optimizer == "adamw":
            return 1e-3
        return stage.reference_lr * math.sqrt(batch_size / REFERENCE_BATCH)
