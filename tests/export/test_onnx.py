"""Networks as ONNX files, in onnxruntime, against their own scores."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from distributed import Client

import rescnet_dist as rd
import rescnet_dist.model
from rescnet_dist import Network, NetworkSpec, ResCNetClassifier, RescnetError, SpecError
from rescnet_dist.data import Images
from rescnet_dist.export.onnx_file import DEFAULT_OPSET, MIN_OPSET
from rescnet_dist.model.features.binary_hash import BinaryHash
from rescnet_dist.model.features.covariance_root import CovarianceRoot
from rescnet_dist.model.features.first_order import FirstOrder
from rescnet_dist.model.features.second_order import SecondOrder
from tests.export.networks import IMAGE_SHAPE, SMALL, make_images, make_network

Array = np.ndarray[Any, np.dtype[Any]]

TOLERANCE = 1e-4  # of scores
CASES: dict[str, dict[str, Any]] = {
    "regress": {},
    "classify": {"head": "classify", "sigma": 2.0},
    "softmax": {"head": "classify", "probability": "softmax", "beta": 0.5},
    "towers": {"local_contrast": True},
    "pairs of a tower": {"local_contrast": True, "pairs": "tower"},
    "contrast": {"local_contrast": True, "contrast_sigma": 1.0, "contrast_floor": 0.5},
    "global contrast": {"bank": "pca@gcn", "gcn_floor": 0.1},
    "zca": {"bank": "pca:0.5@zca,dct:0.5"},
    "zca without global contrast": {"bank": "pca@zca", "zca_gcn": False, "zca_ridge": 1.0},
    "uneven towers": {"bank": "pca:0.3,dct:0.7@contrast"},
    "power, maximum": {"power": True},
    "power, mean": {"power": True, "pool": "mean"},
    "mean": {"pool": "mean"},
    "stride 1": {"stride": 1},
    "stride that does not divide the block": {"block": 5, "stride": 3},
    "stride of the block": {"stride": 6},
    "stride above the block": {"block": 3, "stride": 5},
    "filters per layer": {"filters": [6, 4, 5], "local_contrast": True},
    "maps only": {"concatenate": False},
    "filters on each map": {"filters": [3, 2], "bank": "pca+each", "max_layers": 3},
    "square tiles": {"block": 8, "stride": 4},
    "even cells": {"levels": (3, 1), "cells": "even"},
    "four levels": {"levels": (4, 3, 2, 1)},
    "one level": {"levels": (1,)},
    "z-scores of blocks": {"zscore": "block"},
    "rectify": {"rectify": True},
    "min-max of channels": {"minmax": "channel"},
    "half precision": {"store_dtype": "float16"},
    "features in half precision": {"feature_dtype": "float16"},
    "filter sizes": {"first_filter_size": 5, "filter_size": 2},
    "two extractors": {"features": (SecondOrder(block=6), SecondOrder(block=4, stride=3))},
    "first order": {"features": FirstOrder(levels=(3, 1))},
    "first order, absolute, mean": {"features": FirstOrder("absolute", pools="mean")},
    "first order, two halves": {"features": FirstOrder("soft-threshold", 0.1, levels=(2,))},
    "first order, signed": {"features": FirstOrder("none", pools="max", power=True)},
    "root": {"features": CovarianceRoot(block=6, stride=3)},
    "root, mean": {"features": CovarianceRoot(6, 2, 1, power=False, levels=(3,), pools="mean")},
    "hashing": {"features": BinaryHash(bits=3, block=5, stride=3)},
    "hashing, maximum": {"features": BinaryHash(bits=2, block=5, stride=2, levels=(3, 1))},
    "hashing, sum": {"features": BinaryHash(bits=6, block=4, levels=(2,), pool="sum")},
    "hashing and second order": {"features": (BinaryHash(bits=3), SecondOrder(block=6))},
    "first and second order": {"features": "second-order,first-order"},
}


def run(path: Path, images: Array) -> dict[str, Array]:
    """Return the outputs of an ONNX file for images, by name."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": images}), strict=True))


