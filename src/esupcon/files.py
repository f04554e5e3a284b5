"""Shim: moved to esupcon._io; to be deleted."""

from esupcon._io import (
    one_line as quoted,
)
from esupcon._io import (
    read_json,
    read_json_lines,
    read_sealed_json,
    write_bytes,
    write_json,
    write_sealed_json,
    write_whole,
)

__all__ = [
    "quoted",
    "read_json",
    "read_json_lines",
    "read_sealed_json",
    "write_bytes",
    "write_json",
    "write_sealed_json",
    "write_whole",
]
