"""Recipes are data, and mistakes in them or in a batch are told in one line."""

import dataclasses
import json

import pytest
import torch

from esupcon.data.augment import RECIPES, ImageRecipe, TableRecipe, channel_statistics, normalise, two_views

SIMCLR = RECIPES["simclr"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_reference_recipe_has_the_reference_numbers():
    assert dataclasses.asdict(SIMCLR) == {
        **dataclasses.asdict(ImageRecipe()),
        "crop_area": (0.2, 1.0),
        "crop_aspect": (3 / 4, 4 / 3),
        "flip": 0.5,
        "jitter": 0.8,
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.4,
        "hue": 0.1,
        "grey": 0.2,
    }
    for recipe in RECIPES.values():
        json.dumps(dataclasses.asdict(recipe))
        with pytest.raises(dataclasses.FrozenInstanceError):
            recipe.mean = 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: two_views(x, generator(), "simclair"), "one of simclr, simclr_no_flip, light, .*got 'simclair'"),
        (lambda x: two_views(x, generator(), 3), "recipe is a name .* got int"),
        (lambda x: two_views(x, None, "simclr"), r"torch.Generator; got NoneType. Pass torch.Generator\(\)"),
        (lambda x: two_views(x.numpy(), generator(), "simclr"), "torch tensor; got ndarray. Pass torch.from_numpy"),
        (lambda x: two_views(x.float(), generator(), "simclr"), r"uint8 images .* got torch.float32 of shape \(2, 3"),
        (lambda x: two_views(x[0], generator(), "simclr"), r"got torch.uint8 of shape \(3, 16, 16\)"),
        (lambda x: two_views(x[:, :2], generator(), "simclr"), r"1 or 3 channels.* \(2, 2, 16, 16\)"),
        (lambda x: two_views(x[..., :0], generator(), "simclr"), r"\(2, 3, 16, 0\)"),
        (lambda x: two_views(x, generator(), "table"), "'table' is for tables; the batch is torch.uint8"),
        (lambda x: two_views(torch.zeros(2, 2), generator(), "light"), "'light' is for images; .* torch.float32"),
        (lambda x: two_views(torch.full((2, 2), torch.nan), generator(), "table"), "NaN or inf. Impute"),
        (lambda x: two_views(x, generator(), "light", mean=(0.5, 0.5)), "mean .* each of 3 channels; got 2"),
        (lambda x: normalise(x, 0.5, 0.0), r"std must be finite, and above 0; got \[0.0\]"),
        (lambda x: normalise(x, float("nan"), 1.0), "mean must be finite; got"),
        (lambda x: normalise(x.int()), "got torch.int32"),
        (lambda x: channel_statistics(x.float()), "uint8 array .* got float32"),
        (lambda x: channel_statistics(x[:0]), "not empty"),
        (lambda x: ImageRecipe(flip=1.5), "flip lies between 0 and 1; got 1.5"),
        (lambda x: ImageRecipe(hue=0.6), "hue lies between 0 and 0.5; got 0.6"),
        (lambda x: ImageRecipe(rotation=float("nan")), "rotation lies between 0 and 180; got nan"),
        (lambda x: ImageRecipe(crop_area=(0.5, 1.2)), "crop_area is a pair .* <= 1; got"),
        (lambda x: ImageRecipe(zoom=(0.0, 1.0)), "zoom is a pair"),
        (lambda x: ImageRecipe(crop_aspect=(2.0, 1.0)), "crop_aspect is a pair"),
        (lambda x: ImageRecipe(pad=1.5), "pad is a whole number of pixels, 0 or more; got 1.5"),
        (lambda x: ImageRecipe(padding="wrap"), "one of border, zeros, reflection; got 'wrap'"),
        (lambda x: TableRecipe(noise=-1), "noise lies between 0 and inf; got -1"),
        (lambda x: TableRecipe(corruption=2), "corruption lies between 0 and 1; got 2"),
    ],
)
def test_mistakes_are_told_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    assert "\n" not in str(caught.value)
