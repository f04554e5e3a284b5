"""Views of tables: corruption from the batch's marginals, noise in units of each feature."""

from collections import Counter

import torch
from scipy import stats

from esupcon.data.augment import RECIPES, TableRecipe, channel_statistics, normalise, one_view, two_views


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def table(n=400, seed=0):
    return torch.randn(n, 3, generator=generator(seed)) * torch.tensor([1.0, 50.0, 0.0]) + torch.tensor([0, 9e3, 4])


def test_corruption_takes_values_of_the_same_feature_from_the_batch():
    x = table()
    views = two_views(x, generator(), TableRecipe(corruption=0.3))
    assert views.shape == (800, 3)
    assert views.dtype == torch.float32
    replaced = views != torch.cat((x, x))
    own_value_drawn = 0.3 / 400
    for view in replaced.chunk(2):
        share = view[:, :2].float().mean().item()
        assert abs(share - (0.3 - own_value_drawn)) < 4 * (0.3 * 0.7 / 800) ** 0.5
    assert not torch.equal(*replaced.chunk(2))
    donors = Counter()
    for column in range(2):
        row_of = {value: row for row, value in enumerate(x[:, column].tolist())}
        donors.update(row_of[value] // 40 for value in views[replaced[:, column], column].tolist())
    assert stats.chisquare([donors[tenth] for tenth in range(10)]).pvalue > 1e-3


def test_noise_is_gaussian_and_as_large_as_the_feature_asks():
    x = table(4000)
    noise = (two_views(x, generator(), TableRecipe(noise=0.1)) - torch.cat((x, x))) / x.std(dim=0, correction=0)
    for feature in (0, 1):
        assert stats.kstest(noise[:, feature].numpy(), stats.norm(scale=0.1).cdf).pvalue > 1e-3
    constant = two_views(x, generator(), "table")[:, 2]
    assert (constant == 4).all()


def test_table_views_commute_with_the_scale_of_the_features():
    x = table().double()
    mean, std = channel_statistics(x)
    direct = two_views(x, generator(), "table", mean=mean, std=std)
    torch.testing.assert_close(direct, two_views(normalise(x, mean, std), generator(), "table"), atol=1e-5, rtol=0)
    assert torch.equal(two_views(x, generator(), "table"), two_views(x, generator(), RECIPES["table"]))
    assert torch.equal(two_views(x, generator(), TableRecipe()), torch.cat((x, x)).float())
    assert one_view(x, generator(), "table").shape == x.shape
