"""Checkpoints of a run: checksummed, written beside and renamed, the last good one kept behind the newest."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from esupcon.files import quoted, read_json, write_bytes, write_json

INDEX = "checkpoint.json"
_OURS = re.compile(r"checkpoint-[0-9]{1,20}\.pt")  # any other name leads elsewhere, or nowhere


class Checkpoints:
    """The two newest checkpoints in a folder.

    `checkpoint.json` names them with their SHA-256, newest first; it is replaced only when a new checkpoint is
    whole on disk, so a process killed at any moment leaves at least one that can be read.
    """

    def __init__(self, folder: Path, key: str, log: Callable[[str], None]) -> None:
        self.folder, self.key, self.log = folder, key, log
        self._index = folder / INDEX

    def save(self, state: dict[str, Any], number: int) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        entry = {"file": f"checkpoint-{number:09d}.pt", "sha256": hashlib.sha256(content).hexdigest()}
        older = [known for known in self._entries() if known["file"] != entry["file"]][:1]
        write_bytes(self.folder / entry["file"], content)
        write_json(self._index, {"key": self.key, "checkpoints": [entry, *older]})
        self._remove_all_but({entry["file"], *(known["file"] for known in older)})

    def load(self, device: str | torch.device = "cpu") -> dict[str, Any] | None:
        """The newest state that is whole, or None where there is none."""
        for entry in self._entries():
            content = self._verified(entry)
            if content is None:
                continue
            try:
                state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
            except Exception as error:  # what is no checkpoint raises nearly anything, and runs nothing
                reason = str(error).partition("\n")[0]
                self.log(f"{self.folder / entry['file']} cannot be read ({reason}); going back to the one before.")
            else:
                return state
        return None

    def clear(self) -> None:
        """Removes the checkpoints of a finished run."""
        self._index.unlink(missing_ok=True)
        self._remove_all_but(set())

    def _entries(self) -> list[dict[str, str]]:
        if not self._index.exists():
            return []
        try:
            index = read_json(self._index)
            entries = [{"file": str(e["file"]), "sha256": str(e["sha256"])} for e in index["checkpoints"]]
            key = index["key"]
        except (ValueError, KeyError, TypeError):
            self.log(f"{self._index} is damaged; looking at the checkpoints themselves is not safe, starting over.")
            return []
        if key != self.key:
            raise ValueError(
                f"{self.folder} holds checkpoints of another run ({quoted(key)}, this one is {self.key}). "
                "Choose another folder, or pass overwrite to start over."
            )
        return [entry for entry in entries if _OURS.fullmatch(entry["file"])]

    def _verified(self, entry: dict[str, str]) -> bytes | None:
        path = self.folder / entry["file"]
        if not path.is_file():
            self.log(f"{path} is missing; going back to the one before.")
            return None
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            self.log(f"{path} is damaged (its checksum differs); going back to the one before.")
            return None
        return content

    def _remove_all_but(self, keep: set[str]) -> None:
        for path in self.folder.glob("checkpoint-*.pt"):
            if path.name not in keep:
                path.unlink(missing_ok=True)
        for leftover in self.folder.glob(".checkpoint*"):
            leftover.unlink(missing_ok=True)
