"""All randomness of a run derives from its seed and a place in the run, so nothing about it needs saving."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, *place: int | str) -> int:
    """A 63-bit seed for one place, for example (stage, epoch, step)."""
    text = "/".join(str(part) for part in (seed, *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def generator(seed: int, *place: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, *place))
