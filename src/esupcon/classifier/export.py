"""Export a classifier to one file that runs without esupcon: ONNX, or a .pt2 file of torch.export.

Preprocessing, calibration, class weights and adapted priors are part of the graph: pixels in, probabilities out.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import io
import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import esupcon
from esupcon._io import write_bytes
from esupcon.classifier.classifier import Classifier
from esupcon.classifier.preprocessing import Rows, TablePreprocessing
from esupcon.models import Network

#: The oldest opset that the exporter writes without conversion, and so the one that most runtimes read.
OPSET = 18
INSTALL = 'pip install "esupcon[onnx]"'
OUTPUTS = ("probabilities", "embedding")
#: Name of the metadata among the extra files of a .pt2 file.
METADATA_FILE = "esupcon.json"
#: Largest difference to the classifier with which a file is kept.
TOLERANCE = 1e-4

#: From a batch of the file's input to `OUTPUTS`.
Run = Callable[[Rows], Sequence[NDArray[np.float32]]]


@dataclass(frozen=True)
class Exported:
    """A file that was written. `difference` is its largest one to the classifier on random inputs, in probabilities or
    in embeddings relative to their largest entry; None if the file could not be run."""

    path: Path
    difference: float | None


def export_onnx(classifier: Classifier, path: str | os.PathLike[str]) -> Exported:
    """Write a classifier as one ONNX file, for batches of any size.

    Input: ``images``, uint8 (batch, C, H, W), or ``rows``, float32 (batch, d), before preprocessing. Outputs:
    ``probabilities`` (batch, K), as `predict_proba` gives them, and ``embedding`` (batch, dim). The metadata hold the
    classes as JSON under ``classes``.

    ONNX Runtime, if installed, runs the file on random inputs; if it differs from the classifier by more than 1e-4,
    nothing is written. An existing file is replaced.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"export to ONNX needs {' and '.join(missing)}. Install with: {INSTALL}")
    return _export(classifier, Path(path), ".onnx", _onnx)


def export_torch(classifier: Classifier, path: str | os.PathLike[str]) -> Exported:
    """Write a classifier as a .pt2 file: ``torch.export.load(path).module()`` maps a batch of any size to
    ``{"probabilities": ..., "embedding": ...}``.

    Input, outputs and check are those of `export_onnx`; the metadata are JSON among the extra files, under
    ``esupcon.json``.
    """
    return _export(classifier, Path(path), ".pt2", _pt2)


def _export(
    classifier: Classifier, target: Path, ending: str, build: Callable[[Classifier], tuple[bytes, Run | None]]
) -> Exported:
    """Check the path, which is quick, then build the file, run it on trial inputs, and write it if it is right."""
    if target.suffix != ending:
        raise ValueError(f"the file's name must end in {ending}; got {target.name!r}. Pass {target.stem + ending!r}.")
    if target.is_dir() or not target.parent.is_dir():
        raise FileNotFoundError(f"{target} is no file in an existing folder. Pass another name, or create the folder.")
    content, run = build(classifier)
    difference = None if run is None else _compare(classifier, run)
    write_bytes(target, content)
    return Exported(target, difference)


# --- The graph -------------------------------------------------------------------------------------------------------


class Deployed(nn.Module):
    """A classifier in plain tensor operations, in float32: the steps of `predict_proba` and `transform`."""

    bias: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        # In the type of the arrays: in float32 a feature of a table that is far from 0 would lose its digits.
        for name, array in zip(("centre", "scale"), classifier.preprocessing.centre_and_scale, strict=True):
            self.register_buffer(name, torch.tensor(array))
        self.network: Network = copy.deepcopy(classifier.network).cpu().float().requires_grad_(False)
        self.network.projector = None  # used in training only
        self.temperature = classifier.calibration.temperature
        self.register_buffer("bias", torch.from_numpy(classifier.calibration.bias(classifier.n_classes)).float())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = ((x.to(self.centre.dtype) - self.centre) / self.scale).float()
        found = self.network.outputs(x, ("embedding", "logits"))
        embedding, logits = found["embedding"], found["logits"]
        # Subtract the largest before the division: large logits over a small temperature overflow.
        shifted = (logits - logits.amax(1, keepdim=True)) / self.temperature
        return {"probabilities": (shifted + self.bias).softmax(1), "embedding": embedding}


