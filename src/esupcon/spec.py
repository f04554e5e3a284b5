"""Everything that decides the result of a run, and the key that follows from it. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from esupcon.data import DataOptions
from esupcon.data.augmentations import AUGMENTATIONS
from esupcon.methods import METHODS, Stage

SCHEMA = 2
#: Batch size, in images, of the reference learning rates in `esupcon.methods`.
REFERENCE_BATCH = 1024


class TrainSpec(BaseModel):
    """Settings of a training run. Equal settings on equal data give equal results on the same kind of machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    method: str = Field("esupcon", description="Training method: " + ", ".join(METHODS) + ".")
    encoder: str = Field("auto", description="Network: auto, fast, resnet18, resnet10-w32, mlp-256x2, timm:NAME.")
    pretrained: bool = Field(True, description="Whether to start from pretrained weights, where the encoder has some.")
    epochs: int = Field(100, ge=1, description="Passes over the training data.")
    steps: int | None = Field(None, ge=1, description="Optimiser steps of the main stage, instead of epochs.")
    batch_size: int = Field(256, ge=2, description="Images per step, each in two views.")
    micro_batch: int | None = Field(
        None, ge=1, lt=2**31, description="Images encoded at once; the losses see the whole batch."
    )
    lr: float | None = Field(None, gt=0, description="Learning rate (default: by method and batch size).")
    encoder_lr: float = Field(1.0, gt=0, description="Rate of the encoder relative to the other parts.")
    optimizer: Literal["sgd", "adamw", "muon"] = Field(
        "sgd", description="Optimiser: sgd (with Nesterov momentum), adamw or muon (for convolutions)."
    )
    schedule: Literal["cosine", "linear"] = Field("cosine", description="How the rate falls to 0: cosine or linear.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of SGD.")
    weight_decay: float = Field(5e-4, ge=0, description="Weight decay; not applied to norms, biases and prototypes.")
    warmup: float = Field(0.1, ge=0, lt=1, description="Share of the steps in which the learning rate rises from 0.")
    # In float32 1 / temperature overflows below 1e-38, and similarities of neighbours already below 1e-6.
    temperature: float = Field(0.1, ge=1e-6, le=1e6, description="Temperature that divides cosine similarities.")
    prototype_weight: float = Field(1.0, ge=0, description="Weight of the prototype term of esupcon.")
    prototype_temperature: float | None = Field(
        None, ge=1e-6, le=1e6, description="Temperature of similarities to prototypes (default: as temperature)."
    )
    prototype_share: float | None = Field(
        None, ge=0, le=1, description="Share of the prototypes in the loss (default: as in the paper)."
    )
    prototype_average: Literal["class", "sample"] = Field(
        "class", description="Mean of the prototype term: over classes, as in the paper, or over samples."
    )
    contrast_weight: Literal["mean"] | Annotated[float, Field(ge=0)] = Field(
        1.0, description="Weight of the samples in the prototype term of esupcon: a number, or mean (as prototypes)."
    )
    prototype_lr: float = Field(1.0, gt=0, description="Rate of the prototypes relative to the encoder's.")
    spce_average: Literal["class", "batch"] = Field("class", description="SPCE average: class, or batch (literal 1/N).")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Label smoothing of ce.")
    ce_power: float = Field(0.0, ge=0, le=1, description="Power q of generalised cross entropy; 0: cross entropy.")
    mixup: float = Field(
        0.0, ge=0, description="Parameter of mixup, which mixes pairs of images and their labels; 0: none."
    )
    label_noise: Literal["auto"] | Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="Share of wrong labels to train for; auto: estimated (with 5 classes or more); 0: none."
    )
    images_per_class: int | None = Field(
        None, ge=2, description="Images of each class that a batch has of the classes drawn for it (default: chance)."
    )
    logit_adjustment: float = Field(
        0.0, ge=0, le=2, description="Times the log class shares are added to logits in training; 1: balanced."
    )
    neck: Literal["none", "norm", "linear"] = Field(
        "none", description="After the encoder: none, norm (centre and scale) or linear (norm and a linear map)."
    )
    train_blocks: int | None = Field(
        None, ge=0, description="Train only this number of last blocks of the encoder (default: all of it)."
    )
    cached_views: int = Field(
        4, ge=2, le=64, description="Views per image that frozen blocks are computed for, once (with train_blocks)."
    )
    projection_dim: int = Field(128, ge=1, description="Width of the projection of the SupCon methods.")
    augmentation: str = Field("auto", description="Augmentation: auto, " + ", ".join(AUGMENTATIONS) + ".")
    test_time_flip: bool = Field(False, description="Average predictions over an image and its mirror image.")
    precision: Literal["auto", "32", "bf16", "64"] = Field(
        "auto",
        description="32, bf16 or 64. auto: bf16 if the processor has working instructions for it, else 32.",
    )
    threads: int | None = Field(None, ge=1, le=4096, description="Threads of torch (default: as many as torch uses).")
    compile: bool = Field(False, description="Compile the network with torch.compile.")
    class_weight: Literal["balanced"] | None = Field(None, description="balanced: draw every class equally often.")
    patience: int | None = Field(None, ge=1, description="Stop after this many epochs without improvement.")
    seed: int = Field(0, ge=0, lt=2**63, description="Random seed.")

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str, info: ValidationInfo) -> str:
        # A stored specification may name a custom method that only the process that ran it knew.
        stored = bool(info.context and info.context.get("stored")) and value.isidentifier()
        if value not in METHODS and not stored:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {value!r}")
        return value

    @field_validator("augmentation")
    @classmethod
    def _known_augmentation(cls, value: str) -> str:
        if value != "auto" and value not in AUGMENTATIONS:
            raise ValueError(f"augmentation must be auto or one of {', '.join(AUGMENTATIONS)}; got {value!r}")
        return value

    @model_validator(mode="after")
    def _one_weight_of_prototypes(self) -> Self:
        if self.prototype_share is not None and self.prototype_weight != 1:
            raise ValueError("prototype_share replaces prototype_weight; set one of them")
        if self.prototype_share is None and self.prototype_average == "sample":
            raise ValueError("prototype_average 'sample' needs a prototype_share; set it, for example to 0.5")
        return self

    @model_validator(mode="after")
    def _one_remedy_of_imbalance(self) -> Self:
        if self.logit_adjustment and self.class_weight is not None:
            raise ValueError("class_weight 'balanced' leaves no class shares for logit_adjustment; set one of them")
        if self.images_per_class and self.class_weight is not None:
            raise ValueError("class_weight and images_per_class both decide what a batch holds; set one of them")
        return self

    @property
    def prior_correction(self) -> float:
        """How far training corrects for unequal classes: 0 not at all, 1 so that the logits are for equal ones.

        With the mean contrast, half of the sum in the term of the prototypes is over samples. Frequent classes have
        more of them there, which corrects for the class shares as logit adjustment does, about halfway.
        """
        if self.class_weight == "balanced":
            return 1.0
        method = METHODS.get(self.method)
        losses = {term.loss for stage in method.stages for term in stage.terms} if method is not None else set()
        halfway = self.contrast_weight == "mean" and "esupcon" in losses
        return (1 + self.logit_adjustment) / 2 if halfway else self.logit_adjustment

    def stage_lr(self, stage: Stage, batch_size: int) -> float:
        """Return the peak learning rate of a stage.

        The reference recipe trains with batches of 1,024 images. The noise of the gradient falls with the square root
        of the batch size, and so does the rate that keeps its effect. AdamW and Muon normalise: one rate fits all.
        """
        if self.lr is not None:
            return self.lr * stage.reference_lr / 0.5 if stage.trains == ("head",) else self.lr
        if self.optimizer != "sgd":
            return {"adamw": 1e-3, "muon": 0.24}[self.optimizer]
        return stage.reference_lr * math.sqrt(batch_size / REFERENCE_BATCH)


