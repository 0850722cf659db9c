"""Networks as MLflow models: an ONNX model, and a pyfunc over the network's own Zarr file.

Neither has a pickle. MLflow loads a pyfunc by the module that its `MLmodel` file names, which is
this one: `_load_pyfunc` must stay here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Literal, get_args

import numpy as np

from rescnet_dist.data import Images
from rescnet_dist.errors import RescnetError
from rescnet_dist.export import label_constants
from rescnet_dist.network import BaseNetwork, load_network

Array = np.ndarray[Any, np.dtype[Any]]
Flavor = Literal["pyfunc", "onnx"]

FLAVORS: tuple[Flavor, ...] = get_args(Flavor)
EXAMPLE_SEED = 0  # of the random image that is the example of an input


class NetworkModel:
    """What MLflow predicts with.

    Parameters
    ----------
    network : Network or FusedNetwork
        The network.
    """

    def __init__(self, network: BaseNetwork) -> None:
        self.network = network

    def predict(
        self, model_input: Any, params: Mapping[str, Any] | None = None
    ) -> dict[str, Array]:
        """Compute labels, probabilities and scores, as the ONNX model does.

        Parameters
        ----------
        model_input : ndarray of shape (n, H, W, d)
            Images.
        params : mapping, optional
            Not used.

        Returns
        -------
        dict of str to ndarray
            `label` of shape (n,), `probabilities` and `scores` of shape (n, C).
        """
        scores = np.asarray(self.network.scores(Images(np.asarray(model_input))))
        return {
            "label": label_constants(self.network.classes)[scores.argmax(axis=1)],
            "probabilities": np.asarray(self.network.probabilities(scores), np.float32),
            "scores": scores,
        }


def _load_pyfunc(path: str) -> NetworkModel:
    """Load the model whose data are at a path; called by MLflow."""
    return NetworkModel(load_network(path).in_memory())


def save_mlflow_model(
    network: BaseNetwork,
    path: str | os.PathLike[str],
    *,
    flavor: Flavor = "pyfunc",
    model: Any = None,
) -> None:
    """Write a network as an MLflow model, with a signature and an example of its input.

    Parameters
    ----------
    network : Network or FusedNetwork
        The network.
    path : str or os.PathLike
        Local folder to write to, which must not exist or be empty.
    flavor : {"pyfunc", "onnx"}, default "pyfunc"
        A pyfunc over the network's own file, which needs this package to be served, or ONNX.
    model : mlflow.models.Model, optional
        MLflow's own record of the model, as for its `save_model` functions.

    Raises
    ------
    RescnetError
        If MLflow, or onnx for "onnx", is not installed, or the flavor is unknown.
    """
    if flavor not in FLAVORS:
        raise RescnetError(f"flavor={flavor!r} is not valid. Use {' or '.join(FLAVORS)}.")
    try:
        import mlflow.onnx
        import mlflow.pyfunc
    except ImportError as error:
        raise RescnetError(
            f"MLflow is not installed ({error}). Run pip install 'rescnet-dist[mlflow]'."
        ) from None
    described: dict[str, Any] = {
        "signature": _make_signature(network),
        "input_example": _make_example(network),
        "mlflow_model": model,
    }
    with tempfile.TemporaryDirectory() as folder:
        if flavor == "pyfunc":
            data = os.path.join(folder, "network.zip")
            network.save(data)
            mlflow.pyfunc.save_model(
                os.fspath(path),
                loader_module=__name__,
                data_path=data,
                pip_requirements=[f"rescnet-dist=={version('rescnet-dist')}"],
                **described,
            )
        else:
            file = os.path.join(folder, "network.onnx")
            network.to_onnx(file)
            import onnx  # `to_onnx` has checked that it is installed

            requirements = [f"{name}=={version(name)}" for name in ("onnx", "onnxruntime")]
            mlflow.onnx.save_model(
                onnx.load(file),
                os.fspath(path),
                pip_requirements=requirements,
                onnx_execution_providers=["CPUExecutionProvider"],
                **described,
            )


def log_mlflow_models(client: Any, experiment: str, run_id: str, network: BaseNetwork) -> None:
    """Log a network to an MLflow run: models `network`, a pyfunc, and `network-onnx`."""
    from mlflow.models import Model

    for flavor, name in (("pyfunc", "network"), ("onnx", "network-onnx")):
        logged = client.create_logged_model(experiment, name=name, source_run_id=run_id)
        record = Model(artifact_path=logged.artifact_location, model_id=logged.model_id)
        record.run_id = run_id
        status = "FAILED"
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, name)
                save_mlflow_model(network, path, flavor=flavor, model=record)  # type: ignore[arg-type]
                client.log_model_artifacts(logged.model_id, path)
            status = "READY"
        finally:
            client.finalize_logged_model(logged.model_id, status)


def _make_signature(network: BaseNetwork) -> Any:
    """Return MLflow's description of inputs and outputs."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    count, single = len(network.classes), np.dtype(np.float32)
    is_text = label_constants(network.classes).dtype.kind == "O"
    label = np.dtype(str) if is_text else np.dtype(np.int64)
    outputs = [
        TensorSpec(label, (-1,), "label"),
        TensorSpec(single, (-1, count), "probabilities"),
        TensorSpec(single, (-1, count), "scores"),
    ]
    images = Schema([TensorSpec(single, (-1, *network.image_shape))])
    return ModelSignature(images, Schema(outputs))


def _make_example(network: BaseNetwork) -> Array:
    """Return a random image (1, H, W, d) in the value range of the training images."""
    low, high = network.trained_range
    rng = np.random.default_rng(EXAMPLE_SEED)
    return rng.uniform(low, high, (1, *network.image_shape)).astype(np.float32)
