"""Settings that hold for every test."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "esupcon",
    deadline=None,  # a shared machine may stall any single example
    derandomize=bool(os.environ.get("CI")),  # the same verdict for the same commit
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("esupcon")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
