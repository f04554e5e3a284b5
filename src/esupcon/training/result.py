"""Files of a run and its result. Needs no torch."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import esupcon
from esupcon._io import read_json_lines

RUN_FILE = "run.json"  # key, settings, precision and versions
RESULT_FILE = "result.json"  # written last: a folder that has it is finished
PREDICTIONS_FILE, HELD_OUT_FILE = "predictions.npz", "held_out.npz"  # logits and labels of test and held-out part
EMBEDDING_FILE = "embedding.npz"  # some test samples and the prototypes, to be drawn
HISTORY_FILE, TIMING_FILE = "history.jsonl", "timing.jsonl"  # one line per epoch
CHECKPOINT_INDEX, CHECKPOINTS = "checkpoint.json", "checkpoint-[0-9]*.pt"
MODEL_FOLDER, TENSORBOARD_FOLDER, LOCK_FILE = "model", "tensorboard", ".lock"
#: Everything that a run writes into its folder.
RUN_FILES = (
    *(RUN_FILE, RESULT_FILE, PREDICTIONS_FILE, HELD_OUT_FILE, EMBEDDING_FILE, HISTORY_FILE, TIMING_FILE),
    *(CHECKPOINT_INDEX, CHECKPOINTS, LOCK_FILE, f"{TENSORBOARD_FOLDER}/events.out.tfevents.*"),
    *(f"{MODEL_FOLDER}/{name}" for name in ("config.json", "model.safetensors", "examples.safetensors", "README.md")),
)
#: Seconds beyond which a recorded time is damaged.
MAX_SECONDS = 1e12
_PACKAGES = ("torch", "numpy", "scipy", "lightning-fabric", "safetensors", "pillow", "timm")


def versions() -> dict[str, str]:
    """Return the versions of esupcon, Python and the libraries that a result depends on."""
    found = {"esupcon": esupcon.__version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def training_seconds(folder: Path, *, reused_only: bool = False) -> float:
    """Return the seconds that all processes of a run spent on training steps, or only those of a reused first stage.

    Every process appends its epochs to one file; one that was killed may leave half a line.
    """
    lines = [line for line in read_json_lines(folder / TIMING_FILE) if line.get("reused") or not reused_only]
    found = [line.get("seconds") for line in lines]
    return round(sum(float(one) for one in found if isinstance(one, int | float) and 0 <= one < MAX_SECONDS), 3)
