"""Shim: moved to esupcon.doctor.watch; to be deleted."""

from esupcon.doctor.watch import LOSSES

__all__ = ["LOSSES"]
