"""Settings that hold for every test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Helpers that several test files share lie beside them.
sys.path.extend(str(Path(__file__).parent / folder) for folder in ("", "engine", "experiments"))

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
