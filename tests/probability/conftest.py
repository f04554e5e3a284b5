from pathlib import Path

import pytest

from esupcon.probability import Predictions


@pytest.fixture(scope="session")
def cifar10() -> Predictions:
    """3,000 real logits of a small network on CIFAR-10 test images."""
    return Predictions.load(Path(__file__).parent / "fixtures" / "cifar10_logits.npz")
