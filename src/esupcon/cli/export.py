"""`esupcon export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from esupcon.cli import options as shared
from esupcon.cli.output import answer, answer_json, complain

_FORMATS = ("onnx", "torch")


def export(
    model: shared.Model,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Ends in .onnx or .pt2; replaced if it is there.", show_default=False)
    ],
    output_format: Annotated[
        str, typer.Option("--format", help="onnx, for ONNX Runtime; torch, for torch.export.load.")
    ] = "onnx",
    opset: Annotated[int | None, typer.Option(help="Of ONNX.", show_default="18")] = None,
    as_json: shared.Json = False,
) -> None:
    """Write a classifier as one file that runs without esupcon.

    Input is a batch of any size of uint8 images (n, C, H, W), or of float32 rows of a table; preprocessing and
    calibration are inside, and the classes in the file's metadata. The file is compared with the model before it is
    kept.
    """
    if output_format not in _FORMATS:
        raise ValueError(f"--format must be {' or '.join(_FORMATS)}; got {output_format!r}.")
    if opset is not None and output_format != "onnx":
        raise ValueError("--opset is for --format onnx. Leave it out.")
    from esupcon.artifact import load_artifact  # noqa: PLC0415 - slow to import
    from esupcon.export import DEFAULT_OPSET, write_onnx, write_torch  # noqa: PLC0415
    from esupcon.pipeline.trained import MODEL_FOLDER  # noqa: PLC0415

    of_a_run = (model / MODEL_FOLDER).is_dir() and not (model / "config.json").exists()
    classifier = load_artifact(model / MODEL_FOLDER if of_a_run else model)
    if output_format == "onnx":
        exported = write_onnx(classifier, out, opset=DEFAULT_OPSET if opset is None else opset)
    else:
        exported = write_torch(classifier, out)
    if as_json:
        answer_json({"format": output_format, **exported.as_dict()})
    else:
        answer(f"{exported.path}: {exported.n_bytes:,} bytes, {classifier.config.n_classes} classes")
        if exported.difference is not None:
            answer(f"largest difference to the model: {exported.difference:.1e} on {exported.n_checked} inputs")
    if exported.difference is None:
        complain('the file was not checked: onnxruntime is missing. Install with: pip install "esupcon[onnx]"')
