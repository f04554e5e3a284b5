"""Shim: moved to esupcon._contrast; to be deleted."""

from esupcon._contrast import class_sums, row_products, unit_rows

__all__ = ["class_sums", "row_products", "unit_rows"]
