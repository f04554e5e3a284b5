import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esupcon.probability import (
    combine_posteriors,
)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 6), st.integers(2, 5))
def test_rules_equal_their_definitions(seed: int, n_tables: int, n: int, n_classes: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(n_classes), size=(n_tables, n))
    w, priors = rng.random(n_tables) + 0.1, rng.dirichlet(np.full(n_classes, 3.0))
    by_sum = combine_posteriors(list(p), "sum", weights=w)
    by_product = combine_posteriors(list(p), "product", weights=w, priors=priors)
    for i in range(n):
        mixed = [sum(w[r] * p[r][i, k] for r in range(n_tables)) / w.sum() for k in range(n_classes)]
        np.testing.assert_allclose(by_sum[i], mixed, atol=1e-12)
        product = [priors[k] ** (1 - w.sum()) * np.prod(p[:, i, k] ** w) for k in range(n_classes)]
        np.testing.assert_allclose(by_product[i], np.array(product) / sum(product), atol=1e-9)


def test_long_products_do_not_underflow() -> None:
    combined = combine_posteriors([np.array([[1e-9, 1 - 1e-9], [0.4, 0.6]])] * 200)
    np.testing.assert_allclose(combined.sum(axis=1), 1.0)
    assert (combined[:, 1] > 0.999).all()


def test_probability_zero_excludes_a_class_unless_its_weight_is_zero() -> None:
    p, q = [[0.0, 0.4, 0.6]], [[0.9, 0.05, 0.05]]
    assert combine_posteriors([p, q])[0, 0] == 0.0
    assert combine_posteriors([p, q], weights=[0, 1])[0, 0] == pytest.approx(0.9)
    with pytest.raises(ValueError, match="must be positive for some class; got 0 at row 0"):
        combine_posteriors([[[0.0, 1.0]], [[1.0, 0.0]]])


P = np.array([[0.5, 0.5]])


@pytest.mark.parametrize(
    ("tables", "keywords", "says"),
    [
        ([], {}, "got shapes []"),
        ([P, np.array([[0.2, 0.3, 0.5]])], {}, "got shapes [(1, 2), (1, 3)]"),
        ([P, 2 * P], {}, "posteriors[1] must sum to 1"),
        ([P], {"rule": "mean"}, "rule 'mean'"),
        ([P, P], {"weights": [1.0]}, "weights must be 2 non-negative numbers"),
        ([P, P], {"weights": [1.0, -1.0]}, "weights must be 2"),
        ([P, P], {"weights": [0.0, 0.0]}, "not all 0"),
        ([P, P], {"weights": [np.nan, 1.0]}, "weights must be 2"),
        ([P], {"priors": [1.0, 0.0]}, "priors must be positive in a product; got 0 at class 1"),
    ],
)
def test_impossible_input_is_refused(tables, keywords, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # the message is compared below
        combine_posteriors(tables, **keywords)
    assert says in str(caught.value)