def _graph(classifier: Classifier) -> torch.export.ExportedProgram:
    """Trace a classifier, for batches of any size."""
    dtype = torch.float32 if isinstance(classifier.preprocessing, TablePreprocessing) else torch.uint8
    example = torch.zeros(2, *classifier.preprocessing.input_shape, dtype=dtype)
    with _quiet("the encoder cannot be traced: its forward must not branch on values or fix the size of the batch"):
        batch = torch.export.Dim("batch")
        program = torch.export.export(Deployed(classifier).eval(), (example,), dynamic_shapes=({0: batch},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # holds paths of this machine
    return program


def _pt2(classifier: Classifier) -> tuple[bytes, Run]:
    graph, file = _graph(classifier), io.BytesIO()
    with _quiet("the graph cannot be saved"):
        torch.export.save(graph, file, extra_files={METADATA_FILE: json.dumps(_metadata(classifier))})
        file.seek(0)
        module = torch.export.load(file).module()

    def run(batch: Rows) -> Sequence[NDArray[np.float32]]:
        with torch.inference_mode():
            found = module(torch.from_numpy(batch))
        return [found[name].numpy() for name in OUTPUTS]

    return file.getvalue(), run


def _onnx(classifier: Classifier) -> tuple[bytes, Run | None]:
    name = "rows" if isinstance(classifier.preprocessing, TablePreprocessing) else "images"
    content = _onnx_bytes(classifier, name)
    if importlib.util.find_spec("onnxruntime") is None:
        return content, None
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return content, lambda batch: session.run(list(OUTPUTS), {name: batch})


def _onnx_bytes(classifier: Classifier, input_name: str) -> bytes:
    graph, names = _graph(classifier), {"input_names": [input_name], "output_names": list(OUTPUTS)}
    # Fails for operations that ONNX does not have, and for 2 GB or more.
    with _quiet("the encoder cannot be written as ONNX; export to torch instead"):
        program: Any = torch.onnx.export(graph, (), **names, opset_version=OPSET, dynamo=True, verbose=False)  # type: ignore[arg-type]
        model = program.model_proto
        # Replace the exporter's metadata, which hold paths of this machine, and name the size of the batch.
        values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
        for part in (model, model.graph, *model.graph.node, *model.graph.initializer, *values):
            del part.metadata_props[:]
        for node in model.graph.node:
            node.doc_string = ""
        symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
        for side in (side for value in values for side in value.type.tensor_type.shape.dim):
            if side.dim_param == symbol:
                side.dim_param = "batch"
        for key, value in _metadata(classifier).items():
            model.metadata_props.add(key=key, value=value)
        content: bytes = model.SerializeToString(deterministic=True)
    return content


def _metadata(classifier: Classifier) -> dict[str, str]:
    return {"esupcon_version": esupcon.__version__, "classes": json.dumps(classifier.classes_.tolist())}


@contextlib.contextmanager
def _quiet(problem: str) -> Iterator[None]:
    """Suppress warnings, logging and printing of the exporters, and make one ValueError of whatever they raise."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            with torch.no_grad():
                yield
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise ValueError(f"{problem} ({reason}).") from error
    finally:
        logging.disable(before)


# --- The check -------------------------------------------------------------------------------------------------------


def _compare(classifier: Classifier, run: Run) -> float:
    """Return the largest difference between file and classifier; raise ValueError if it is above `TOLERANCE`."""
    form, rng = classifier.preprocessing, np.random.default_rng(0)
    if isinstance(form, TablePreprocessing):
        centre, scale = form.centre_and_scale
        rows: Rows = (centre + rng.standard_normal((16, len(centre))) * scale).astype(np.float32)
    else:
        rows = rng.integers(0, 256, (14, *form.input_shape), dtype=np.uint8)
        rows[-2:] = np.array([0, 255]).reshape(2, 1, 1, 1)
    expected = classifier.arrays(rows, "logits", "embedding")
    expected[0] = classifier.probabilities(expected[0])
    # One row alone, then as many together as bounded memory allows.
    size = max(1, min(7, 2**22 // math.prod(form.input_shape)))
    parts = [slice(0, 1), *(slice(start, start + size) for start in range(1, len(rows), size))]
    found = [run(rows[part]) for part in parts]
    largest = 0.0
    for name, right, *batches in zip(OUTPUTS, expected, *found, strict=True):
        difference = float(np.abs(right - np.concatenate(batches)).max() / max(1.0, np.abs(right).max()))
        if not difference <= TOLERANCE:  # NaN differs too
            raise ValueError(
                f"the exported graph differs from the classifier by {difference:.2g} in {name}, more than "
                f"{TOLERANCE:g}. No file was written. Causes: temperatures far below 0.1, features with a tiny "
                "deviation beside their mean, encoders that draw random numbers. Try the other format."
            )
        largest = max(largest, difference)
    return largest
