"""Every reader of the package, by name, as a function of the bytes in a file."""

from __future__ import annotations

from data_readers import data_readers
from grid_readers import grid_readers
from harness import Reader
from model_readers import model_readers

READERS: dict[str, Reader] = {**dict(data_readers()), **dict(model_readers()), **dict(grid_readers())}
