"""What must not change a view: batch mates, threads, blocks, surroundings."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_augment import EVERYTHING

from esupcon.data import augment
from esupcon.data.augment import RECIPES, ImageRecipe, channel_statistics, normalise, one_view, two_views

IMAGE_RECIPES = [name for name, recipe in RECIPES.items() if isinstance(recipe, ImageRecipe)]
SIMCLR = RECIPES["simclr"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(n, channels=3, height=16, width=16, seed=0):
    return torch.randint(0, 256, (n, channels, height, width), generator=generator(seed), dtype=torch.uint8)


@settings(max_examples=25)
@given(
    st.integers(1, 9),
    st.sampled_from([1, 3]),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([*IMAGE_RECIPES, EVERYTHING]),
    st.integers(0, 10**6),
)
def test_shape_type_range_and_purity_on_any_size(n, channels, height, width, recipe, seed):
    images = pictures(n, channels, height, width, seed)
    before = images.clone()
    views = two_views(images, generator(seed), recipe)
    assert views.shape == (2 * n, channels, height, width)
    assert views.dtype == torch.float32
    assert views.is_contiguous()
    assert views.min() >= -2
    assert views.max() <= 2
    assert torch.equal(images, before)
    assert torch.equal(views, two_views(images, generator(seed), recipe))
    single = one_view(images, generator(seed), recipe)
    assert single.shape == images.shape
    assert single.dtype == torch.float32


@pytest.mark.parametrize("name", IMAGE_RECIPES)
def test_a_view_depends_on_no_batch_mate(name):
    images, others = pictures(40), pictures(40, seed=1)
    others[7] = images[7]
    first, second = (two_views(batch, generator(3), name) for batch in (images, others))
    assert torch.equal(first[7], second[7])
    assert torch.equal(first[47], second[47])
    assert not torch.equal(first[8], second[8])
    # Nor on how many come after it.
    fewer = two_views(images[:11], generator(3), name)
    assert torch.equal(fewer[7], first[7])
    assert torch.equal(fewer[18], first[47])


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("size", [(200, 3, 32, 32), (3, 3, 64, 64), (1, 1, 8, 8)])
@pytest.mark.parametrize("name", IMAGE_RECIPES)
def test_one_thread_or_two_give_the_same_bits(name, size):
    images = pictures(*size)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(two_views(images, generator(1), name))
    assert torch.equal(*results)


def test_the_size_of_the_blocks_does_not_matter(monkeypatch):
    images = pictures(50)
    whole = two_views(images, generator(), EVERYTHING)
    monkeypatch.setattr(augment, "BLOCK_FLOATS", 1)
    assert torch.equal(two_views(images, generator(), EVERYTHING), whole)


def test_views_differ_and_the_generator_moves_on():
    images, source = pictures(4), generator()
    first, second = two_views(images, source, "simclr"), two_views(images, source, "simclr")
    assert not torch.equal(first, second)
    assert not torch.equal(first[:4], first[4:])
    assert torch.equal(two_views(images, generator(), SIMCLR), first)


def test_no_global_randomness_is_touched():
    before = torch.get_rng_state()
    two_views(pictures(4), generator(), "simclr")
    assert torch.equal(before, torch.get_rng_state())


def test_recipes_that_share_entries_share_their_draws():
    images = pictures(30)
    coloured, plain = two_views(images, generator(), "simclr"), two_views(images, generator(), replace(SIMCLR, grey=0))
    same = (coloured == plain).flatten(1).all(dim=1)
    assert 0 < same.sum() < 60


def test_no_recipe_is_plain_normalisation():
    images = pictures(5)
    statistics = channel_statistics(images)
    views = two_views(images, generator(), "none", mean=statistics.mean, std=statistics.std)
    plain = normalise(images, *statistics)
    torch.testing.assert_close(views, torch.cat((plain, plain)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["simclr", "light", "none"])
def test_surroundings_do_not_change_the_views(name):
    images = pictures(8)
    plain = two_views(images, generator(), name)
    with torch.inference_mode():
        assert torch.equal(two_views(images, generator(), name), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(two_views(images, generator(), name), plain)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(two_views(images, generator(), name), plain)
    finally:
        torch.set_default_dtype(torch.float32)
    strided = images.to(memory_format=torch.channels_last)
    assert torch.equal(two_views(strided, generator(), name), plain)
    assert torch.equal(two_views(torch.stack((images, images))[1], generator(), name), plain)
    assert not plain.requires_grad


def test_an_empty_batch_has_no_views():
    assert two_views(pictures(0), generator(), "simclr").shape == (0, 3, 16, 16)
    assert two_views(torch.zeros(0, 4), generator(), "table").shape == (0, 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_views_are_made_where_the_batch_is():
    images = pictures(64)
    here, there = (two_views(batch, generator(), "simclr") for batch in (images, images.cuda()))
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.cpu(), here, atol=2e-2, rtol=0)
