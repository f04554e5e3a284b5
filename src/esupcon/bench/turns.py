"""Times that can be compared: contestants take turns, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch


def best_seconds(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best time of each over so many rounds, after one that warms caches and allocators."""
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}.")
    best = dict.fromkeys(contestants, float("inf"))
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            _wait_for_device()
            if turn:
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def _wait_for_device() -> None:
    """Kernels of a GPU are only queued when a call returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
