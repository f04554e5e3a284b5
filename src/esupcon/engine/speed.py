"""Which precision is faster here, measured on the network itself."""

from __future__ import annotations

import copy
import time

import torch
from torch import Tensor

from esupcon.engine.bfloat16 import bfloat16_works
from esupcon.models import Network

# bfloat16 rounds; it must earn that with a clear gain.
WORTH_IT = 1.15


def choose_precision(network: Network, sample: Tensor, outputs: tuple[str, ...], device: torch.device) -> str:
    """ "bf16" (autocast) or "32", by one forward and backward pass of each, best of three."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "32"
    if device.type != "cpu" or sample.ndim != 4 or not bfloat16_works():
        return "32"
    full, half = (_seconds(network, sample, outputs, bf16=bf16) for bf16 in (False, True))
    return "bf16" if full > WORTH_IT * half else "32"


def channels_last(sample: Tensor) -> Tensor:
    """Images with their channels together in memory, as convolutions on CPUs and recent GPUs like them best."""
    return sample.contiguous(memory_format=torch.channels_last) if sample.ndim == 4 else sample


def _seconds(network: Network, sample: Tensor, outputs: tuple[str, ...], *, bf16: bool) -> float:
    trial = copy.deepcopy(network).train()  # a copy: the statistics of normalisation layers must not move
    trial.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack this form
    sample = channels_last(sample)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            values = trial.outputs(sample, outputs)
        torch.stack([value.float().square().sum() for value in values.values()]).sum().backward()
        best = min(best, time.perf_counter() - start)
    return best
