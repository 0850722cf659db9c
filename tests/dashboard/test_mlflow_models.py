"""Networks as MLflow models: logged at the end of a run, loaded, and served by MLflow."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import numpy as np
import pytest
from distributed import Client
from ports import free_port

import rescnet_dist as rd
from rescnet_dist import RescnetError
from rescnet_dist.dashboard import save_mlflow_model
from rescnet_dist.dashboard.mlflow_models import FLAVORS
from rescnet_dist.data import Images
from tests.conftest import Processes
from tests.export.networks import SMALL, make_images, make_network

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # from MLflow, SQLAlchemy and protobuf
    "ignore:.*Any type hint is inferred as AnyType:UserWarning",  # when MLflow is imported
)

Array = np.ndarray[Any, np.dtype[Any]]


def load_model(path: str) -> Any:
    """Load a model by MLflow, which warns when it is imported."""
    import mlflow.pyfunc

    return mlflow.pyfunc.load_model(path)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_model_predicts_what_the_network_does(tmp_path: Path, flavor: Any) -> None:
    """With a signature, an example, and no pickle."""
    network, images = make_network(SMALL, classes=["a", "b", "c"]), make_images()
    save_mlflow_model(network, tmp_path / "model", flavor=flavor)
    model = load_model(str(tmp_path / "model"))
    found = model.predict(images.astype(np.float32))
    scores = network.scores(Images(images))
    np.testing.assert_allclose(found["scores"], scores, rtol=0, atol=1e-4)
    np.testing.assert_allclose(
        found["probabilities"], network.probabilities(scores), rtol=0, atol=1e-4
    )
    assert list(found["label"]) == list(network.classes[scores.argmax(axis=1)])
    assert model.input_schema.inputs[0].shape == (-1, *network.image_shape)
    assert model.metadata.get_output_schema().input_names() == ["label", "probabilities", "scores"]
    assert model.metadata.load_input_example(str(tmp_path / "model")).shape[0] == 1
    assert not [path for path in tmp_path.rglob("*") if "pkl" in path.name]


def test_unknown_flavor_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(RescnetError, match=r"flavor='keras' is not valid. Use pyfunc or onnx"):
        save_mlflow_model(make_network(SMALL, depth=1), tmp_path / "m", flavor="keras")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_tracker_logs_the_network(client: Client, tmp_path: Path) -> None:
    """At the end of a run, at its chosen depth, as two models of the MLflow run."""
    images, labels = (array[:60] for array in rd.load_digits())
    images, uri = images[:, ::2, ::2], f"sqlite:///{tmp_path}/mlflow.db"
    from mlflow.tracking import MlflowClient  # which takes seconds

    reader = MlflowClient(tracking_uri=uri)
    experiment = reader.create_experiment("models", artifact_location=str(tmp_path / "artifacts"))
    spec = SMALL.replace(filters=4, max_layers=1)
    with rd.MLflowWriter("models", tracking_uri=uri, log_models=True) as writer:
        clf = rd.ResCNetClassifier(spec, store=tmp_path / "run", listeners=[writer])
        clf.fit(images, labels)
    (run,) = reader.search_runs([experiment])
    models = {model.name: model for model in reader.search_logged_models([experiment])}
    assert set(models) == {"network", "network-onnx"}
    for model in models.values():
        assert (model.status, model.source_run_id) == ("READY", run.info.run_id)
        loaded = load_model(model.artifact_location)
        scores = loaded.predict(images.astype(np.float32))["scores"]
        np.testing.assert_allclose(scores, clf.decision_function(images), rtol=0, atol=1e-4)


def post(url: str, body: Any) -> tuple[int, Any]:
    """Return the status and the answer to a request with JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow
def test_mlflow_serves_the_network(tmp_path: Path, started: Processes) -> None:
    """`mlflow models serve` answers the example, images, and refuses those of another shape."""
    network, images = make_network(SMALL), make_images()
    save_mlflow_model(network, tmp_path / "model")
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = ("models", "serve", "--env-manager", "local", "--host", "127.0.0.1")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    model = ("--model-uri", tmp_path / "model", "--port", port)
    process = started.start(sys.executable, "-m", "mlflow", *command, *model, PATH=path)

    def is_ready() -> bool:
        with suppress(URLError, OSError), urllib.request.urlopen(f"{url}/ping", timeout=5):
            return True
        return False

    started.wait_until(is_ready, process)
    example = (tmp_path / "model" / "serving_input_example.json").read_bytes()
    assert post(f"{url}/invocations", example)[0] == 200
    status, answer = post(f"{url}/invocations", {"inputs": images.tolist()})
    assert status == 200, answer
    scores = network.scores(Images(images))
    np.testing.assert_allclose(answer["predictions"]["scores"], scores, rtol=0, atol=1e-5)
    assert answer["predictions"]["label"] == scores.argmax(axis=1).tolist()
    status, answer = post(f"{url}/invocations", {"inputs": images[:, :5].tolist()})
    assert status == 400
    assert "does not match expected shape (-1, 14, 13, 2)" in answer["message"]
