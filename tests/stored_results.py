"""Results of runs: made without training, for tests of what reads them, and compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from esupcon._io import read_sealed_json
from esupcon.probability import CalibrationFigures, Figures
from esupcon.spec import RunSpec
from esupcon.training.result import Result

BOUNDS = (0.0, 1.0)


def figures(accuracy: float = 0.9, n: int = 10, per_class: Sequence[dict[str, Any]] = ()) -> Figures:
    values = {"accuracy": accuracy, "ece": 0.1, "nll": 0.5, "brier": 0.2}
    intervals = {f"{name}_interval": BOUNDS for name in values}
    classes = [{"precision": None, "probability": None, **one} for one in per_class]
    return Figures.model_validate({"n": n, "temperature": 1.0, **values, **intervals, "per_class": classes})


def make_result(
    spec: RunSpec,
    *,
    test: Figures | None = None,
    held_out: Figures | None = None,
    paper: CalibrationFigures | None = None,
    classes: Sequence[str] = ("a", "b"),
    findings: Sequence[Any] = (),
    batch_size: int = 64,
    **provenance: Any,
) -> Result:
    versions = {"esupcon": "0.2.0", "torch": metadata.version("torch"), "platform": "Linux"}
    counts = dict.fromkeys(classes, 5)
    scenario = {
        **{"settings": {}, "n_before": 10, "n_after": 10, "n_wrong_labels": 0, "effective_noise_rate": 0.0},
        **{
            f"{name}_counts_{when}": counts
            for name, when in (("class", "before"), ("class", "after"), ("label", "after"))
        },
        **{"scarce_classes": None, "sha256": "0" * 64},
    }
    preparation = {
        **{"scenario": scenario, "validation_fraction": 0.0, "validation_seed": 0, "n_fit": 10, "n_held_out": 0},
        **{"n_test": 10, "class_counts": list(counts.values())},
    }
    return Result.model_validate(
        {
            "key": spec.key,
            "run": spec,
            "precision_reason": "as asked for",
            "encoder": spec.train.encoder,
            "augmentation": "none",
            "batch_size": batch_size,
            "data": {
                **{"name": spec.source, "fingerprint": "0", "classes": classes, "input_shape": (1, 8, 8)},
                "n_skipped": 0,
            },
            "preparation": preparation,
            "metrics": {"test": test, "held_out": held_out},
            "calibration": {"paper": paper},
            "findings": list(findings),
            "provenance": {
                "command": "esupcon reproduce",
                "source": spec.source,
                "seconds": 1.0,
                "train_seconds": 1.0,
                "finished": "2026-01-02T03:04:05Z",
                "device": "cpu",
                "versions": versions,
                **provenance,
            },
        }
    )


def write_result(folder: Path, spec: RunSpec, *, accuracy: float = 0.9, **changes: Any) -> None:
    make_result(spec, test=figures(accuracy), **changes).write(folder)


def outcome(folder: Path) -> dict[str, Any]:
    """All that must be equal of two computations of one run: not when, where and how long."""
    found = read_sealed_json(folder / "result.json")
    del found["provenance"]
    for name in ("predictions.npz", "held_out.npz", "history.jsonl"):
        found[name] = (folder / name).read_bytes() if (folder / name).is_file() else None
    if (folder / "model").is_dir():
        config = read_sealed_json(folder / "model" / "config.json")
        del config["about"]["created"]
        weights = (folder / "model" / "model.safetensors").read_bytes()
        found["model"] = json.dumps(config), weights[8 + int.from_bytes(weights[:8], "little") :]
    return found
