"""A trained classifier as one file that needs neither esupcon nor Python to run: pixels in, probabilities out."""

from esupcon.export.onnx_file import DEFAULT_OPSET, export_onnx, write_onnx
from esupcon.export.record import Exported
from esupcon.export.torch_file import export_torch, write_torch

__all__ = ["DEFAULT_OPSET", "Exported", "export_onnx", "export_torch", "write_onnx", "write_torch"]
