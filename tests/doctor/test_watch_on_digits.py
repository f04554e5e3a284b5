"""Real training: healthy runs have no findings, and unhealthy ones the right ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from digit_runs import TERMS, digits, train


@pytest.mark.parametrize("method", TERMS)
def test_healthy_run_has_no_findings(method: str) -> None:
    outcome = train(method)
    assert outcome.accuracy > 0.9
    assert outcome.findings == []


@pytest.mark.parametrize("changes", [{"epochs": 2}, {"warmup": 0.0}, {"temperature": 0.2}, {"lr": 0.02}, {"seed": 1}])
def test_healthy_variations_have_no_findings(changes: dict[str, float]) -> None:
    assert train(**changes).findings == []  # type: ignore[arg-type]


def test_noisy_labels_have_no_findings() -> None:
    rng, labels = np.random.default_rng(0), digits()[1].clone()
    wrong = rng.choice(len(labels), int(0.4 * len(labels)), replace=False)
    labels[wrong] = torch.tensor(rng.integers(0, 10, len(wrong)))
    outcome = train(labels=labels)
    assert outcome.accuracy > 0.7
    assert outcome.findings == []


@pytest.mark.parametrize("method", ["esupcon", "supcon_tt", "spce"])
def test_learning_rate_of_100_is_found_early(method: str) -> None:
    outcome = train(method, lr=100.0, warmup=0.0, epochs=6)
    assert outcome.codes[0] == "lr-too-high"
    assert outcome.found[0][0] <= 20
    assert "learning rate 100" in outcome.findings[0].message
    assert "to 10," in outcome.findings[0].remedy


def test_diverging_cross_entropy_is_found_before_it_is_infinite() -> None:
    outcome = train("ce", lr=100.0)
    assert outcome.codes == ["lr-too-high", "loss-not-finite"]
    assert outcome.findings[1].severity == "error"


@pytest.mark.parametrize("method", ["esupcon", "supcon_tt", "ce_n"])
def test_temperature_of_a_thousandth_is_found_and_the_collapse_it_causes(method: str) -> None:
    outcome = train(method, temperature=1e-3)
    assert outcome.codes == ["temperature-too-low", "collapse"]
    assert "temperature 0.001" in outcome.findings[0].message
    assert "Raise the temperature (now 0.001)" in outcome.findings[1].remedy
    assert outcome.found[0][0] == 1


@pytest.mark.parametrize("method", ["esupcon", "supcon_tt"])
def test_collapse_at_a_hundredth_is_blamed_on_the_temperature(method: str) -> None:
    (finding,) = train(method, temperature=0.01).findings
    assert finding.code == "collapse"
    assert "Raise the temperature (now 0.01) to 0.16" in finding.remedy


@pytest.mark.parametrize("method", ["esupcon", "supcon_tt", "spce", "ce_n"])
def test_temperature_of_fifty_is_the_only_finding_at_the_first_step(method: str) -> None:
    outcome = train(method, temperature=50.0, epochs=6)
    assert outcome.codes == ["temperature-too-high"]
    assert outcome.findings[0].severity == "warning"
    assert outcome.found[0][0] == 1


@pytest.mark.parametrize("method", ["esupcon", "ce"])
def test_learning_rate_that_is_far_too_low_is_found(method: str) -> None:
    outcome = train(method, lr=1e-6)
    assert outcome.codes == ["stuck"]
    assert "Try a learning rate of 1e-05 instead of 1e-06" in outcome.findings[0].remedy


def test_temperature_does_not_matter_to_a_linear_head() -> None:
    assert train("ce", temperature=50.0, epochs=3).findings == []
