"""Views against their definition: a slow twin, torch's own resampling, Pillow's own colours."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch.nn import functional as F

from esupcon.data import augment
from esupcon.data.augment import RECIPES, ImageRecipe, two_views

IMAGE_RECIPES = [name for name, recipe in RECIPES.items() if isinstance(recipe, ImageRecipe)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(n, channels=3, height=16, width=16, seed=0):
    return torch.randint(0, 256, (n, channels, height, width), generator=generator(seed), dtype=torch.uint8)


# The definition, pixel by pixel


def bilinear(channel, x, y, padding):
    """The value of a float64 image (H, W) at pixel coordinates x, y."""
    height, width = channel.shape

    def inside(place, size):
        if padding == "reflection":  # about the outer edges of the outermost pixels
            place = (place + 0.5) % (2 * size)
            place = min(place, 2 * size - place) - 0.5
        return min(max(place, 0), size - 1) if padding != "zeros" else place

    x, y = inside(x, width), inside(y, height)
    total = 0.0
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < height and 0 <= column < width:
                total += (1 - abs(x - column)) * (1 - abs(y - row)) * channel[row, column]
    return total


def slow_view(image, u, recipe, mean, std):
    """One view of a uint8 image (C, H, W), operation by operation, from its row of uniform draws."""
    channels, height, width = image.shape
    share_x = share_y = 1.0
    if recipe.crop_area is not None:
        shares = []
        for k in range(augment.CROP_TRIES):
            low, high = recipe.crop_area
            area = (low + (high - low) * u[k]) * height * width
            low, high = np.log(recipe.crop_aspect)
            aspect = math.exp(low + (high - low) * u[augment.CROP_TRIES + k])
            shares.append((math.sqrt(area * aspect) / width, math.sqrt(area / aspect) / height))
        fitting = [s for s in shares if max(s) <= 1]
        share_x, share_y = fitting[0] if fitting else (min(1, s) for s in shares[0])
    u = u[2 * augment.CROP_TRIES :]
    left, top = u[0] * (1 - share_x) * width, u[1] * (1 - share_y) * height
    pad_x, pad_y = (math.floor(v * (2 * recipe.pad + 1)) - recipe.pad for v in u[2:4])
    shift_x, shift_y = ((2 * v - 1) * recipe.shift for v in u[4:6])
    magnified = math.exp(math.log(recipe.zoom[0]) * (1 - u[6]) + math.log(recipe.zoom[1]) * u[6])
    angle = math.radians((2 * u[7] - 1) * recipe.rotation)
    view = np.empty((channels, height, width))
    for row in range(height):
        for column in range(width):
            # Relative to the middle of the view, then of the crop in the image; in pixels of the image.
            x, y = (column + 0.5 - width / 2) * share_x, (row + 0.5 - height / 2) * share_y
            x, y = (-x if u[8] < recipe.flip else x) / magnified, y / magnified
            x, y = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
            x += left + share_x * width / 2 + pad_x + shift_x * width - 0.5
            y += top + share_y * height / 2 + pad_y + shift_y * height - 0.5
            view[:, row, column] = [bilinear(c / 255, x, y, recipe.padding) for c in image.astype(float)]
    luma = np.array(augment.LUMA if channels == 3 else (1.0,))
    if u[9] < recipe.jitter:
        view = view * (1 + recipe.brightness * (2 * u[10] - 1))
        contrast = 1 + recipe.contrast * (2 * u[11] - 1)
        view = contrast * view + (1 - contrast) * np.tensordot(luma, view, 1).mean()
    if channels == 3:
        if u[9] < recipe.jitter:
            saturation = 1 + recipe.saturation * (2 * u[12] - 1)
            view = saturation * view + (1 - saturation) * np.tensordot(luma, view, 1)
            turn = 2 * math.pi * recipe.hue * (2 * u[13] - 1)
            to_yiq = np.array([augment.LUMA, *augment.IQ])
            rotation = [[1, 0, 0], [0, math.cos(turn), -math.sin(turn)], [0, math.sin(turn), math.cos(turn)]]
            view = np.tensordot(np.linalg.inv(to_yiq) @ rotation @ to_yiq, view, 1)
        if u[14] < recipe.grey:
            view = np.repeat(np.tensordot(luma, view, 1)[None], 3, axis=0)
    return (view.clip(0, 1) - mean) / std


EVERYTHING = ImageRecipe(
    crop_area=(0.3, 0.9),
    crop_aspect=(0.5, 2.0),
    pad=1,
    shift=0.2,
    zoom=(0.7, 1.4),
    rotation=40.0,
    flip=0.5,
    jitter=0.7,
    brightness=0.6,
    contrast=0.7,
    saturation=0.8,
    hue=0.3,
    grey=0.3,
)


@pytest.mark.parametrize("padding", ["border", "zeros", "reflection"])
@pytest.mark.parametrize("size", [(3, 7, 7), (3, 5, 8), (1, 9, 6)])
def test_views_are_the_definition(padding, size):
    recipe = replace(EVERYTHING, padding=padding)
    images = pictures(12, *size)
    mean, std = (0.4, 0.5, 0.6)[: size[0]], (0.2, 0.25, 0.3)[: size[0]]
    views = two_views(images, generator(5), recipe, mean=mean, std=std).double().numpy()
    columns = augment.GEOMETRY_DRAWS + augment.COLOUR_DRAWS
    draws = torch.rand(12, 2, columns, generator=generator(5)).double().numpy()
    of_channel = [np.reshape(values, (-1, 1, 1)) for values in (mean, std)]
    for view in range(2):
        for i in range(12):
            twin = slow_view(images[i].numpy(), draws[i, view], recipe, *of_channel)
            np.testing.assert_allclose(views[view * 12 + i], twin, atol=1e-4)


@pytest.mark.parametrize("name", IMAGE_RECIPES)
@pytest.mark.parametrize("channels", [1, 3])
def test_named_recipes_are_the_definition(name, channels):
    images = pictures(6, channels, 8, 8)
    views = two_views(images, generator(1), name).double().numpy()
    draws = torch.rand(6, 2, augment.GEOMETRY_DRAWS + augment.COLOUR_DRAWS, generator=generator(1)).double().numpy()
    for view in range(2):
        for i in range(6):
            twin = slow_view(images[i].numpy(), draws[i, view], RECIPES[name], 0.5, 0.25)
            np.testing.assert_allclose(views[view * 6 + i], twin, atol=1e-4)


# Geometry beside torch's own


def test_resampling_equals_torch_affine_grid():
    pixels = pictures(5, height=9, width=12).float()
    maps = torch.randn(5, 2, 2, 3, generator=generator())
    ours = augment._resample(pixels, maps, "zeros").view(5, 3, 2, 9, 12)
    for view in range(2):
        grid = F.affine_grid(maps[:, view], [5, 3, 9, 12], align_corners=False)
        theirs = F.grid_sample(pixels, grid, padding_mode="zeros", align_corners=False)
        torch.testing.assert_close(ours[:, :, view], theirs, atol=1e-2, rtol=0)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_crop_equals_cut_and_interpolate(mirrored):
    pixels = pictures(1, height=16, width=24).float()
    top, left, tall, wide = 4, 6, 8, 12
    share_x, share_y = wide / 24, tall / 16
    t_x, t_y = 2 * (left + wide / 2) / 24 - 1, 2 * (top + tall / 2) / 16 - 1
    maps = torch.tensor([[-share_x if mirrored else share_x, 0, t_x], [0, share_y, t_y]])
    ours = augment._resample(pixels, maps[None, None], "border").view(1, 3, 16, 24)
    cut = pixels[:, :, top : top + tall, left : left + wide]
    theirs = F.interpolate(cut, (16, 24), mode="bilinear", align_corners=False)
    theirs = theirs.flip(-1) if mirrored else theirs
    # On its rim a cut-out repeats its own pixels where the image goes on.
    torch.testing.assert_close(ours[..., 1:-1, 1:-1], theirs[..., 1:-1, 1:-1], atol=1e-2, rtol=0)


# Colour beside Pillow's


def colour_draws(**given):
    names = ("jittered", "brightness", "contrast", "saturation", "hue", "greyed")
    return torch.tensor([[[given.get(name, 0.5) for name in names]]])


@pytest.mark.parametrize("factor", [0.6, 0.85, 1.3])
@pytest.mark.parametrize(
    ("name", "enhancer"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
        ("grey", None),
    ],
)
def test_colour_operations_equal_pillow(name, enhancer, factor):
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    picture = Image.fromarray(image)
    if enhancer is None:
        recipe, draws = ImageRecipe(grey=1.0), colour_draws()
        theirs = np.asarray(picture.convert("L").convert("RGB"))
    else:
        recipe = ImageRecipe(jitter=1.0, **{name: 1.0})
        draws = colour_draws(**{name: factor / 2})
        theirs = np.asarray(enhancer(picture).enhance(factor))
    gain, bracket, contrast = augment._colour(draws, recipe, 3)
    pixels = torch.from_numpy(image).float()
    lightness = (pixels @ torch.tensor(augment.LUMA)).mean()
    ours = pixels @ (gain[0, 0] * bracket[0, 0]).T + contrast[0, 0] * lightness
    # Pillow rounds to whole levels on its way.
    assert np.abs(ours.clamp(0, 255).numpy() - theirs).max() < 2


def test_a_full_turn_of_hue_changes_nothing_and_half_a_turn_gives_the_opposite():
    _, bracket, _ = augment._colour(colour_draws(hue=0.0), ImageRecipe(jitter=1.0, hue=0.5), 3)
    half = bracket[0, 0].double()
    torch.testing.assert_close(half @ half, torch.eye(3, dtype=torch.float64), atol=1e-5, rtol=0)
    colour = torch.tensor([0.7, 0.4, 0.5], dtype=torch.float64)
    luma = torch.tensor(augment.LUMA, dtype=torch.float64) @ colour
    torch.testing.assert_close(half @ colour - luma, luma - colour, atol=1e-5, rtol=0)
