"""The serving example: the HTTP service as a process, and the files for Triton and KServe."""

from __future__ import annotations

import io
import json
import re
import runpy
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import numpy as np
import onnxruntime
import pytest
import yaml
from PIL import Image
from ports import free_port
from schemas import check  # type: ignore[import-not-found]

import rescnet_dist as rd
from rescnet_dist.data import ImageInput, Images
from tests.conftest import Processes
from tests.export.networks import SMALL, make_images, make_network

FOLDER = Path(__file__).parents[2] / "deploy/serving"
SHAPE = (14, 13, 3)
CLASSES = ["bee", "cat", "dog"]
LIMITS = {"MAX_IMAGES": "7", "MAX_BODY_BYTES": "200000", "MAX_PHOTO_PIXELS": "10000"}
TRITON_TYPES = {
    "TYPE_FP32": "tensor(float)",
    "TYPE_STRING": "tensor(string)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_UINT8": "tensor(uint8)",
}


def make_served_network() -> rd.Network:
    """Return a network that knows that its images are resized color photos."""
    network = make_network(SMALL, classes=CLASSES, shape=SHAPE)
    return replace(network, input=ImageInput("uint8", SHAPE[:2], "color"))


def ask(url: str, body: bytes | None = None, kind: str | None = None) -> tuple[int, Any]:
    """Return the status and the JSON answer of a GET, or of a POST with a body."""
    request = urllib.request.Request(url, body, {"Content-Type": kind} if kind else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
    except (URLError, OSError):
        return 0, None


# the service --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(
    processes_in: Callable[[Path], AbstractContextManager[Processes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Yield the URL of a running service."""
    folder, port = tmp_path_factory.mktemp("service"), free_port()
    make_served_network().save(folder / "net.zip")
    with processes_in(folder) as started:
        address = ("--host", "127.0.0.1", "--port", port, "--app-dir", FOLDER)
        process = started.start(
            *(sys.executable, "-m", "uvicorn", *address, "service:app"),
            NETWORK=str(folder / "net.zip"),
            **LIMITS,
        )
        found = f"http://127.0.0.1:{port}"
        started.wait_until(lambda: ask(f"{found}/health/live")[0] == 200, process)
        started.wait_until(lambda: ask(f"{found}/health/ready")[0] == 200, process)
        yield found


def to_body(images: Any) -> bytes:
    """Return images as the body of a request."""
    return json.dumps({"images": np.asarray(images).tolist()}).encode()


def to_file(photo: Image.Image, form: str = "PNG") -> bytes:
    """Return a photo as a file."""
    buffer = io.BytesIO()
    photo.save(buffer, form)
    return buffer.getvalue()


def test_service_is_ready(url: str) -> None:
    """It says what it takes and answers with."""
    status, answer = ask(f"{url}/health/ready")
    assert (status, answer["image_shape"], answer["classes"]) == (200, list(SHAPE), CLASSES)


def test_arrays_are_predicted(url: str) -> None:
    """As by the network itself."""
    network, images = make_served_network(), make_images(shape=SHAPE)
    status, answer = ask(f"{url}/predict", to_body(images), "application/json")
    assert status == 200, answer
    scores = network.scores(Images(images))
    expected = network.probabilities(scores)
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-5)
    assert answer["label"] == [CLASSES[code] for code in scores.argmax(axis=1)]
    assert answer["classes"] == CLASSES
    assert "warning" not in answer


def test_values_on_another_scale_give_a_warning(url: str) -> None:
    """The client sees it, in each answer."""
    low, high = make_served_network().trained_range
    images = np.linspace(low, low + 1000 * (high - low), int(np.prod(SHAPE)))
    for _ in range(2):
        status, answer = ask(
            f"{url}/predict", to_body(images.reshape(1, *SHAPE)), "application/json"
        )
        assert status == 200, answer
        assert "Pass images on the same scale." in answer["warning"]


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_photos_are_predicted(url: str, form: str) -> None:
    """Of any size, as by the network itself."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    file = to_file(Image.fromarray(pixels), form)
    status, answer = ask(f"{url}/predict", file, f"image/{form.lower()}")
    assert status == 200, answer
    found = make_served_network().predict_image(Image.open(io.BytesIO(file)))
    assert (answer["label"], answer["classes"]) == ([found.label], CLASSES)
    np.testing.assert_allclose(answer["probabilities"][0], found.probabilities, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "kind", "status", "message"),
    [
        (b"{", "application/json", 400, "The body is not JSON"),
        (b"[]", "application/json", 422, 'has no images. Send {"images": …} with an array'),
        (b'{"images": ["a"]}', "application/json", 422, "images is not an array of numbers"),
        (b'{"images": [[1], [1, 2]]}', "application/json", 422, "not an array of numbers"),
        (b'{"images": [1' + b"0" * 400 + b"]}", "application/json", 422, "not an array of numbers"),
        (b"[" * 100_000, "application/json", 400, "The body is not JSON"),
        (to_body([[1.0]]), "application/json", 422, "has shape (1, 1). Send"),
        (to_body(np.zeros((0, *SHAPE))), "application/json", 422, "has shape (0,)"),
        (to_body(np.full((1, *SHAPE), np.nan)), "application/json", 422, "not finite"),
        (to_body(np.zeros((8, *SHAPE))), "application/json", 413, "8 images. Send at most 7"),
        (b" " * 200_001, "application/json", 413, "more than 200000 bytes. Send less"),
        (b"no image", "image/png", 422, "The body is not a PNG, JPEG or WebP image."),
        (b"", "image/jpeg", 422, "The body is not a PNG, JPEG or WebP image."),
        (to_file(Image.new("RGB", (20, 20)))[:50], "image/png", 422, "The image cannot be read"),
        (to_file(Image.new("RGB", (20, 20)), "GIF"), "image/gif", 422, "not a PNG, JPEG or WebP"),
        (to_file(Image.new("RGB", (101, 100))), "image/png", 413, "101×100 pixels, more than"),
        (
            b"x",
            "text/plain",
            415,
            "The Content-Type is text/plain. Send application/json, image/png",
        ),
        (b"x", " ", 415, "The request has no Content-Type. Send application/json, image/png"),
    ],
    ids=[
        *(
            "no JSON",
            "no object",
            "text",
            "ragged",
            "huge",
            "nested",
            "shape",
            "none",
            "NaN",
            "many",
            "large",
        ),
        *("no image", "empty image", "truncated image", "GIF", "large photo", "type", "no type"),
    ],
)
def test_bad_requests_are_refused(
    url: str, body: bytes, kind: str, status: int, message: str
) -> None:
    """With what to do, and the service goes on."""
    found, answer = ask(f"{url}/predict", body, kind)
    assert (found, message in answer["detail"]) == (status, True), answer
    assert ask(f"{url}/health/live")[0] == 200


@pytest.mark.slow
def test_service_without_its_network_is_not_ready(started: Processes, tmp_path: Path) -> None:
    """The probes fail, with the reason."""
    port = free_port()
    started.start(
        *(sys.executable, "-m", "uvicorn", "--port", port, "--app-dir", FOLDER, "service:app"),
        NETWORK=str(tmp_path / "missing.zip"),
    )
    live = f"http://127.0.0.1:{port}/health/live"
    started.wait_until(lambda: ask(live)[0] == 500)
    assert "missing.zip" in ask(live)[1]["detail"]
    assert ask(f"http://127.0.0.1:{port}/health/ready")[0] == 503


# Triton and KServe --------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "classes"), [("float32", CLASSES), ("uint8", [3, 5, 8])])
def test_triton_repository_describes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, classes: Any
) -> None:
    """Names, types and shapes are those of the ONNX file, without the batch."""
    make_network(SMALL, depth=1, classes=classes).save(tmp_path / "net.zip")
    arguments = (tmp_path / "net.zip", tmp_path / "models", "--dtype", dtype)
    monkeypatch.setattr(sys, "argv", ["triton.py", *map(str, arguments)])
    runpy.run_path(str(FOLDER / "triton.py"), run_name="__main__")
    text = (tmp_path / "models/rescnet/config.pbtxt").read_text()
    tensors = r'name: "(\w+)" data_type: (\w+) dims: \[ ([\d, ]+) \]( reshape: \{ shape: \[ \] \})?'
    described = {
        name: (TRITON_TYPES[kind], [] if scalar else [int(side) for side in dims.split(",")])
        for name, kind, dims, scalar in re.findall(tensors, text)
    }
    session = onnxruntime.InferenceSession(tmp_path / "models/rescnet/1/model.onnx")
    values = (*session.get_inputs(), *session.get_outputs())
    assert described == {value.name: (value.type, value.shape[1:]) for value in values}
    assert text.count("{") == text.count("}")
    assert re.search(r"^max_batch_size: [1-9]\d*$", text, re.MULTILINE)


def read_manifests(name: str) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all((FOLDER / "kubernetes" / name).read_text()))


