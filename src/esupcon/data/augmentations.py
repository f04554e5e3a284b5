"""Augmentations as data: what may happen to a view. `esupcon.data.augment` computes it; no torch is needed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from esupcon._console import check_choice

#: One number for all channels (or features), or one for each.
PerChannel = float | tuple[float, ...]
Padding = Literal["border", "zeros", "reflection"]


@dataclass(frozen=True)
class ImageAugmentation:
    """Operations that make one view of an image; the defaults only normalise, (view - mean) / std of pixels 0 to 1.

    - ``crop_area``, ``crop_aspect``: ranges of the share of the area and of width over height of a crop, resized to
      the full image; None for no crop.
    - ``pad``, ``shift``: shift each axis by up to this many whole pixels, or this fraction of the side.
    - ``zoom``, ``rotation``: magnify by a factor from this range, rotate by up to these degrees.
    - ``flip``: probability of a horizontal flip; with ``flip_one``, the second view is flipped if the first is not.
    - ``padding``: what lies outside the image: its ``border`` pixels repeated, its ``reflection``, or ``zeros``.
    - with probability ``jitter``: factors for ``brightness``, ``contrast``, ``saturation`` in 1 - value .. 1 + value,
      and a ``hue`` rotation of up to this many turns; with probability ``grey``: convert to grey.
    """

    crop_area: tuple[float, float] | None = None
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 0
    shift: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    rotation: float = 0.0
    flip: float = 0.0
    flip_one: bool = False
    padding: Padding = "border"
    jitter: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    grey: float = 0.0
    mean: PerChannel = 0.5
    std: PerChannel = 0.25

    @property
    def moves_pixels(self) -> bool:
        """Whether a view may differ from its image in geometry."""
        still = self.crop_area is None and self.zoom == (1.0, 1.0)
        return not still or any((self.pad, self.shift, self.rotation, self.flip))


@dataclass(frozen=True)
class TableAugmentation:
    """Operations that make one view of the rows of a table, after (x - mean) / std.

    - ``corruption``: probability that a value is replaced by that of another row of the batch.
    - ``noise``: standard deviation of Gaussian noise, in units of the feature's over the batch.
    """

    corruption: float = 0.0
    noise: float = 0.0
    mean: PerChannel = 0.0
    std: PerChannel = 1.0


Augmentation = ImageAugmentation | TableAugmentation


_SIMCLR = ImageAugmentation(
    crop_area=(0.2, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grey=0.2
)

#: Augmentations by name.
AUGMENTATIONS: Mapping[str, Augmentation] = MappingProxyType(
    {
        # The reference of contrastive learning on natural images.
        "simclr": _SIMCLR,
        # As above, for images that must not be mirrored: numbers, signs, writing.
        "simclr_no_flip": replace(_SIMCLR, flip=0.0),
        # Usual for supervised training on 32x32 images.
        "light": ImageAugmentation(pad=4, flip=0.5, padding="reflection"),
        # As above with smaller shifts, for the few epochs of a fast network: each step sees every image both ways.
        "translate": ImageAugmentation(pad=2, flip=0.5, flip_one=True, padding="reflection"),
        # For photos and pretrained encoders: mild crops and colours.
        "photos": ImageAugmentation(
            crop_area=(0.35, 1.0), flip=0.5, jitter=0.8, brightness=0.3, contrast=0.3, saturation=0.3
        ),
        # For single characters on black: small movements, no flip, no colour.
        "digits": ImageAugmentation(shift=0.1, zoom=(0.85, 1.15), rotation=12.0, padding="zeros"),
        "none": ImageAugmentation(),
        "table": TableAugmentation(corruption=0.2, noise=0.1),
        # For small tables and embeddings: a value from a row of another class would mislead; the noise keeps few rows
        # from being learnt by heart.
        "table_noise": TableAugmentation(noise=0.5),
    }
)


def find_augmentation(augmentation: str | Augmentation) -> Augmentation:
    """Return the augmentation of that name, or the augmentation itself."""
    if isinstance(augmentation, ImageAugmentation | TableAugmentation):
        return augmentation
    check_choice("augmentation", augmentation, AUGMENTATIONS)
    return AUGMENTATIONS[augmentation]
