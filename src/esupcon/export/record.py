"""What an exported file says about itself, and what is said about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import esupcon
from esupcon.artifact import ArtifactConfig

__all__ = ["Exported", "metadata", "refuse_reweighted", "usable_path"]


@dataclass(frozen=True)
class Exported:
    """A file that was written: ``difference`` is its largest one to the classifier over ``n_checked`` inputs, in
    probabilities or (relative to the largest entry, where that is above 1) embeddings; None where it was not run."""

    path: Path
    n_bytes: int
    difference: float | None
    n_checked: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "bytes": self.n_bytes,
            "difference": self.difference,
            "n_checked": self.n_checked,
        }


def metadata(config: ArtifactConfig) -> dict[str, str]:
    """Texts by name; all but the versions and names are JSON. Nothing depends on the clock."""
    return {
        "esupcon_version": esupcon.__version__,
        "classes": json.dumps(list(config.classes)),
        "preprocessing": json.dumps(config.preprocessing.model_dump(mode="json")),
        "calibration_temperature": json.dumps(config.calibration_temperature),
        "encoder": config.encoder,
        "method": config.method,
    }


def usable_path(path: Path, ending: str) -> Path:
    """Refused before the work, not after it."""
    if path.suffix != ending:
        raise ValueError(f"the file's name must end in {ending}; got {path.name!r}. Pass {path.stem + ending!r}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Pass the name of a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} needs an existing folder; {path.parent} is not one. Create it first.")
    return path


def refuse_reweighted(config: ArtifactConfig) -> None:
    """An estimator may multiply posteriors by class weights or new class shares, which the graph does not."""
    record = config.training.get("estimator")
    if not isinstance(record, dict):
        return
    weights = record.get("class_weight")
    weighted = isinstance(weights, list) and any(weight != 1 for weight in weights)
    if weighted or record.get("target_priors") is not None:
        cause = "a class_weight for each class" if weighted else "adapt_priors"
        raise ValueError(
            f"the estimator's probabilities are changed by {cause} after the network, which an exported file does not "
            "hold. Save the estimator without it, export that, and multiply the probabilities where they are used."
        )
