"""Two views of every sample of a batch: whole tensors in, whole tensors out, one explicit generator.

Geometry is one affine map and one ``grid_sample`` for both views; colour, clamping apart, is one affine
map of the channels, into which the normalisation is folded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from esupcon.data.normalisation import (
    ChannelStatistics,
    Numbers,
    channel_statistics,
    is_table,
    normalise,
    per_channel,
)
from esupcon.data.recipes import RECIPES, ImageRecipe, Recipe, TableRecipe, find_recipe

__all__ = [
    "RECIPES",
    "ChannelStatistics",
    "ImageRecipe",
    "TableRecipe",
    "channel_statistics",
    "normalise",
    "one_view",
    "two_views",
]

# A crop that does not fit into the image is drawn again; one in six does not at the reference settings.
CROP_TRIES = 10
# Every recipe draws the same numbers whatever it uses of them, so that with one seed two recipes that differ
# in one entry give views that differ in it alone.
GEOMETRY_DRAWS = 2 * CROP_TRIES + 9
COLOUR_DRAWS = 6
# Floats of one view block that stay in a core's cache between resampling and colour.
BLOCK_FLOATS = 2**18

LUMA = (0.299, 0.587, 0.114)
# Rows I and Q of the NTSC transform: two chroma axes, blind to grey, that a hue rotation turns in.
IQ = ((0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))


def two_views(
    images: Tensor,
    generator: torch.Generator,
    recipe: str | Recipe = "simclr",
    *,
    mean: Numbers | None = None,
    std: Numbers | None = None,
) -> Tensor:
    """Two independent views of each sample: view one of all n, then view two of all n.

    ``images`` is a uint8 batch (n, C, H, W) with C of 1 or 3; out comes a normalised float32 tensor
    (2n, C, H, W) on the same device. Greyscale images get brightness and contrast; saturation, hue and
    greyscale mean nothing to them. The result is a function of the images and the generator's state alone,
    and row i of it depends on no other image of the batch; with a generator on the CPU not even on how many
    follow it.

    With a ``TableRecipe`` the batch is floating point (n, d) and so (2n, d) comes out. Its values are
    replaced by those of other rows and its noise is scaled by the batch: there batch mates do matter.

    ``mean`` and ``std`` replace the recipe's; see ``channel_statistics``.
    """
    return _views(images, generator, recipe, mean, std, count=2)


def one_view(
    images: Tensor,
    generator: torch.Generator,
    recipe: str | Recipe = "simclr",
    *,
    mean: Numbers | None = None,
    std: Numbers | None = None,
) -> Tensor:
    """One view of each sample, (n, ...): as ``two_views`` in all else."""
    return _views(images, generator, recipe, mean, std, count=1)


@torch.no_grad()
def _views(
    images: Tensor,
    generator: torch.Generator,
    recipe: str | Recipe,
    mean: Numbers | None,
    std: Numbers | None,
    count: int,
) -> Tensor:
    chosen = find_recipe(recipe)
    if is_table(images) != isinstance(chosen, TableRecipe):
        raise ValueError(
            f"recipe {recipe!r} is for {'tables' if isinstance(chosen, TableRecipe) else 'images'}; the batch is "
            f"{images.dtype} of shape {tuple(images.shape)}. Images are uint8 (n, C, H, W), tables float (n, d)."
        )
    if not isinstance(generator, torch.Generator):
        raise ValueError(  # noqa: TRY004 - every mistake at the public edge is a ValueError
            f"generator is a torch.Generator; got {type(generator).__name__}. Pass torch.Generator().manual_seed(seed)."
        )
    centre, spread = per_channel(images, mean, std, chosen)
    if isinstance(chosen, TableRecipe):
        standard = (images - centre.to(images.device)) / spread.to(images.device)
        return _table_views(standard.to(torch.float32), generator, chosen, count)
    return _image_views(images, generator, chosen, centre, spread, count)


def _image_views(
    images: Tensor, generator: torch.Generator, recipe: ImageRecipe, centre: Tensor, spread: Tensor, count: int
) -> Tensor:
    """``clamp(M x + offset)`` of the resampled images, a block at a time so that a block stays in the cache."""
    n, channels, height, width = images.shape
    device = images.device
    # Sample by sample, so that a sample's draws depend neither on its batch mates nor on their number.
    size = (n, count, GEOMETRY_DRAWS + COLOUR_DRAWS)
    draws = torch.rand(size, generator=generator, device=generator.device, dtype=torch.float32)
    geometry, colour = draws.split([GEOMETRY_DRAWS, COLOUR_DRAWS], dim=-1)
    maps = _geometry(geometry, recipe, height, width).to(device)
    gain, bracket, contrast = (values.to(device) for values in _colour(colour, recipe, channels))
    low, high = (-centre / spread).tolist(), ((1 - centre) / spread).tolist()
    centre, spread = centre.to(device), spread.to(device)
    # Pixels are 0 .. 255 until the colour map, which takes them to (y - mean) / std with y in 0 .. 1.
    matrix = gain[..., None, None] * bracket / (255 * spread[:, None])
    luma = torch.tensor(LUMA if channels == 3 else (1.0,), device=device, dtype=torch.float32) / 255

    views = torch.empty(count, n, channels, height * width, device=device, dtype=torch.float32)
    block = _block_size(images, count)
    for start in range(0, n, block):
        part = slice(start, start + block)
        pixels = images[part].to(torch.float32, memory_format=torch.contiguous_format)
        if recipe.moves_pixels:
            sampled = _resample(pixels, maps[part], recipe.padding)
        else:
            sampled = pixels.flatten(2)[:, :, None].expand(-1, -1, count, -1)
        lightness = (sampled.mean(dim=-1) * luma[:, None]).sum(dim=1)
        offset = ((contrast[part] * lightness)[..., None] - centre) / spread
        for view in range(count):
            # Written in place, which autocast leaves alone: views are float32 wherever they are made.
            torch.baddbmm(offset[:, view, :, None], matrix[part, view], sampled[:, :, view], out=views[view, part])
        # Bounds as numbers, channel by channel: several times as fast as bounds in a tensor.
        for channel in range(channels):
            views[:, part, channel].clamp_(low[channel], high[channel])
    return views.view(count * n, channels, height, width)


def _resample(pixels: Tensor, maps: Tensor, padding: str) -> Tensor:
    """All views of each image by one ``grid_sample``: (n, C, views, H * W)."""
    n, channels, height, width = pixels.shape
    count = maps.shape[1]
    x = torch.arange(1 - width, width, 2, device=pixels.device, dtype=torch.float32) / width
    y = torch.arange(1 - height, height, 2, device=pixels.device, dtype=torch.float32) / height
    per_x, per_y, shift = maps.transpose(1, 2).contiguous()[..., None, :].unbind(-1)
    # The views of an image lie below each other in its grid (n, views * H, W), and x and y are planes of
    # their own, which the kernel reads fastest; no matrix product, whose precision users may have lowered.
    planes = (per_x * x)[..., None, :] + (per_y * y + shift)[..., None]
    grid = planes.view(n, 2, count * height, width).permute(0, 2, 3, 1)
    sampled = grid_sample(pixels, grid, mode="bilinear", padding_mode=padding, align_corners=False)
    return sampled.view(n, channels, count, height * width)


def _geometry(draws: Tensor, recipe: ImageRecipe, height: int, width: int) -> Tensor:
    """The maps (n, views, 2, 3) from a place in the view to its place in the image, both in -1 .. 1.

    With crop and zoom shares s, flip f and rotation by a, in a square image:
    ``[[f s_x cos a, -s_y sin a, t_x], [f s_x sin a, s_y cos a, t_y]]``.
    """
    tries, rest = draws.tensor_split([2 * CROP_TRIES], dim=-1)
    left, top, pad_x, pad_y, shift_x, shift_y, zoom, turn, mirror = rest.unbind(-1)
    share_x, share_y = _crop_shares(tries, recipe, height, width)
    t_x = (1 - share_x) * (2 * left - 1) + _whole(pad_x, recipe.pad) * (2 / width)
    t_y = (1 - share_y) * (2 * top - 1) + _whole(pad_y, recipe.pad) * (2 / height)
    t_x += 2 * _between(shift_x, -recipe.shift, recipe.shift)
    t_y += 2 * _between(shift_y, -recipe.shift, recipe.shift)
    magnified = _between(zoom, *map(math.log, recipe.zoom)).exp()
    angle = _between(turn, -recipe.rotation, recipe.rotation).deg2rad()
    s_x = share_x / magnified * (1 - 2 * (mirror < recipe.flip).to(torch.float32))
    s_y = share_y / magnified
    # Angles live in pixels, maps in units of the sides: hence the sides' ratio off the diagonal.
    entries = (
        s_x * angle.cos(),
        -s_y * angle.sin() * (height / width),
        t_x,
        s_x * angle.sin() * (width / height),
        s_y * angle.cos(),
        t_y,
    )
    return torch.stack(entries, dim=-1).view(*draws.shape[:-1], 2, 3)


def _crop_shares(tries: Tensor, recipe: ImageRecipe, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Shares of width and height that the crop keeps: the first of the tries that fits into the image."""
    if recipe.crop_area is None:
        whole = torch.ones_like(tries[..., 0])
        return whole, whole
    area_draw, aspect_draw = tries.chunk(2, dim=-1)
    area = _between(area_draw, *recipe.crop_area)
    aspect = _between(aspect_draw, *map(math.log, recipe.crop_aspect)).exp() * (height / width)
    share_x, share_y = (area * aspect).sqrt(), (area / aspect).sqrt()
    fits = (share_x <= 1) & (share_y <= 1)
    first = fits.to(torch.uint8).argmax(dim=-1, keepdim=True)
    # Where none fits, as in very long images, the first try is cut to the image.
    kept_x, kept_y = (share.gather(-1, first).squeeze(-1).clamp(max=1) for share in (share_x, share_y))
    return kept_x, kept_y


