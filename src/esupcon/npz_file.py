"""Shim: moved to esupcon._io; to be deleted."""

from esupcon._io import NotPlainArrays, array_names, read_arrays

__all__ = ["NotPlainArrays", "array_names", "read_arrays"]
