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
from collections.abc import Callable, Iterator
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
from esupcon._io import write_bytes
from esupcon.classifier.classifier import Classifier
from esupcon.classifier.preprocessing import ImagePreprocessing, Rows, TablePreprocessing
from esupcon.models import Network

#: The oldest opset that the exporter writes without conversion, and so the one that most runtimes read.
DEFAULT_OPSET = 18
INSTALL = 'pip install "esupcon[onnx]"'
OUTPUTS = ("probabilities", "embedding")
#: Name of the metadata among the extra files of a .pt2 file.
METADATA_FILE = "esupcon.json"
#: Largest difference to the classifier with which a file is kept.
TOLERANCE = 1e-4
#: A protobuf message is smaller than 2 GB; the graph beside the weights needs little.
MAX_ONNX_BYTES = 2**31 - 2**24

#: From a batch of the file's input to probabilities and embedding.
Run = Callable[[Rows], tuple[NDArray[np.float32], NDArray[np.float32]]]


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
    target = _check_path(Path(path), ".onnx")
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"export to ONNX needs {' and '.join(missing)}. Install with: {INSTALL}")
    newest = importlib.import_module("onnx").defs.onnx_opset_version()
    if not isinstance(opset, int) or not DEFAULT_OPSET <= opset <= newest:
        raise ValueError(f"opset must be {DEFAULT_OPSET} to {newest}; got {opset!r}. {DEFAULT_OPSET} suits most.")
    n_bytes = sum(4 * tensor.numel() for tensor in classifier.network.state_dict().values())
    if n_bytes > MAX_ONNX_BYTES:
        raise ValueError(f"one ONNX file holds less than 2 GB; the weights have {n_bytes:,} bytes. Export to torch.")
    inputs = trial_inputs(classifier, samples)
    content = _onnx_bytes(classifier, opset)
    difference = None
    if importlib.util.find_spec("onnxruntime") is not None:
        difference = _compare(classifier, _onnx_runtime(content, _input_name(classifier)), inputs)
    write_bytes(target, content)
    return Exported(target, len(content), difference, 0 if difference is None else len(inputs))