def _colour(draws: Tensor, recipe: ImageRecipe, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Brightness b, contrast c, saturation s, hue angle h and greyscale as one affine map of the channels.

    In this order they are ``b c (L + s (cos h P + sin h Q)) x + b (1 - c) lightness``, where L puts a pixel's
    luma into every channel, P = I - L keeps its chroma and Q turns the chroma by a quarter; greyscale is
    s = 0. It holds because every factor but b and c maps grey to itself. With one channel, L = 1 and P = Q = 0.
    Returned: b c (n, views), the bracket (n, views, C, C) and b (1 - c) (n, views).
    """
    jittered, *factors, hue, greyed = draws.unbind(-1)
    on = (jittered < recipe.jitter).to(torch.float32)
    strengths = (recipe.brightness, recipe.contrast, recipe.saturation)
    b, c, s = (1 + on * _between(u, -k, k) for u, k in zip(factors, strengths, strict=True))
    angle = on * _between(hue, -recipe.hue, recipe.hue) * (2 * math.pi)
    s = torch.where(greyed < recipe.grey, 0.0, s)
    L, P, Q = (part.to(draws.device) for part in _colour_parts(channels))
    bracket = L + (s * angle.cos())[..., None, None] * P + (s * angle.sin())[..., None, None] * Q
    return b * c, bracket, b * (1 - c)


def _colour_parts(channels: int) -> tuple[Tensor, Tensor, Tensor]:
    if channels == 1:
        nothing = torch.zeros(1, 1, dtype=torch.float32)
        return nothing + 1, nothing, nothing
    to_yiq = torch.tensor((LUMA, *IQ), dtype=torch.float64)
    to_rgb = torch.linalg.inv(to_yiq)
    quarter = torch.tensor(((0.0, 0.0, 0.0), (0.0, 0.0, -1.0), (0.0, 1.0, 0.0)), dtype=torch.float64)
    luma = to_yiq[0].expand(3, 3)
    chroma = torch.eye(3, dtype=torch.float64) - luma
    turned = to_rgb @ quarter @ to_yiq
    return luma.to(torch.float32), chroma.to(torch.float32), turned.to(torch.float32)


def _table_views(x: Tensor, generator: torch.Generator, recipe: TableRecipe, count: int) -> Tensor:
    n, features = x.shape
    if n == 0:
        return x
    size, device = (count, n, features), generator.device
    replaced = (torch.rand(size, generator=generator, device=device) < recipe.corruption).to(x.device)
    donors = torch.randint(n, size, generator=generator, device=device).to(x.device)
    noise = torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(x.device)
    drawn = x.expand(count, -1, -1).gather(1, donors)
    spread = x.std(dim=0, correction=0)
    return (torch.where(replaced, drawn, x) + recipe.noise * spread * noise).flatten(0, 1)


def _between(uniform: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * uniform


def _whole(uniform: Tensor, most: int) -> Tensor:
    """A whole number in -most .. most; the bound is for products that rounding takes to the next number."""
    return (uniform * (2 * most + 1)).floor().clamp(max=2 * most) - most


def _block_size(images: Tensor, count: int) -> int:
    if images.device.type != "cpu":
        return max(1, len(images))
    return torch.get_num_threads() * max(4, BLOCK_FLOATS // (count * max(1, images[:1].numel())))
