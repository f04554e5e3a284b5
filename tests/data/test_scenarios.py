"""The hard settings on any labels, with definitions restated as plain loops, and the held-out part."""

import json
from collections import Counter
from contextlib import nullcontext
from fractions import Fraction
from itertools import combinations, permutations
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from esupcon._split import n_per_class_split, stratified_split
from esupcon.data import Dataset
from esupcon.data.scenarios import NoiseKind, Scenario, imbalance, label_noise, low_sample, prepare

rates = st.floats(0, 1, allow_nan=False)
seeds = st.integers(0, 2**32)


@st.composite
def label_arrays(draw, min_classes=1, max_size=60):
    """Labels with any names (negative, with gaps), any class sizes, any order, any integer type."""
    names = draw(st.lists(st.integers(-100, 100), min_size=min_classes, max_size=6, unique=True))
    rest = draw(st.lists(st.sampled_from(names), max_size=max_size))
    shuffled = draw(st.permutations(names + rest))
    return np.array(shuffled, dtype=draw(st.sampled_from([np.int8, np.int32, np.int64])))


def rng_of(seed):
    return np.random.default_rng(seed)


def same_twice_and_pure(function, labels, seed):
    before = labels.copy()
    first, second = function(labels, rng_of(seed)), function(labels, rng_of(seed))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(labels, before)
    assert type(first) is np.ndarray
    assert not np.shares_memory(first, labels)
    return first


# low_sample


@given(label_arrays(), st.data(), seeds)
def test_low_sample_is_exact_and_proportional(labels, data, seed):
    n_train = data.draw(st.integers(1, len(labels)))
    indices = same_twice_and_pure(lambda y, rng: low_sample(y, n_train, rng), labels, seed)
    assert indices.dtype == np.int64
    assert len(indices) == len(set(indices.tolist())) == n_train
    assert indices.tolist() == sorted(indices.tolist())
    got, sizes = Counter(labels[indices].tolist()), Counter(labels.tolist())
    share = {k: Fraction(n_train * size, len(labels)) for k, size in sizes.items()}
    if n_train >= len(sizes):
        assert all(got[k] >= 1 for k in sizes)
    rounded_down_to_none = any(share[k] < 1 for k in sizes)
    if not rounded_down_to_none or n_train < len(sizes):
        assert all(abs(got[k] - share[k]) < 1 for k in sizes)
        # Largest remainder: no class that is rounded up has a smaller remainder than one rounded down.
        up = [share[k] % 1 for k in sizes if got[k] > share[k]]
        down = [share[k] % 1 for k in sizes if got[k] < share[k]]
        assert not up or not down or min(up) >= max(down)


@given(st.integers(1, 6), st.integers(1, 12), st.data(), seeds)
def test_low_samples_of_balanced_classes_are_nested(n_classes, per_class, data, seed):
    labels = np.tile(np.arange(n_classes), per_class)
    small = data.draw(st.integers(1, len(labels)))
    large = data.draw(st.integers(small, len(labels)))
    inner, outer = (low_sample(labels, n, rng_of(seed)) for n in (small, large))
    assert set(inner.tolist()) <= set(outer.tolist())


# label_noise


@given(label_arrays(min_classes=2), rates, seeds, st.sampled_from(get_args(NoiseKind)))
@settings(max_examples=150)
def test_label_noise_changes_the_exact_share(labels, rate, seed, kind):
    n_wrong = round(rate * len(labels))
    # Labels can all change class if no class holds the majority of them.
    most = sum(min(size, n_wrong // 2) for size in Counter(labels.tolist()).values())
    if kind == "shuffle" and n_wrong > most:
        with pytest.raises(ValueError, match=r"cannot shuffle .* Use noise_rate=") as caught:
            label_noise(labels, rate, rng_of(seed), kind)
        advised = float(str(caught.value).split("noise_rate=")[1].split()[0])
        assert (label_noise(labels, advised, rng_of(seed), kind) != labels).sum() >= 2
        return
    noisy = same_twice_and_pure(lambda y, rng: label_noise(y, rate, rng, kind), labels, seed)
    assert noisy.dtype == labels.dtype
    wrong = noisy != labels
    assert wrong.sum() == n_wrong
    classes = np.unique(labels)
    assert set(noisy.tolist()) <= set(classes.tolist())
    if kind == "shuffle":
        assert Counter(noisy.tolist()) == Counter(labels.tolist())
    if kind == "pair":
        following = dict(zip(classes.tolist(), np.roll(classes, -1).tolist(), strict=True))
        assert all(b == following[a] for a, b in zip(labels[wrong].tolist(), noisy[wrong].tolist(), strict=True))


@given(st.lists(st.integers(0, 2), min_size=2, max_size=7), st.integers(1, 7))
def test_refused_shuffles_are_impossible(labels, n_wrong):
    """Against every permutation of every subset."""
    assume(n_wrong <= len(labels) and len(set(labels)) > 1)
    possible = any(
        all(a != b for a, b in zip(chosen, dealt, strict=True))
        for chosen in set(combinations(sorted(labels), n_wrong))
        for dealt in set(permutations(chosen))
    )
    with nullcontext() if possible else pytest.raises(ValueError, match="cannot shuffle"):
        label_noise(np.array(labels), n_wrong / len(labels), rng_of(0))


@pytest.mark.parametrize("kind", ["shuffle", "symmetric"])
def test_wrong_labels_are_spread_over_all_other_classes(kind):
    labels = np.repeat(np.arange(5), 400)
    moves = np.zeros((5, 5), dtype=int)
    chosen = np.zeros(len(labels), dtype=int)
    for seed in range(20):
        noisy = label_noise(labels, 0.5, rng_of(seed), kind)
        np.add.at(moves, (labels, noisy), 1)
        chosen += noisy != labels
    off_diagonal = moves[~np.eye(5, dtype=bool)]
    # 20 * 1000 wrong labels over 20 pairs: 1000 each, standard deviation about 31.
    assert off_diagonal.min() > 850
    assert off_diagonal.max() < 1150
    # Each sample is wrong in 10 of 20 draws, standard deviation 2.2.
    assert abs(chosen.mean() - 10) < 1e-9
    assert abs(chosen.std() - 5**0.5) < 0.15


# Mistakes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y, rng: low_sample(y, 21, rng), "n_train is 21, and there are 20 samples"),
        (lambda y, rng: imbalance(y, 1.5, rng), "imbalance_rate must be from 0 to 1; got 1.5"),
        (lambda y, rng: label_noise(y, 0.05, rng), r"cannot shuffle 1 of 20 .* noise_rate=0.1 \(2 labels\)"),
    ],
)
def test_impossible_requests_give_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(np.repeat([0, 1], 10), rng_of(0))
    assert "\n" not in str(caught.value)


