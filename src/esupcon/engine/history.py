"""The history of a run as JSON lines, one an epoch; what depends on the clock is kept in a file of its own.

`history.jsonl` holds what the run computed, so that two equal runs have equal histories, byte for byte;
`timing.jsonl` holds seconds and images per second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from esupcon.engine.tensorboard import Curves
from esupcon.files import write_bytes

HISTORY, TIMING = "history.jsonl", "timing.jsonl"


class History:
    """Records in memory and, where a folder is given, on disk."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.records: list[dict[str, Any]] = []
        self._curves: Curves | None = None

    def restore(self, records: list[dict[str, Any]], timing: list[dict[str, Any]] | None = None) -> None:
        """Goes back to the records of a checkpoint: lines that a killed process wrote after it are dropped.

        Of what took time all lines stay, because all of it was spent; `timing` replaces them.
        """
        self.records = list(records)
        for name, lines in ((HISTORY, self.records), (TIMING, timing)):
            if self.folder is not None and lines is not None:
                write_bytes(self.folder / name, "".join(map(_line, lines)).encode())

    def append(self, record: dict[str, Any], timing: dict[str, Any]) -> None:
        if self._curves is None:
            self._curves = Curves(self.folder, purge_step=len(self.records))
        self._curves.write(len(self.records), record, timing)
        self.records.append(record)
        if self.folder is not None:
            for name, value in ((HISTORY, record), (TIMING, timing)):
                with (self.folder / name).open("a", encoding="utf-8") as file:
                    file.write(_line(value))


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True) + "\n"
