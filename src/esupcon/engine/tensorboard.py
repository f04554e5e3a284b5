"""Curves for TensorBoard, where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CURVES = ("loss", "lr", "held_out_accuracy", "images_per_second")


class Curves:
    """Writes the numbers of every epoch below `folder/tensorboard`; does nothing where TensorBoard is missing."""

    def __init__(self, folder: Path | None, *, purge_step: int = 0) -> None:
        self._writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra that may be missing
        except ImportError:
            return
        # Steps that a killed process wrote after the checkpoint are taken back.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step)

    def write(self, step: int, record: dict[str, Any], timing: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for name in CURVES:
            value = record.get(name, timing.get(name))
            if value is not None:
                self._writer.add_scalar(f"stage{record['stage']}/{name}", value, step)
        self._writer.flush()
