"""Networks as ONNX files: inputs, outputs, metadata, and weights in a second file if large."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from rescnet_dist.errors import RescnetError, SpecError
from rescnet_dist.export.graph import GraphBuilder, import_onnx
from rescnet_dist.export.layers import ExportedNetwork, add_mean_scores
from rescnet_dist.kernels.arrays import Array

INPUT_DTYPES = ("float32", "uint8")
DEFAULT_OPSET = 23  # of onnxruntime 1.22 and later
MIN_OPSET = 18  # from which axes of reductions are inputs
MAX_ONNX_BYTES = 2**31 - 2**24  # of a protocol buffer, with space for all but the weights
METADATA_PREFIX = "rescnet."


def write_onnx(
    path: str | os.PathLike[str],
    networks: Sequence[ExportedNetwork],
    classes: Array,
    *,
    temperature: float,
    mirror: bool,
    metadata: Mapping[str, Any],
    dtype: str,
    opset: int,
    external_data: bool | None,
) -> None:
    """Write one network, or the weighted mean of several, as an ONNX file; see `Network.to_onnx`.

    All have images of the same shape and the same classes. With `mirror`, scores are averaged over
    each image and its mirror image. metadata are JSON-serializable values by name.
    """
    onnx = import_onnx()
    if dtype not in INPUT_DTYPES:
        raise SpecError(f"dtype={dtype!r} is not valid. Use {' or '.join(INPUT_DTYPES)}.")
    newest = onnx.defs.onnx_opset_version()
    if not MIN_OPSET <= opset <= newest:
        raise SpecError(f"opset={opset} is out of range. Use {MIN_OPSET} to {newest}.")
    path = os.fspath(path)
    if "://" in path:
        raise RescnetError(f"{path} is a URL. ONNX files are written to local paths only.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise RescnetError(f"{path} cannot be written: there is no folder {folder}. Create it.")
    graph = GraphBuilder()
    scores = add_mean_scores(graph, "images", networks, mirror=mirror)
    shape = networks[0].architecture.image_shape
    model = _make_model(graph, scores, shape, classes, temperature, dtype, opset)
    onnx.helper.set_model_props(
        model, {f"{METADATA_PREFIX}{name}": json.dumps(value) for name, value in metadata.items()}
    )
    if external_data is None:
        external_data = graph.constant_bytes > MAX_ONNX_BYTES
    _save(model, path, external_data)


def _make_model(
    graph: GraphBuilder,
    scores: str,
    image_shape: tuple[int, int, int],
    classes: Array,
    temperature: float,
    dtype: str,
    opset: int,
) -> Any:
    """Return the model with input and outputs, given the name of the scores (n, C)."""
    onnx = import_onnx()
    helper, kinds = onnx.helper, onnx.TensorProto
    labels = label_constants(classes)
    label_kind = kinds.STRING if labels.dtype.kind == "O" else kinds.INT64
    graph.rename(scores, "scores")
    scaled = graph.add("Div", "scores", np.float32(temperature))
    graph.rename(graph.add("Softmax", scaled, axis=1), "probabilities")
    largest = graph.add("ArgMax", "scores", axis=1, keepdims=0)
    graph.rename(graph.add("Gather", labels, largest), "label")
    count = len(classes)
    input_kind = kinds.UINT8 if dtype == "uint8" else kinds.FLOAT
    images = helper.make_tensor_value_info("images", input_kind, ["n", *image_shape])
    outputs = [
        helper.make_tensor_value_info("label", label_kind, ["n"]),
        helper.make_tensor_value_info("probabilities", kinds.FLOAT, ["n", count]),
        helper.make_tensor_value_info("scores", kinds.FLOAT, ["n", count]),
    ]
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(
        helper.make_graph(graph.nodes, "rescnet", [images], outputs, graph.initializers),
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
        producer_name="rescnet-dist",
        producer_version=version("rescnet-dist"),
    )


def label_constants(classes: Array) -> Array:
    """Return the classes (C,) as int64 if they are integers or booleans, else as strings."""
    if classes.dtype.kind in "iub":
        return classes.astype(np.int64)
    return np.array([str(label) for label in classes.tolist()], object)


def _save(model: Any, path: str, external_data: bool) -> None:
    """Write a model under its name once it is complete; weights to PATH.data if external.

    If that fails, the files of an earlier export stay as they were.
    """
    onnx, data = import_onnx(), f"{path}.data"
    folder, name = os.path.split(os.path.abspath(path))
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as partial:
            written = os.path.join(partial, name)
            onnx.save_model(
                model, written, save_as_external_data=external_data, location=f"{name}.data"
            )
            if os.path.exists(f"{written}.data"):
                os.replace(f"{written}.data", data)
            elif os.path.exists(data):
                os.remove(data)  # of an earlier export
            os.replace(written, path)
    except OSError as error:
        reason = error.strerror or error
        raise RescnetError(f"{path} cannot be written: {reason}. Check the path.") from error
