"""A user's own module as an encoder: its width is found by asking it, and nothing about it is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = ["CustomEncoder", "embedding_width"]


class CustomEncoder(nn.Module):
    """`module` with the width `dim` of what it gives. The module itself is trained, not a copy."""

    def __init__(self, module: nn.Module, dim: int) -> None:
        super().__init__()
        self.module = module
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.module(x)
        return embedding


def embedding_width(module: nn.Module, input_shape: tuple[int, ...]) -> int:
    """d of (2, *input_shape) -> (2, d), found by a dry run in eval mode that leaves no trace in the module."""
    name = type(module).__name__
    tensors = [*module.parameters(), *module.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        raise ValueError(
            f"encoder {name} has lazy layers whose shapes are not known yet. Run it once on a batch of shape "
            f"{(2, *input_shape)} before passing it."
        )
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))
    batch = torch.zeros(2, *input_shape, device=like.device, dtype=like.dtype)
    promise = f"encoder {name} must map a batch of shape {tuple(batch.shape)} to (2, dim)"
    try:
        with _left_as_found(module, like.device), torch.no_grad():
            out = module(batch)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{promise}; it raised {type(error).__name__} ({reason}). Check it against the shape of your data."
        ) from error
    if not isinstance(out, Tensor):
        raise ValueError(  # noqa: TRY004 - every mistake at the public edge is a ValueError
            f"{promise}; it gave {type(out).__name__}. Wrap it so that forward returns the pooled features."
        )
    if out.ndim != 2 or len(out) != 2 or out.shape[1] == 0 or not out.is_floating_point():
        remedy = "Pool and flatten its output, as in nn.Sequential(module, nn.AdaptiveAvgPool2d(1), nn.Flatten())."
        raise ValueError(f"{promise}; it gave {out.dtype} of shape {tuple(out.shape)}. {remedy}")
    return int(out.shape[1])


@contextmanager
def _left_as_found(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode inside; modes, buffers and random state are put back after."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        module.eval()
        try:
            yield
        finally:
            for part, training in modes:
                part.training = training
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
