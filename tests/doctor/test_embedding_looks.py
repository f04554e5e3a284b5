"""What is measured on a sample of embeddings, against loops from the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esupcon.doctor.embedding import as_sample, confidence, effective_rank, mean_cosine, unit_rows


def mean_cosine_by_pairs(z: np.ndarray) -> float:
    values = []
    for i in range(len(z)):
        for j in range(len(z)):
            if i != j:
                lengths = np.linalg.norm(z[i]), np.linalg.norm(z[j])
                both_zero = lengths[0] == lengths[1] == 0
                values.append(float(both_zero) if min(lengths) == 0 else z[i] @ z[j] / (lengths[0] * lengths[1]))
    return float(np.mean(values))


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 3), st.sampled_from([1e-30, 1.0, 1e30]), st.integers(0, 99))
def test_mean_cosine_is_that_of_all_pairs(n: int, d: int, n_zero: int, scale: float, seed: int) -> None:
    z = np.random.default_rng(seed).normal(size=(n, d)) * scale
    z[: min(n_zero, n)] = 0
    assert mean_cosine(z) == pytest.approx(mean_cosine_by_pairs(z), abs=1e-9)


def test_dead_embeddings_count_as_all_alike() -> None:
    assert mean_cosine(np.zeros((8, 3))) == 1.0


@pytest.mark.parametrize(("n", "d"), [(40, 7), (7, 40)])
def test_effective_rank_is_the_exponential_of_the_entropy_of_singular_values(n: int, d: int) -> None:
    unit = unit_rows(np.random.default_rng(0).normal(size=(n, d)))
    values = np.linalg.svd(unit - unit.mean(0), compute_uv=False)
    values = values[values > 1e-9]
    p = values / values.sum()
    assert effective_rank(unit) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-6)


@pytest.mark.parametrize("n_classes", [3, 10])
def test_classes_at_the_corners_of_a_simplex_span_one_direction_less_than_they_are(n_classes: int) -> None:
    corners = np.eye(n_classes) - 1 / n_classes
    assert effective_rank(unit_rows(np.repeat(corners, 12, axis=0))) == pytest.approx(n_classes - 1)
    assert effective_rank(np.ones((5, n_classes))) == 0


def test_confidence_is_the_median_of_the_largest_probability() -> None:
    logits = np.random.default_rng(0).normal(size=(51, 4)) * 5
    expected = torch.tensor(logits).softmax(1).amax(1).median().item()
    assert confidence(logits) == pytest.approx(expected)


def test_tensors_and_arrays_give_the_same_sample_and_long_ones_are_thinned() -> None:
    z = torch.randn(1300, 4, requires_grad=True)
    y = torch.arange(1300) % 3
    sample = as_sample(z.to(torch.bfloat16), y, z)
    same = as_sample(z.detach().to(torch.bfloat16).float().numpy(), y.numpy(), z.detach().numpy())
    assert len(sample.z) == len(sample.y) == 512
    assert sample.logits is not None and same.logits is not None
    np.testing.assert_array_equal(sample.z, same.z)
    np.testing.assert_array_equal(sample.logits, same.logits)
    assert sample.accuracy == float((same.logits.argmax(1) == same.y).mean())


@pytest.mark.parametrize(
    ("z", "y", "logits", "message"),
    [
        (np.zeros((1, 3)), np.zeros(1), None, "two or more rows"),
        (np.zeros(4), np.zeros(4), None, "two or more rows"),
        (np.zeros((4, 3)), np.zeros(5), None, "labels one number a row"),
        (np.zeros((4, 3)), np.zeros(4), np.zeros((3, 2)), "logits must hold a row for each of the 4 rows"),
    ],
)
def test_samples_that_do_not_fit_are_refused(z: np.ndarray, y: np.ndarray, logits: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_sample(z, y, logits)
