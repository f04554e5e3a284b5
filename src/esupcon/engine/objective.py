"""Shim: moved to esupcon.training.objective; to be deleted."""

from esupcon.training.objective import LOSSES, BatchOutputs, register_loss, stage_loss

__all__ = ["LOSSES", "BatchOutputs", "register_loss", "stage_loss"]
