"""Shim: moved to esupcon.data.augmentations; to be deleted."""

from esupcon.data.augmentations import AUGMENTATIONS as RECIPES

__all__ = ["RECIPES"]
