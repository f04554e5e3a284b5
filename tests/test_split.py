"""Stratified parts of a labelled set."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esupcon._split import n_per_class_split, stratified_split

labels = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(lambda y: np.array(y, np.int64))


def check_partition(y, train, test):
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(y)))
    assert train.tolist() == sorted(train.tolist())
    assert test.tolist() == sorted(test.tolist())
    assert train.dtype == test.dtype == np.int64


@given(y=labels, fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**32))
def test_every_class_gives_its_share(y, fraction, seed):
    train, test = stratified_split(y, fraction, seed)
    check_partition(y, train, test)
    for k in set(y.tolist()):
        n, n_test = int((y == k).sum()), int((y[test] == k).sum())
        if n == 1:
            assert n_test == 0
        else:
            assert n_test == min(max(round(fraction * n), 1), n - 1)


@given(y=labels, seed=st.integers(0, 2**32))
def test_the_seed_alone_decides(y, seed):
    first, second = stratified_split(y, 0.3, seed), stratified_split(y.copy(), 0.3, seed)
    np.testing.assert_array_equal(first[0], second[0])


def test_seeds_differ_and_every_image_may_be_tested():
    y = np.repeat(np.arange(3), 10)
    tested = [set(stratified_split(y, 0.2, seed)[1].tolist()) for seed in range(60)]
    assert len({frozenset(one) for one in tested}) > 50
    assert set.union(*tested) == set(range(30))


@given(y=labels, n=st.integers(1, 30), seed=st.integers(0, 100))
def test_n_of_each_class_train(y, n, seed):
    names = [f"class {k}" for k in range(7)]
    sizes = {k: int((y == k).sum()) for k in set(y.tolist())}
    if min(sizes.values()) <= n:
        with pytest.raises(ValueError, match=f"n_per_class={n} leaves nothing"):
            n_per_class_split(y, n, seed, names)
    else:
        train, test = n_per_class_split(y, n, seed, names)
        check_partition(y, train, test)
        assert all((y[train] == k).sum() == n for k in sizes)
    train, test = n_per_class_split(y, n, seed, names, otherwise=0.25)
    check_partition(y, train, test)
    for k, size in sizes.items():
        share = 0 if size == 1 else min(max(round(0.25 * size), 1), size - 1)
        assert (y[test] == k).sum() == (size - n if size > n else share)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_fraction_outside_is_refused(fraction):
    with pytest.raises(ValueError, match="between 0 and 1"):
        stratified_split(np.array([0, 1]), fraction, 0)
