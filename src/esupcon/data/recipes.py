"""Augmentation recipes as data: what may happen to a view, never how it is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

__all__ = ["RECIPES", "ImageRecipe", "PerChannel", "Recipe", "TableRecipe", "find_recipe"]

#: One number for all channels (or features), or one for each.
PerChannel = float | tuple[float, ...]
Padding = Literal["border", "zeros", "reflection"]
PADDINGS: tuple[Padding, ...] = ("border", "zeros", "reflection")


def _check_between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or math.isinf(value):
        raise ValueError(f"{name} lies between {low:g} and {high:g}; got {value!r}.")


def _check_range(name: str, value: tuple[float, float], highest: float = math.inf) -> None:
    if len(value) != 2 or not 0 < value[0] <= value[1] <= highest or math.isinf(value[1]):
        upper = "" if math.isinf(highest) else f" <= {highest:g}"
        raise ValueError(f"{name} is a pair (low, high) with 0 < low <= high{upper}; got {value!r}.")


@dataclass(frozen=True)
class ImageRecipe:
    """What one view of an image goes through; the defaults do nothing but normalise.

    Geometry, composed into one resampling:

    - ``crop_area``: the crop keeps a share of the area drawn uniformly from this range, with width over
      height in pixels drawn log-uniformly from ``crop_aspect``, at a uniform position inside the image,
      and is resized to the full image; None crops nothing.
    - ``pad``: shift by whole pixels, uniform in -pad .. pad on each axis (pad, then crop back to size).
    - ``shift``: shift by any fraction of the side up to this one, on each axis.
    - ``zoom``: magnification about the middle, log-uniform in this range; above 1 things grow.
    - ``rotation``: degrees, uniform in -rotation .. rotation.
    - ``flip``: probability of a horizontal mirror image.
    - ``padding``: what lies outside the image: its ``border`` pixels repeated, its ``reflection``, ``zeros``.

    Colour, composed into one affine map and clamped once, to [0, 1]:

    - with probability ``jitter``: factors for ``brightness``, ``contrast`` and ``saturation`` uniform in
      1 - value .. 1 + value, and a ``hue`` rotation uniform in -hue .. hue turns;
    - with probability ``grey``: the colour is taken out.

    Lastly ``(view - mean) / std`` with pixels in [0, 1].
    """

    crop_area: tuple[float, float] | None = None
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 0
    shift: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    rotation: float = 0.0
    flip: float = 0.0
    padding: Padding = "border"
    jitter: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    grey: float = 0.0
    mean: PerChannel = 0.5
    std: PerChannel = 0.25

    def __post_init__(self) -> None:
        if self.crop_area is not None:
            _check_range("crop_area", self.crop_area, highest=1.0)
        _check_range("crop_aspect", self.crop_aspect)
        _check_range("zoom", self.zoom)
        for name in ("flip", "jitter", "grey", "brightness", "contrast", "saturation"):
            _check_between(name, getattr(self, name), 0.0, 1.0)
        _check_between("shift", self.shift, 0.0, 1.0)
        _check_between("hue", self.hue, 0.0, 0.5)
        _check_between("rotation", self.rotation, 0.0, 180.0)
        if not isinstance(self.pad, int) or self.pad < 0:
            raise ValueError(f"pad is a whole number of pixels, 0 or more; got {self.pad!r}.")
        if self.padding not in PADDINGS:
            raise ValueError(f"padding is one of {', '.join(PADDINGS)}; got {self.padding!r}.")

    @property
    def moves_pixels(self) -> bool:
        """Whether any view differs from its image in geometry."""
        still = self.crop_area is None and self.zoom == (1.0, 1.0)
        return not still or any((self.pad, self.shift, self.rotation, self.flip))


@dataclass(frozen=True)
class TableRecipe:
    """What one view of a table's rows goes through.

    - ``corruption``: probability that a feature's value is replaced by that feature's value in a row of the
      same batch, drawn uniformly: a draw from the batch's own marginal distribution.
    - ``noise``: standard deviation of the Gaussian noise then added, in units of the feature's standard
      deviation over the batch, so that the scale of a feature does not matter.

    Lastly ``(view - mean) / std``, which by default changes nothing.
    """

    corruption: float = 0.0
    noise: float = 0.0
    mean: PerChannel = 0.0
    std: PerChannel = 1.0

    def __post_init__(self) -> None:
        _check_between("corruption", self.corruption, 0.0, 1.0)
        _check_between("noise", self.noise, 0.0, math.inf)


Recipe = ImageRecipe | TableRecipe

_SIMCLR = ImageRecipe(
    crop_area=(0.2, 1.0),
    flip=0.5,
    jitter=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    grey=0.2,
)

#: The recipes that go by name.
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        # The reference recipe of contrastive learning on natural images.
        "simclr": _SIMCLR,
        # The same for pictures that mean something else when mirrored: house numbers, signs, writing.
        "simclr_no_flip": replace(_SIMCLR, flip=0.0),
        # The usual recipe of supervised training on 32x32 images.
        "light": ImageRecipe(pad=4, flip=0.5, padding="reflection"),
        # For single characters on a black ground: small movements, no mirror image, no colour.
        "digits": ImageRecipe(shift=0.1, zoom=(0.85, 1.15), rotation=12.0, padding="zeros"),
        "none": ImageRecipe(),
        "table": TableRecipe(corruption=0.2, noise=0.1),
        # For tables whose every column counts: a value borrowed from a row of another class would be a wrong one.
        "table_noise": TableRecipe(noise=0.3),
    }
)


def find_recipe(recipe: str | Recipe) -> Recipe:
    """The recipe of that name, or the recipe itself."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe is one of {', '.join(RECIPES)}, or an ImageRecipe; got {recipe!r}.")
        return RECIPES[recipe]
    if not isinstance(recipe, ImageRecipe | TableRecipe):
        raise ValueError(  # noqa: TRY004 - every mistake at the public edge is a ValueError
            f"recipe is a name ({', '.join(RECIPES)}), an ImageRecipe or a TableRecipe; got {type(recipe).__name__}."
        )
    return recipe