def test_manifests_of_the_service_are_valid() -> None:
    """By the schemas of Kubernetes; probes and ports are those of the service."""
    documents = read_manifests("service.yaml")
    for document in documents:
        check(document)
    pod = documents[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    port = container["command"][container["command"].index("--port") + 1]
    assert [str(entry["containerPort"]) for entry in container["ports"]] == [port]
    source = (FOLDER / "service.py").read_text()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert f'@app.get("{container[probe]["httpGet"]["path"]}")' in source
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["requests"] == container["resources"]["limits"]
    generated = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    (config,) = generated["configMapGenerator"]
    assert pod["volumes"][0]["configMap"]["name"] == config["name"]
    assert all((FOLDER / name).exists() for name in (*config["files"], *generated["resources"]))


def test_manifest_of_kserve_is_complete() -> None:
    """Its fields are those of KServe's v1beta1; the pod's part is valid by Kubernetes' schema."""
    (document,) = read_manifests("kserve.yaml")
    assert (document["apiVersion"], document["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    predictor = dict(document["spec"].pop("predictor"))
    assert not document["spec"]
    model = predictor.pop("model")
    assert 1 <= predictor.pop("minReplicas") <= predictor.pop("maxReplicas")
    assert model.pop("modelFormat") == {"name": "onnx", "version": "1"}
    assert (model.pop("runtime"), model.pop("protocolVersion")) == ("kserve-tritonserver", "v2")
    assert model.pop("storageUri").startswith("s3://")
    container = {"name": "model", "image": "triton", **model}
    spec = {**predictor, "containers": [container]}
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
