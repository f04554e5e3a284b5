"""What must be equal of two computations of one run."""

from __future__ import annotations

from pathlib import Path

from esupcon._io import read_sealed_json


def outcome(folder: Path) -> dict[str, object]:
    """All of a stored run but when, where and how long."""
    found: dict[str, object] = read_sealed_json(folder / "result.json")
    del found["provenance"]
    return found | {name: (folder / name).read_bytes() for name in ("history.jsonl", "predictions.npz")}
