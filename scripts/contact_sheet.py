"""A contact sheet of the augmentation recipes: each row an image and views of it.

    python scripts/contact_sheet.py [--output docs/images/augmentations.png] [--seed 0] [picture ...]

Without pictures, crops of the two photographs that come with scikit-learn are shown; digits are its 8x8 digits.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from PIL import Image, UnidentifiedImageError
from sklearn.datasets import load_digits, load_sample_image
from torch import Tensor

from esupcon.data.augment import RECIPES, ImageRecipe, two_views

SIDE = 64
PAIRS = 5
# Squares (left, top, side) with something in the middle of them.
SAMPLE_CROPS = {"china.jpg": (120, 60, 300), "flower.jpg": (200, 60, 330)}


def photographs(paths: list[Path]) -> list[Tensor]:
    """uint8 images (3, SIDE, SIDE): the middle square of each picture."""
    if paths:
        squares = []
        for path in paths:
            with Image.open(path) as picture:
                wide, tall = picture.size
                side = min(wide, tall)
                left, top = (wide - side) // 2, (tall - side) // 2
                squares.append(picture.convert("RGB").crop((left, top, left + side, top + side)))
    else:
        squares = [
            Image.fromarray(load_sample_image(name)).crop((left, top, left + side, top + side))
            for name, (left, top, side) in SAMPLE_CROPS.items()
        ]
    small = [np.array(square.resize((SIDE, SIDE), Image.Resampling.LANCZOS)) for square in squares]
    return [torch.from_numpy(pixels).permute(2, 0, 1) for pixels in small]


def digit(index: int) -> Tensor:
    """uint8 image (1, 8, 8)."""
    return torch.from_numpy((load_digits().images[index] * (255 / 16)).round().astype(np.uint8))[None]


def sheet_rows(photos: list[Tensor]) -> list[tuple[str, Tensor]]:
    """The recipes in their own order, each on images it is meant for."""
    rows = []
    for name, recipe in RECIPES.items():
        if isinstance(recipe, ImageRecipe):
            images = [digit(3), digit(4)] if name == "digits" else photos
            images = images[:1] if name == "none" else images
            rows += [(name, image) for image in images]
    return rows


def draw(rows: list[tuple[str, Tensor]], seed: int) -> Figure:
    # The image, then pairs of views with a gap before each.
    widths = [1.0, *([0.12, 1.0, 1.0] * PAIRS)]
    figure, grid = plt.subplots(
        len(rows),
        len(widths),
        figsize=(sum(widths) + 1.4, len(rows) + 0.4),
        width_ratios=widths,
        squeeze=False,
        layout="constrained",
    )
    generator = torch.Generator().manual_seed(seed)
    for line, (name, image) in zip(grid, rows, strict=True):
        views = two_views(image.expand(PAIRS, -1, -1, -1), generator, name, mean=0.0, std=1.0)
        first, second = views.unflatten(0, (2, PAIRS))
        cells: list[Tensor | None] = [image / 255]
        for pair in zip(first, second, strict=True):
            cells += [None, *pair]
        for place, cell in zip(line, cells, strict=True):
            place.set(xticks=[], yticks=[])
            place.spines[:].set_visible(False)
            if cell is not None:
                place.imshow(cell.expand(3, -1, -1).permute(1, 2, 0).numpy(), interpolation="nearest")
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
    for column, title in enumerate(["image", *(["", "view 1", "view 2"] * PAIRS)]):
        grid[0][column].set_title(title, fontsize=9)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", type=Path)
    default = Path(__file__).resolve().parent.parent / "docs" / "images" / "augmentations.png"
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        photos = photographs(options.pictures)
    except (OSError, UnidentifiedImageError) as error:
        parser.error(f"pictures must be readable image files: {error}")
    mpl.use("Agg")
    figure = draw(sheet_rows(photos), options.seed)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=options.output.parent, suffix=".png")
    try:
        with os.fdopen(handle, "wb") as file:
            # Without the program's version the same pictures give the same bytes.
            figure.savefig(file, dpi=100, format="png", metadata={"Software": None})
        Path(beside).chmod(0o644)
        Path(beside).replace(options.output)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    finally:
        plt.close(figure)
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
