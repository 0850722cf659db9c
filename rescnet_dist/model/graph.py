"""What components need to write themselves as ONNX operators."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from rescnet_dist.kernels.arrays import Array

# Types of tensors, as ONNX numbers them
FLOAT = 1
HALF = 10
DOUBLE = 11


class OnnxGraph(Protocol):
    """A graph of ONNX operators that components add theirs to.

    Tensors are known by names. Operators are those of opset 18 and later; see the ONNX operator
    reference.
    """

    def add(self, operator: str, *inputs: str | Array | np.generic, **attributes: Any) -> str:
        """Add an operator with one output.

        Parameters
        ----------
        operator : str
            Type of the operator, such as "Relu".
        *inputs : str, ndarray or numpy scalar
            Names of the tensors that the operator reads; arrays are constants of the graph, which
            keep their dtype.
        **attributes : int, float, str or list
            Attributes of the operator.

        Returns
        -------
        str
            Name of the output.
        """


def ints(*values: int) -> Array:
    """Return integers as the array (m,) that shapes, axes and indices of operators need."""
    return np.array(values, np.int64)