def assert_parity(network: Network, path: Path, images: Array, tolerance: float) -> None:
    """Assert that a file gives the scores of a network, and labels and probabilities of them."""
    outputs, scores = run(path, images.astype(np.float32)), network.scores(Images(images))
    np.testing.assert_allclose(outputs["scores"], scores, rtol=0, atol=tolerance)
    assert np.array_equal(outputs["label"], network.classes[outputs["scores"].argmax(axis=1)])
    probabilities = network.probabilities(outputs["scores"])
    np.testing.assert_allclose(outputs["probabilities"], probabilities, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_network(tmp_path: Path, case: str) -> None:
    """For images that are constant, in part or as a whole, too."""
    network = make_network(SMALL.replace(**CASES[case]))
    network.to_onnx(tmp_path / "net.onnx")
    # Maps or features may be rounded to the next number.
    half = "float16" in (network.spec.store_dtype, network.spec.feature_dtype)
    assert_parity(network, tmp_path / "net.onnx", make_images(), 1e-3 if half else TOLERANCE)


@pytest.mark.parametrize(
    "options",
    [
        {"bank": "pca:0.5,stacked-lda:0.5"},
        {"bank": "dct,gaussian,whitened-patches,lda+whiten=0.1"},
        {"head": "leave-one-out"},  # whose random signs are of no use in prediction
        {"head": "classify-leave-one-out"},
    ],
    ids=["learned", "more learners", "leave-one-out", "classify-leave-one-out"],
)
def test_trained_networks_are_exported(
    client: Client, tmp_path: Path, options: dict[str, str]
) -> None:
    """With labels as strings, and the probabilities of `predict_proba`."""
    X, y = rd.load_digits()
    X, y = X[:120, ::2, ::2], np.array([f"digit {label}" for label in y[:120]])
    spec = SMALL.replace(**options, max_layers=2, stop_at_zero_error=False)
    clf = ResCNetClassifier(spec).fit(X, y)
    clf.to_onnx(tmp_path / "net.onnx")
    assert_parity(clf.network_, tmp_path / "net.onnx", X, TOLERANCE)
    outputs = run(tmp_path / "net.onnx", X[:9].astype("f4"))
    assert outputs["label"].tolist() == list(clf.predict(X[:9]))
    assert clf.network_.calibration.temperature != 1
    np.testing.assert_allclose(outputs["probabilities"], clf.predict_proba(X[:9]), atol=1e-3)


def test_file_describes_itself(tmp_path: Path) -> None:
    """Inputs and outputs have names, shapes and types; classes and spec are metadata."""
    network = make_network(SMALL, depth=1, classes=["bee", "cat", "dog"])
    network.to_onnx(tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    described = {
        value.name: (value.shape, value.type)
        for value in (*session.get_inputs(), *session.get_outputs())
    }
    assert described == {
        "images": (["n", *IMAGE_SHAPE], "tensor(float)"),
        "label": (["n"], "tensor(string)"),
        "probabilities": (["n", 3], "tensor(float)"),
        "scores": (["n", 3], "tensor(float)"),
    }
    assert (model.producer_name, model.producer_version) == ("rescnet-dist", rd.__version__)
    assert [opset.version for opset in model.opset_import] == [DEFAULT_OPSET]
    metadata = {p.key: json.loads(p.value) for p in model.metadata_props}
    assert metadata["rescnet.classes"]["values"] == ["bee", "cat", "dog"]
    assert NetworkSpec.from_stored(metadata["rescnet.network"]) == network.spec
    assert metadata["rescnet.depth"] == 1
    assert metadata["rescnet.calibration"] == network.calibration.to_dict()
    assert metadata["rescnet.image_shape"] == list(IMAGE_SHAPE)


@pytest.mark.parametrize("opset", [MIN_OPSET, DEFAULT_OPSET])
def test_images_may_be_bytes(tmp_path: Path, opset: int) -> None:
    """They are converted in the graph, which has the operators of any opset from 18."""
    network, images = make_network(SMALL.replace(local_contrast=True)), make_images()
    network.to_onnx(tmp_path / "net.onnx", dtype="uint8", opset=opset)
    outputs = run(tmp_path / "net.onnx", images)
    np.testing.assert_allclose(outputs["scores"], network.scores(Images(images)), atol=TOLERANCE)


def test_any_number_of_images_can_be_run(tmp_path: Path) -> None:
    """Scores of an image do not depend on the batch."""
    network, images = make_network(SMALL), make_images(7).astype(np.float32)
    network.to_onnx(tmp_path / "net.onnx")
    scores = run(tmp_path / "net.onnx", images)["scores"]
    for size in (1, 3):
        part = run(tmp_path / "net.onnx", images[:size])["scores"]
        np.testing.assert_allclose(part, scores[:size], rtol=0, atol=1e-5)


def test_weights_can_be_in_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are above 2 GB, or on request; a second export replaces both files."""
    network, images = make_network(SMALL), make_images()
    path, data = tmp_path / "net.onnx", tmp_path / "net.onnx.data"
    network.to_onnx(path)
    whole = path.stat().st_size
    assert not data.exists()
    network.to_onnx(path, external_data=True)
    first = data.stat().st_size
    assert path.stat().st_size < whole - first / 2
    assert_parity(network, path, images, TOLERANCE)
    monkeypatch.setattr("rescnet_dist.export.onnx_file.MAX_ONNX_BYTES", 1000)
    network.to_onnx(path)
    assert data.stat().st_size == first
    assert_parity(network, path, images, TOLERANCE)
    network.to_onnx(path, external_data=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx"]


def test_failed_export_keeps_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of its files, and nothing else."""
    network, path = make_network(SMALL, depth=1), tmp_path / "net.onnx"
    network.to_onnx(path, external_data=True)

    def fail(_model: Any, partial: str, **_options: Any) -> None:
        Path(partial).write_bytes(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(onnx, "save_model", fail)
    with pytest.raises(RescnetError, match=r"net.onnx cannot be written: No space left on device"):
        network.to_onnx(path, external_data=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "net.onnx.data"]
    assert_parity(network, path, make_images(), TOLERANCE)


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (np.array([4, 9, 11], np.uint8), [4, 9, 11]),
        (np.array([0.5, 1.5, 2.5]), ["0.5", "1.5", "2.5"]),
        (np.array(["a", 3, None], object), ["a", "3", "None"]),
    ],
)
def test_labels_are_integers_or_strings(tmp_path: Path, classes: Array, labels: Any) -> None:
    """ONNX has no other labels that all runtimes can return."""
    network = make_network(SMALL, depth=1, classes=classes)
    network.to_onnx(tmp_path / "net.onnx")
    outputs = run(tmp_path / "net.onnx", make_images().astype(np.float32))
    expected = [labels[code] for code in outputs["scores"].argmax(axis=1)]
    assert outputs["label"].tolist() == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "int8"}, SpecError, r"dtype='int8' is not valid. Use float32 or uint8"),
        ({"opset": 9}, SpecError, r"opset=9 is out of range. Use 18 to \d+"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Before anything is written."""
    with pytest.raises(error, match=message):
        make_network(SMALL, depth=1).to_onnx(tmp_path / "net.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_bad_paths_are_refused(tmp_path: Path) -> None:
    """URLs, folders that do not exist, and folders instead of files."""
    network = make_network(SMALL, depth=1)
    with pytest.raises(RescnetError, match=r"s3://b/net.onnx is a URL.*local paths"):
        network.to_onnx("s3://b/net.onnx")
    with pytest.raises(RescnetError, match=r"there is no folder .*missing. Create it"):
        network.to_onnx(tmp_path / "missing" / "net.onnx")
    with pytest.raises(RescnetError, match=r"cannot be written: Is a directory"):
        network.to_onnx(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_component_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    """With the method that it lacks."""

    @dataclass(frozen=True, slots=True)
    class Sums(rd.model.FeatureExtractor):
        """Sums of maps."""

        name: ClassVar[str] = "sums"

        def count(self, height: int, width: int, towers: tuple[int, ...]) -> int:
            return sum(towers)

        def __call__(self, maps: Array, towers: tuple[int, ...]) -> Array:
            return maps.sum(axis=(1, 2))

    network = make_network(SMALL.replace(features=(Sums(),)), depth=1)
    message = r"'sums' cannot be exported.*class Sums has no method to_onnx\(graph, maps"
    with pytest.raises(SpecError, match=message):
        network.to_onnx(tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