# Scenario


@given(
    label_arrays(min_classes=3, max_size=80),
    st.none() | st.integers(3, 10),
    st.none() | rates,
    st.none() | st.floats(0, 0.4),
    st.sampled_from(["symmetric", "pair"]),
    st.integers(0, 1000),
)
def test_record_of_a_scenario_is_true(labels, n_train, imbalance_rate, noise_rate, kind, seed):
    scenario = Scenario(n_train, imbalance_rate, noise_rate, kind, seed)
    try:
        result = scenario.apply(labels)
    except ValueError as error:
        assert "n_train is" in str(error)  # rare classes may leave too few
        assert n_train is not None
        return
    record = result.record
    assert json.loads(json.dumps(record)) == record == scenario.apply(labels).record
    truth = labels[result.indices]
    assert len(result.indices) == len(result.labels) == record["n_after"]
    assert n_train is None or record["n_after"] == n_train
    assert record["n_wrong_labels"] == (truth != result.labels).sum() == round((noise_rate or 0) * len(truth))
    assert record["effective_noise_rate"] == record["n_wrong_labels"] / len(truth)
    for name, values in (("class_counts_before", labels), ("class_counts_after", truth)):
        assert record[name] == {str(k): v for k, v in sorted(Counter(values.tolist()).items())}
    assert sum(record["label_counts_after"].values()) == len(truth)
    if imbalance_rate is None:
        assert record["scarce_classes"] is None
    else:
        assert len(record["scarce_classes"]) == len(np.unique(labels)) // 2
        if n_train is None:
            for k, size in record["class_counts_before"].items():
                left = max(1, round(imbalance_rate * size)) if int(k) in record["scarce_classes"] else size
                assert record["class_counts_after"][k] == left


def test_settings_do_not_redraw_each_other():
    labels = np.repeat(np.arange(8), 100)
    plain = Scenario(imbalance_rate=0.1, seed=5).apply(labels)
    noisy = Scenario(imbalance_rate=0.1, noise_rate=0.3, seed=5).apply(labels.astype(np.uint8))
    small = Scenario(n_train=60, imbalance_rate=0.1, seed=5).apply(labels)
    np.testing.assert_array_equal(plain.indices, noisy.indices)
    assert plain.record["scarce_classes"] == noisy.record["scarce_classes"] == small.record["scarce_classes"]
    assert set(small.indices.tolist()) < set(plain.indices.tolist())
    assert plain.record["sha256"] != noisy.record["sha256"]
    same, other = (Scenario(imbalance_rate=0.1, seed=seed).apply(labels.astype(np.int16)) for seed in (5, 6))
    assert same.record["sha256"] == plain.record["sha256"] != other.record["sha256"]  # whatever the integer type
    json.dumps(noisy.record)


# Held-out rows


def dataset_of(n=60):
    y = np.arange(n) % 3
    x = np.arange(n, dtype=np.uint8).reshape(n, 1, 1, 1)
    return Dataset(x, y, x[:6], y[:6], ("a", "b", "c"))


def test_prepare_gives_disjoint_rows_with_their_labels():
    dataset = dataset_of()
    prepared = prepare(dataset, Scenario(n_train=30, seed=1), 0.2, seed=4)
    assert (len(prepared.fit), len(prepared.held)) == (24, 6)
    assert not set(prepared.fit.tolist()) & set(prepared.held.tolist())
    np.testing.assert_array_equal(prepared.y_fit, dataset.y_train[prepared.fit])
    np.testing.assert_array_equal(prepared.y_held, dataset.y_train[prepared.held])
    assert np.bincount(prepared.y_held).tolist() == [2, 2, 2]
    record = json.loads(json.dumps(prepared.record))
    assert (record["n_fit"], record["n_held_out"], record["n_test"]) == (24, 6, 6)
    everything = prepare(dataset, Scenario(), 0, seed=0)
    assert (everything.fit.tolist(), everything.held.tolist()) == ([*range(60)], [])


def test_held_out_labels_are_as_noisy_as_the_others():
    dataset = dataset_of(600)
    prepared = prepare(dataset, Scenario(noise_rate=0.5, noise_kind="pair"), 0.5, seed=0)
    assert 0.4 < (prepared.y_held != dataset.y_train[prepared.held]).mean() < 0.6


# --- Stratified parts of a labelled set ------------------------------------------------------------------------------


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
