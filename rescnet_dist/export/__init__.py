"""Export of networks to other formats: ONNX."""

from rescnet_dist.export.graph import import_onnx
from rescnet_dist.export.layers import ExportedNetwork
from rescnet_dist.export.onnx_file import (
    DEFAULT_OPSET,
    INPUT_DTYPES,
    MIN_OPSET,
    label_constants,
    write_onnx,
)

__all__ = [
    "DEFAULT_OPSET",
    "INPUT_DTYPES",
    "MIN_OPSET",
    "ExportedNetwork",
    "import_onnx",
    "label_constants",
    "write_onnx",
]
