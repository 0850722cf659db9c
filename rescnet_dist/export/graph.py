"""A graph of ONNX operators under construction: the `OnnxGraph` that components get."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rescnet_dist.errors import RescnetError
from rescnet_dist.kernels.arrays import Array


def import_onnx() -> Any:
    """Import the package onnx; raise RescnetError if it is not installed."""
    try:
        import onnx
    except ImportError:
        raise RescnetError("onnx is not installed. Run pip install 'rescnet-dist[onnx]'.") from None
    return onnx


class GraphBuilder:
    """Collects operators and constants, as protocol buffers of ONNX.

    Equal constants, such as indices that all layers use, are stored once.
    """

    def __init__(self) -> None:
        self._onnx = import_onnx()
        self._names: dict[str, int] = {}  # how many tensors of an operator there are
        self._constants: dict[bytes, str] = {}  # names by hash
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.constant_bytes = 0

    def add(self, operator: str, *inputs: str | Array | np.generic, **attributes: Any) -> str:
        """Add an operator with one output, and return its name; see `OnnxGraph`."""
        names = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        output = self._make_name(operator)
        node = self._onnx.helper.make_node(operator, names, [output], name=output, **attributes)
        self.nodes.append(node)
        return output

    def rename(self, tensor: str, name: str) -> None:
        """Give a tensor the name of an output of the graph."""
        self.nodes.append(self._onnx.helper.make_node("Identity", [tensor], [name], name=name))

    def _constant(self, value: Array | np.generic) -> str:
        """Return the name of a constant, which is added unless there is an equal one."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        key = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
        key.update(repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes())
        if key.digest() not in self._constants:
            name = self._make_name("constant")
            self.initializers.append(self._onnx.numpy_helper.from_array(array, name))
            self._constants[key.digest()] = name
            self.constant_bytes += array.nbytes
        return self._constants[key.digest()]

    def _make_name(self, kind: str) -> str:
        """Return a new name, such as Relu_3."""
        self._names[kind] = self._names.get(kind, 0) + 1
        return f"{kind}_{self._names[kind]}"
