"""ONNX: a file for ONNX Runtime and its kin, in any language, on any device."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from esupcon.artifact import ArtifactConfig, Classifier
from esupcon.export.check import Run, checked, trial_inputs
from esupcon.export.deployed import OUTPUTS, capture, float32_copy, input_name
from esupcon.export.quiet import quiet
from esupcon.export.record import Exported, metadata, refuse_reweighted, usable_path
from esupcon.files import write_bytes

__all__ = ["DEFAULT_OPSET", "export_onnx", "write_onnx"]

#: The oldest that the exporter writes without conversion, and so the one most runtimes read.
DEFAULT_OPSET = 18
INSTALL = 'pip install "esupcon[onnx]"'
BATCH = "batch"
#: A protobuf message ends here; the graph beside the weights needs little.
_LARGEST_WEIGHTS = 2**31 - 2**24


def export_onnx(
    classifier: Classifier,
    path: str | os.PathLike[str],
    *,
    opset: int = DEFAULT_OPSET,
    samples: ArrayLike | None = None,
) -> Path:
    """Write the classifier as one ONNX file, for batches of any size.

    Input: ``images``, uint8 (batch, C, H, W), or ``rows``, float32 (batch, d), as they are: preprocessing is
    inside. Outputs: ``probabilities`` (batch, K), calibrated where the classifier is, and ``embedding``
    (batch, dim). The metadata hold the classes as JSON under ``classes``.

    The file is run by ONNX Runtime and compared with the classifier on random inputs, photographs and
    ``samples``; where they differ by more than 1e-4 nothing is written. A file that is there is replaced.
    """
    exported = write_onnx(classifier, path, opset=opset, samples=samples)
    if exported.difference is None:
        warnings.warn(f"{exported.path} was not checked: onnxruntime is missing. {INSTALL}", stacklevel=2)
    return exported.path


def write_onnx(
    classifier: Classifier,
    path: str | os.PathLike[str],
    *,
    opset: int = DEFAULT_OPSET,
    samples: ArrayLike | None = None,
) -> Exported:
    """`export_onnx`, with what the check found."""
    target = usable_path(Path(path), ".onnx")
    refuse_reweighted(classifier.config)
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"export to ONNX needs {' and '.join(missing)}. Install with: {INSTALL}")
    _check_opset(opset)
    ours = float32_copy(classifier)
    n_bytes = sum(tensor.nbytes for tensor in ours.network.state_dict().values())
    if n_bytes > _LARGEST_WEIGHTS:
        raise ValueError(f"one ONNX file holds less than 2 GB; the weights have {n_bytes:,} bytes. Export to torch.")
    inputs = trial_inputs(ours, samples)
    content = _onnx_bytes(ours, opset)
    difference = None
    if importlib.util.find_spec("onnxruntime") is not None:
        difference = checked(ours, _runtime(content, input_name(ours.config)), inputs)
    write_bytes(target, content)
    return Exported(target, len(content), difference, 0 if difference is None else len(inputs))


def _check_opset(opset: int) -> None:
    newest = importlib.import_module("onnx").defs.onnx_opset_version()
    if not isinstance(opset, int) or not DEFAULT_OPSET <= opset <= newest:
        raise ValueError(f"opset must be {DEFAULT_OPSET} to {newest}; got {opset!r}. {DEFAULT_OPSET} suits most.")


def _onnx_bytes(classifier: Classifier, opset: int) -> bytes:
    graph = capture(classifier)
    try:
        with quiet():
            program = torch.onnx.export(
                graph,
                (),
                input_names=[input_name(classifier.config)],
                output_names=list(OUTPUTS),
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            model: Any = program.model_proto
    except Exception as error:  # an operation of the user's own encoder that ONNX does not have, for one
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"encoder {classifier.config.encoder!r} cannot be written as ONNX ({type(error).__name__}: {reason}). "
            "Export to torch instead."
        ) from error
    written = {one.domain: one.version for one in model.opset_import}
    if written.get("") != opset:
        raise ValueError(f"this network cannot be written in opset {opset}, only in {written.get('')}. Pass that.")
    _describe(model, classifier.config)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _describe(model: Any, config: ArtifactConfig) -> None:
    """Our metadata for the exporter's, which holds the sources' paths on this machine; the batch by its name."""
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        del part.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
    for one in (*model.graph.value_info, *model.graph.initializer):
        del one.metadata_props[:]
    symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for one in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for side in one.type.tensor_type.shape.dim:
            if side.dim_param == symbol:
                side.dim_param = BATCH
    for key, value in metadata(config).items():
        model.metadata_props.add(key=key, value=value)


def _runtime(content: bytes, name: str) -> Run:
    with quiet():
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(batch: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        probabilities, embedding = session.run(list(OUTPUTS), {name: batch})
        return probabilities, embedding

    return run
