"""Export of networks to other formats: ONNX."""

from rescnet_dist.export.onnx_file import DEFAULT_OPSET, INPUT_DTYPES, MIN_OPSET, write_onnx

__all__ = ["DEFAULT_OPSET", "INPUT_DTYPES", "MIN_OPSET", "write_onnx"]