def export_torch(classifier: Classifier, path: str | os.PathLike[str], *, samples: Any = None) -> Exported:
    """Write a classifier as a .pt2 file: ``torch.export.load(path).module()`` maps a batch of any size to
    ``{"probabilities": ..., "embedding": ...}``.

    Input, outputs and check are those of `export_onnx`; the metadata are JSON among the extra files, under
    ``esupcon.json``.
    """
    target = _check_path(Path(path), ".pt2")
    inputs = trial_inputs(classifier, samples)
    graph, file = _graph(classifier), io.BytesIO()
    with quiet():
        torch.export.save(graph, file, extra_files={METADATA_FILE: json.dumps(_metadata(classifier))})
        file.seek(0)
        module = torch.export.load(file).module()

    def run(batch: Rows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with quiet(), torch.inference_mode():
            found = module(torch.from_numpy(batch))
        return found["probabilities"].numpy(), found["embedding"].numpy()

    difference = _compare(classifier, run, inputs)
    write_bytes(target, file.getvalue())
    return Exported(target, file.getbuffer().nbytes, difference, len(inputs))


# --- The graph -------------------------------------------------------------------------------------------------------


class Deployed(nn.Module):
    """A classifier in plain tensor operations, in float32: the steps of `predict_proba` and `transform`."""

    bias: Tensor

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        network: Network = copy.deepcopy(classifier.network).cpu().float().requires_grad_(False)
        self.preprocessing = classifier.preprocessing.module()
        self.encoder = network.encoder
        self.head = network.head
        self.temperature = classifier.calibration.temperature
        self.register_buffer("bias", torch.from_numpy(classifier.calibration.bias(classifier.n_classes)).float())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        embedding = self.encoder(self.preprocessing(x))
        logits = self.head(embedding)
        # Subtract the largest before the division: large logits over a small temperature overflow.
        shifted = (logits - logits.amax(1, keepdim=True)) / self.temperature
        return {"probabilities": (shifted + self.bias).softmax(1), "embedding": embedding}


def _graph(classifier: Classifier) -> torch.export.ExportedProgram:
    """Trace a classifier, for batches of any size."""
    table = isinstance(classifier.preprocessing, TablePreprocessing)
    example = torch.zeros(2, *classifier.preprocessing.input_shape, dtype=torch.float32 if table else torch.uint8)
    try:
        with quiet(), torch.no_grad():
            batch = torch.export.Dim("batch")
            program = torch.export.export(Deployed(classifier).eval(), (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # whatever a custom encoder or the tracer raises
        raise ValueError(
            f"{_encoder(classifier)} cannot be traced to a graph ({_first_line(error)}). "
            "Its forward must not branch on values or fix the size of the batch."
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # holds paths of this machine
    return program


def _onnx_bytes(classifier: Classifier, opset: int) -> bytes:
    graph = _graph(classifier)
    try:
        with quiet():
            program = torch.onnx.export(
                graph,
                (),
                input_names=[_input_name(classifier)],
                output_names=list(OUTPUTS),
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            model: Any = program.model_proto
    except Exception as error:  # such as an operation of a custom encoder that ONNX does not have
        raise ValueError(
            f"{_encoder(classifier)} cannot be written as ONNX ({_first_line(error)}). Export to torch instead."
        ) from error
    written = {one.domain: one.version for one in model.opset_import}
    if written.get("") != opset:
        raise ValueError(f"this network cannot be written in opset {opset}, only in {written.get('')}. Pass that.")
    # Replace the exporter's metadata, which hold paths of this machine, and name the size of the batch.
    graph_parts = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    for part in (model, model.graph, *model.graph.node, *model.graph.initializer, *graph_parts):
        del part.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
    symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for part in graph_parts:
        for side in part.type.tensor_type.shape.dim:
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


def _input_name(classifier: Classifier) -> str:
    return "rows" if isinstance(classifier.preprocessing, TablePreprocessing) else "images"


def _encoder(classifier: Classifier) -> str:
    return "the encoder" if classifier.about is None else f"encoder {classifier.about.encoder!r}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _check_path(path: Path, ending: str) -> Path:
    """Check the path first: exporting takes a while."""
    if path.suffix != ending:
        raise ValueError(f"the file's name must end in {ending}; got {path.name!r}. Pass {path.stem + ending!r}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Pass the name of a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} needs an existing folder; {path.parent} is not one. Create it first.")
    return path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, logging and printing inside: the exporters log too much, and what matters is raised."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    nowhere = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# --- The check -------------------------------------------------------------------------------------------------------


def trial_inputs(classifier: Classifier, samples: Any = None) -> Rows:
    """Return rows to compare a file on: random ones, for images pieces of two photographs, and `samples`."""
    given, rng = classifier.preprocessing, np.random.default_rng(0)
    if isinstance(given, TablePreprocessing):
        centre, scale = given.centre_and_scale
        # Rounded to float32, the file's input: the check is of the file, not of that rounding.
        made: Rows = (centre + rng.standard_normal((16, len(centre))) * scale).astype(np.float32).astype(np.float64)
    else:
        noise = rng.integers(0, 256, (8, *given.input_shape), dtype=np.uint8)
        extremes = np.stack([np.full(given.input_shape, level, np.uint8) for level in (0, 255)])
        made = np.concatenate([noise, extremes, _photographs(given, rng)])
    return made if samples is None else np.concatenate([made, given.rows(samples)])


def _photographs(given: ImagePreprocessing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return each photograph whole and two random pieces of it, at the size of the classifier's input."""
    height, width = given.image_size
    pieces = []
    for photograph in load_sample_images().images:
        image = Image.fromarray(photograph).convert("L" if given.channels == 1 else "RGB")
        side = min(image.size) // 3
        corners = [[int(rng.integers(0, length - side)) for length in image.size] for _ in range(2)]
        boxes = [(0, 0, *image.size), *((left, top, left + side, top + side) for left, top in corners)]
        pieces += [np.asarray(image.resize((width, height), box=box)) for box in boxes]
    return np.stack(pieces).reshape(len(pieces), height, width, given.channels).transpose(0, 3, 1, 2)


def _compare(classifier: Classifier, run: Run, rows: Rows) -> float:
    """Return the largest difference between file and classifier; raise ValueError if it is above `TOLERANCE`."""
    found = classifier.outputs(rows, ("logits", "embedding"))
    probabilities = classifier.calibration.probabilities(found["logits"].double().cpu().numpy())
    embedding = found["embedding"].float().cpu().numpy()
    dtype = np.float32 if isinstance(classifier.preprocessing, TablePreprocessing) else np.uint8
    # One row alone, then as many together as bounded memory allows.
    size = max(1, min(7, 2**22 // math.prod(classifier.preprocessing.input_shape)))
    largest, scale = 0.0, max(1.0, float(np.abs(embedding).max()))
    for part in (slice(0, 1), *(slice(start, start + size) for start in range(1, len(rows), size))):
        theirs = run(np.ascontiguousarray(rows[part], dtype=dtype))
        ours = (probabilities[part], embedding[part] / scale)
        for name, expected, got in zip(OUTPUTS, ours, (theirs[0], theirs[1] / scale), strict=True):
            if got.shape != expected.shape:
                raise ValueError(
                    f"the exported graph gave {name} of shape {got.shape}; the classifier gives {expected.shape}. "
                    "No file was written. The encoder must treat every row alike."
                )
            difference = float(np.abs(expected - got).max())
            if not difference <= TOLERANCE:  # NaN differs too
                raise ValueError(
                    f"the exported graph differs from the classifier by {difference:.2g} in {name}, more than "
                    f"{TOLERANCE:g}. No file was written. Causes are temperatures far below 0.1, features with a tiny "
                    "deviation beside their mean, and encoders that draw random numbers. Try the other format."
                )
            largest = max(largest, difference)
    return largest


def _onnx_runtime(content: bytes, name: str) -> Run:
    with quiet():
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(batch: Rows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        probabilities, embedding = session.run(list(OUTPUTS), {name: batch})
        return probabilities, embedding

    return run
