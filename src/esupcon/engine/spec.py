"""Shim: moved to esupcon.spec; to be deleted."""

from esupcon.spec import REFERENCE_BATCH, TrainSpec

__all__ = ["REFERENCE_BATCH", "TrainSpec"]
