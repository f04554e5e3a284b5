"""Shim: moved to esupcon.spec; to be deleted."""

from esupcon.spec import TrainSpec

__all__ = ["TrainSpec"]