def _shares(value: Any) -> Any:
    """Return ``cat=0.2,dog=0.8`` as a dict; any other value unchanged."""
    if not isinstance(value, str) or "=" not in value:
        return value
    pairs = [part.rpartition("=") for part in value.split(",")]
    return {name.strip(): share for name, _, share in pairs}


class RunSpec(BaseModel):
    """One run: its data, its settings, and everything else that its result depends on.

    A spec is resolved if `content` is set, `train.precision` is not "auto" and `train.threads` is not None.
    `esupcon.train` and `esupcon.fit` resolve it before they compute the key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    source: str = Field(description="Name of a data set, or a path.")
    content: str | None = Field(None, description="Digest of the content of the data; None: not read yet.")
    data: DataOptions = Field(DataOptions.model_validate({}), description="How the source is read.")
    n_train: int | None = Field(None, ge=1, description="Number of training samples, including the held-out part.")
    imbalance_rate: float | None = Field(None, gt=0, le=1, description="Keep this share of half of the classes.")
    noise_rate: float | None = Field(None, ge=0, le=1, description="Share of the training labels to make wrong.")
    noise_kind: Literal["shuffle", "symmetric", "pair"] = Field(
        "shuffle", description="How labels are made wrong: shuffle, symmetric or pair."
    )
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="Share of the training data held out to monitor training and to calibrate."
    )
    cross_fit: bool = Field(
        False, description="Hold nothing out if that would be fewer than 100 samples; calibrate by cross-fitting."
    )
    priors: Annotated[Literal["training", "balanced"] | dict[str, float], BeforeValidator(_shares)] = Field(
        "training",
        description="Class shares that predictions are for: training, balanced (equal), or NAME=SHARE,NAME=SHARE,...",
    )
    train: TrainSpec
    plugins: dict[str, str] = Field(default_factory=dict, description="Custom modules by name, with their SHA-256.")
    processes: int = Field(1, ge=1, description="Processes that train together.")
    objects: str | None = Field(None, description="Digest of encoder, initial weights or method passed from Python.")

    @classmethod
    def read(cls, content: Any) -> RunSpec:
        """Return a stored specification. It may name a custom method that this process does not know."""
        return cls.model_validate(content, context={"stored": True})

    @property
    def key(self) -> str:
        """The key of the run. The path of the data is not part of it if their content is."""
        values = self.model_dump()
        if self.content is not None:
            del values["source"]
        if self.train.pretrained:  # as before there was this setting
            del values["train"]["pretrained"]
        return key_of({"schema": SCHEMA, **values})

    def check_used(self, train: TrainSpec) -> None:
        """Raise a ValueError if a setting that this run names changes nothing; `train` are the resolved settings."""
        method = METHODS[train.method]
        terms = [term for stage in method.stages for term in stage.terms]
        losses = {term.loss for term in terms}
        shared = "esupcon" in losses or any(term.share for term in terms)
        with_method, with_optimizer = f"with method {train.method}", f"with optimizer {train.optimizer}"
        idle: dict[str, tuple[bool, str]] = {
            **dict.fromkeys(
                ("prototype_weight", "prototype_average", "contrast_weight"), ("esupcon" not in losses, with_method)
            ),
            "prototype_share": (not shared, with_method),
            **dict.fromkeys(("prototype_temperature", "prototype_lr"), (method.head != "prototype", with_method)),
            "temperature": (losses == {"ce"} and method.head == "linear", with_method),
            "spce_average": ("spce" not in losses, with_method),
            **dict.fromkeys(("label_smoothing", "ce_power"), ("ce" not in losses, with_method)),
            "mixup": (not losses & {"ce", "esupcon"}, with_method),
            "logit_adjustment": (not losses & {"ce", "esupcon"}, with_method),
            "projection_dim": (not method.projector, with_method),
            "momentum": (train.optimizer != "sgd", with_optimizer),
            "weight_decay": (train.optimizer == "muon", with_optimizer),
            "cached_views": (train.train_blocks is None, "without train_blocks"),
            "noise_kind": (self.noise_rate is None, "without noise_rate"),
            "patience": (self.validation_fraction == 0, "without validation_fraction"),
            "pretrained": (
                self.train.encoder not in ("auto", "efficientnet-lite0") and not self.train.encoder.startswith("timm:"),
                f"with encoder {train.encoder}",
            ),
        }
        for name in sorted(self.model_fields_set | self.train.model_fields_set):
            value = getattr(self, name, None) or getattr(self.train, name, None)
            if name in idle and idle[name][0] and value is not None:
                raise ValueError(f"{name}={value} has no effect {idle[name][1]}. Omit it.")

    @property
    def scenario(self) -> dict[str, Any]:
        """The fields of `esupcon.data.scenarios.Scenario`."""
        names = ("n_train", "imbalance_rate", "noise_rate", "noise_kind")
        return {**{name: getattr(self, name) for name in names}, "seed": self.train.seed}

    def difference(self, before: RunSpec) -> str:
        """Return what differs from an earlier run as text: ``epochs was 12, now 5; seed was 0, now 1``."""

        def flat(run: RunSpec) -> dict[str, Any]:
            own = run.model_dump(exclude={"source", "train", "data"})
            return {**own, **run.data.model_dump(), **run.train.model_dump()}

        now, then = flat(self), flat(before)
        words = {"content": "the data differ", "objects": "the encoder, its initial weights or the method differ"}
        changed = [name for name in {**now, **then} if now.get(name) != then.get(name)]
        return "; ".join(words.get(name, f"{name} was {then.get(name)}, now {now.get(name)}") for name in changed)


def key_of(value: Any) -> str:
    """Return the key of a value: twelve hexadecimal digits of the SHA-256 of its canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def canonical_json(value: Any) -> str:
    """Return the same text for equal values: sorted names, no spaces, whole floats as integers (1.0 is 1)."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 2**53:
        return int(value)
    return value
