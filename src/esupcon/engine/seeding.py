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


def seed_layers(seed: int, device: torch.device) -> None:
    """For layers that draw from torch's own generator, such as dropout in an encoder that the user brought.

    `torch.manual_seed` would format a stack trace for every kind of device that is absent: three a step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
