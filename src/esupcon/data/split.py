"""Shim: moved to esupcon._split; to be deleted."""

from esupcon._split import Indices, n_per_class_split, stratified_split

__all__ = ["Indices", "n_per_class_split", "stratified_split"]
