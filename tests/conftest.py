"""Settings and fixtures for all tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest_plugins = ["assets"]
# Helpers that several test files share.
sys.path.extend(str(Path(__file__).parent / folder) for folder in ("", "data", "training", "experiments"))

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; tests that need it are skipped if it is absent."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    if _CHROMIUM is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()
