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
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

import esupcon
from esupcon._console import explained
from esupcon._io import write_bytes
from esupcon.classifier.classifier import Classifier
from esupcon.classifier.preprocessing import Rows, TablePreprocessing, read_images
from esupcon.models import Network

#: The oldest opset that the exporter writes without conversion, and so the one that most runtimes read.
DEFAULT_OPSET = 18
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
    """A file that was written. `difference` is its largest one to the classifier over `n_checked` inputs, in
    probabilities or in embeddings relative to their largest entry; None if the file could not be run."""

    path: Path
    n_bytes: int
    difference: float | None
    n_checked: int


def export_onnx(
    classifier: Classifier, path: str | os.PathLike[str], *, opset: int = DEFAULT_OPSET, samples: Any = None
) -> Exported:
    """Write a classifier as one ONNX file, for batches of any size.

    Input: ``images``, uint8 (batch, C, H, W), or ``rows``, float32 (batch, d), before preprocessing. Outputs:
    ``probabilities`` (batch, K), as `predict_proba` gives them, and ``embedding`` (batch, dim). The metadata hold the
    classes as JSON under ``classes``.

    ONNX Runtime, if installed, runs the file on random inputs, photographs and `samples`; if it differs from the
    classifier by more than 1e-4, nothing is written. An existing file is replaced.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"export to ONNX needs {' and '.join(missing)}. Install with: {INSTALL}")
    newest = importlib.import_module("onnx").defs.onnx_opset_version()
    if not isinstance(opset, int) or not DEFAULT_OPSET <= opset <= newest:
        raise ValueError(f"opset must be {DEFAULT_OPSET} to {newest}; got {opset!r}. {DEFAULT_OPSET} suits most.")
    return _export(classifier, Path(path), ".onnx", samples, lambda: _onnx(classifier, opset))


def export_torch(classifier: Classifier, path: str | os.PathLike[str], *, samples: Any = None) -> Exported:
    """Write a classifier as a .pt2 file: ``torch.export.load(path).module()`` maps a batch of any size to
    ``{"probabilities": ..., "embedding": ...}``.

    Input, outputs and check are those of `export_onnx`; the metadata are JSON among the extra files, under
    ``esupcon.json``.
    """
    return _export(classifier, Path(path), ".pt2", samples, lambda: _pt2(classifier))


def _export(
    classifier: Classifier, target: Path, ending: str, samples: Any, build: Callable[[], tuple[bytes, Run | None]]
) -> Exported:
    """Check the path, which is quick, then build the file, run it on trial inputs, and write it if it is right."""
    if target.suffix != ending:
        raise ValueError(f"the file's name must end in {ending}; got {target.name!r}. Pass {target.stem + ending!r}.")
    if target.is_dir() or not target.parent.is_dir():
        raise FileNotFoundError(f"{target} is no file in an existing folder. Pass another name, or create the folder.")
    inputs = trial_inputs(classifier, samples)
    content, run = build()
    difference = None if run is None else _compare(classifier, run, inputs)
    write_bytes(target, content)
    return Exported(target, len(content), difference, 0 if run is None else len(inputs))


# --- The graph -------------------------------------------------------------------------------------------------------


class Deployed(nn.Module):
    """A classifier in plain tensor operations, in float32: the steps of `predict_proba` and `transform`."""

    bias: Tensor

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.preprocessing = classifier.preprocessing.module()
        self.network: Network = copy.deepcopy(classifier.network).cpu().float().requires_grad_(False)
        self.network.projector = None  # used in training only
        self.temperature = classifier.calibration.temperature
        self.register_buffer("bias", torch.from_numpy(classifier.calibration.bias(classifier.n_classes)).float())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = self.network.outputs(self.preprocessing(x), ("embedding", "logits"))
        embedding, logits = found["embedding"], found["logits"]
        # Subtract the largest before the division: large logits over a small temperature overflow.
        shifted = (logits - logits.amax(1, keepdim=True)) / self.temperature
        return {"probabilities": (shifted + self.bias).softmax(1), "embedding": embedding}


def _graph(classifier: Classifier) -> torch.export.ExportedProgram:
    """Trace a classifier, for batches of any size."""
    dtype = torch.float32 if isinstance(classifier.preprocessing, TablePreprocessing) else torch.uint8
    example = torch.zeros(2, *classifier.preprocessing.input_shape, dtype=dtype)
    remedy = "Its forward must not branch on values or fix the size of the batch."
    with _explained(classifier, "cannot be traced to a graph", remedy), quiet(), torch.no_grad():
        batch = torch.export.Dim("batch")
        program = torch.export.export(Deployed(classifier).eval(), (example,), dynamic_shapes=({0: batch},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # holds paths of this machine
    return program


def _pt2(classifier: Classifier) -> tuple[bytes, Run]:
    graph, file = _graph(classifier), io.BytesIO()
    with quiet():
        torch.export.save(graph, file, extra_files={METADATA_FILE: json.dumps(_metadata(classifier))})
        file.seek(0)
        module = torch.export.load(file).module()

    def run(batch: Rows) -> Sequence[NDArray[np.float32]]:
        with quiet(), torch.inference_mode():
            found = module(torch.from_numpy(batch))
        return [found[name].numpy() for name in OUTPUTS]

    return file.getvalue(), run


def _onnx(classifier: Classifier, opset: int) -> tuple[bytes, Run | None]:
    name = "rows" if isinstance(classifier.preprocessing, TablePreprocessing) else "images"
    content = _onnx_bytes(classifier, name, opset)
    if importlib.util.find_spec("onnxruntime") is None:
        return content, None
    with quiet():
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return content, lambda batch: session.run(list(OUTPUTS), {name: batch})


def _onnx_bytes(classifier: Classifier, input_name: str, opset: int) -> bytes:
    graph, names = _graph(classifier), {"input_names": [input_name], "output_names": list(OUTPUTS)}
    # Fails for operations that ONNX does not have, and for 2 GB or more.
    with _explained(classifier, "cannot be written as ONNX", "Export to torch instead."), quiet():
        program: Any = torch.onnx.export(graph, (), **names, opset_version=opset, dynamo=True, verbose=False)  # type: ignore[arg-type]
        model = program.model_proto
        written = {one.domain: one.version for one in model.opset_import}.get("")
        if written != opset:
            raise ValueError(f"opset {opset} cannot express it, {written} can")
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
    """Return texts by name; all but names and versions are JSON. Nothing depends on the time."""
    about = classifier.about
    return {
        "esupcon_version": esupcon.__version__,
        "classes": json.dumps(classifier.classes_.tolist()),
        "preprocessing": json.dumps(classifier.preprocessing.model_dump(mode="json")),
        "calibration": json.dumps(classifier.calibration.model_dump(mode="json")),
        "encoder": "" if about is None else about.encoder,
        "method": "" if about is None else about.method,
    }


def _explained(classifier: Classifier, problem: str, remedy: str) -> contextlib.AbstractContextManager[None]:
    name = "the encoder" if classifier.about is None else f"encoder {classifier.about.encoder!r}"
    return explained(f"{name} {problem}", remedy)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, logging and printing inside: the exporters log too much, and what matters is raised."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# --- The check -------------------------------------------------------------------------------------------------------


def trial_inputs(classifier: Classifier, samples: Any = None) -> Rows:
    """Return rows to compare a file on: random ones, for images pieces of two photographs, and `samples`."""
    given, rng = classifier.preprocessing, np.random.default_rng(0)
    if isinstance(given, TablePreprocessing):
        centre, scale = given.centre_and_scale
        # Rounded to float32, the file's input: the check is of the file, not of that rounding.
        made: Rows = (centre + rng.standard_normal((16, len(centre))) * scale).astype(np.float32).astype(np.float64)
    else:
        noise = rng.integers(0, 256, (12, *given.input_shape), dtype=np.uint8)
        extremes = [np.full((1, *given.input_shape), level, np.uint8) for level in (0, 255)]
        photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
        made = np.concatenate([noise, *extremes, read_images(photographs, given.image_size, given.channels)])
    return made if samples is None else np.concatenate([made, given.rows(samples)])


def _compare(classifier: Classifier, run: Run, rows: Rows) -> float:
    """Return the largest difference between file and classifier; raise ValueError if it is above `TOLERANCE`."""
    logits, embedding = classifier.arrays(rows, "logits", "embedding")
    dtype = np.float32 if isinstance(classifier.preprocessing, TablePreprocessing) else np.uint8
    # One row alone, then as many together as bounded memory allows.
    size = max(1, min(7, 2**22 // math.prod(classifier.preprocessing.input_shape)))
    parts = [slice(0, 1), *(slice(start, start + size) for start in range(1, len(rows), size))]
    found = [run(np.ascontiguousarray(rows[part], dtype=dtype)) for part in parts]
    largest = 0.0
    for name, expected, got in zip(
        OUTPUTS, (classifier.probabilities(logits), embedding), zip(*found, strict=True), strict=True
    ):
        scale = max(1.0, float(np.abs(expected).max()))
        difference = float(np.abs(expected - np.concatenate(got)).max()) / scale
        if not difference <= TOLERANCE:  # NaN differs too
            raise ValueError(
                f"the exported graph differs from the classifier by {difference:.2g} in {name}, more than "
                f"{TOLERANCE:g}. No file was written. Causes: temperatures far below 0.1, features with a tiny "
                "deviation beside their mean, encoders that draw random numbers. Try the other format."
            )
        largest = max(largest, difference)
    return largest
