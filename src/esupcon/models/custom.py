"""Shim: moved to esupcon.models.encoders; to be deleted."""

from esupcon.models.encoders import CustomEncoder

__all__ = ["CustomEncoder"]
