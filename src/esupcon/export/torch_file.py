"""torch.export: a .pt2 file that PyTorch runs without the code of the network."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from esupcon.artifact import Classifier
from esupcon.export.check import Run, checked, trial_inputs
from esupcon.export.deployed import OUTPUTS, capture, float32_copy
from esupcon.export.quiet import quiet
from esupcon.export.record import Exported, metadata, refuse_reweighted, usable_path
from esupcon.files import write_bytes

__all__ = ["METADATA_FILE", "export_torch", "write_torch"]

#: The name of the metadata among the extra files of a .pt2.
METADATA_FILE = "esupcon.json"


def export_torch(classifier: Classifier, path: str | os.PathLike[str], *, samples: ArrayLike | None = None) -> Path:
    """Write the classifier as a .pt2 file: ``torch.export.load(path).module()`` maps a batch of any size to
    ``{"probabilities": ..., "embedding": ...}``.

    Input and outputs are those of `export_onnx`, the metadata a JSON text among the extra files, under
    ``esupcon.json``. The file is loaded again and compared with the classifier as there, and not written where
    they differ.
    """
    return write_torch(classifier, path, samples=samples).path


def write_torch(classifier: Classifier, path: str | os.PathLike[str], *, samples: ArrayLike | None = None) -> Exported:
    """`export_torch`, with what the check found."""
    target = usable_path(Path(path), ".pt2")
    refuse_reweighted(classifier.config)
    ours = float32_copy(classifier)
    inputs = trial_inputs(ours, samples)
    graph = capture(ours)
    file = io.BytesIO()
    with quiet():
        torch.export.save(graph, file, extra_files={METADATA_FILE: json.dumps(metadata(ours.config))})
    difference = checked(ours, _reloaded(file), inputs)
    write_bytes(target, file.getvalue())
    return Exported(target, file.getbuffer().nbytes, difference, len(inputs))


def _reloaded(file: io.BytesIO) -> Run:
    file.seek(0)
    with quiet():
        module = torch.export.load(file).module()

    def run(batch: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with quiet(), torch.inference_mode():
            found = module(torch.from_numpy(batch))
        probabilities, embedding = (found[name].numpy() for name in OUTPUTS)
        return probabilities, embedding

    return run
