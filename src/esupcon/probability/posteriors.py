"""Shim: moved to esupcon.probability.predictions; to be deleted."""

from esupcon.probability.predictions import log_softmax, softmax

__all__ = ["log_softmax", "softmax"]
