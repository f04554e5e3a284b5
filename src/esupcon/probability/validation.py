"""Shim: moved to esupcon.probability.predictions; to be deleted."""

from esupcon.probability.predictions import as_priors

__all__ = ["as_priors"]
