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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: processes take whole files, and one that begins last keeps the others waiting."""
    items.sort(key=lambda item: item.get_closest_marker("reliability") is None)
