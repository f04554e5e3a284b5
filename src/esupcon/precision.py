"""Full precision for code whose sums must not be rounded to bfloat16 or float16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_autocast(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Runs a function with autocast off, on the device type of its first tensor argument.

    Backward passes need it as much as forward passes: autograd runs them under the autocast state of the
    caller of `backward()`.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        device = "cpu"
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                device = value.device.type
                break
        if not torch.is_autocast_enabled(device):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return run
