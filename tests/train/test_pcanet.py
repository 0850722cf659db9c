"""Networks of the PCANet family, through Dask and the run store, against a slow NumPy PCANet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pcanet_oracle
import pytest
from distributed import Client
from models import assert_same_bits, read_model

import rescnet_dist as rd
from rescnet_dist.dashboard.report import make_report
from rescnet_dist.dashboard.view import StoredRun
from rescnet_dist.errors import SpecError, StoreError
from rescnet_dist.events import PassDone
from rescnet_dist.runs import describe_run
from rescnet_dist.store import RunStore
from rescnet_dist.train.verify import verify_run

CLASSES, COUNT, TRAIN = 3, 36, 24
FILTERS = [4, 3]
SPEC = rd.NetworkSpec(
    filters=FILTERS,
    filter_size=2,
    first_filter_size=3,
    bank="pca+each+center",
    minmax="images",
    concatenate=False,
    block=4,
    stride=2,
    levels=(2, 1),
    head="regress",
    max_layers=2,
    stop_at_zero_error=False,
)


def make_images(channels: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 8, 9, d) of waves under noise, and labels of 3 classes.

    Training images are from 0 to 1, so that their normalization changes nothing.
    """
    rng = np.random.default_rng(4)
    y, x = np.mgrid[:8, :9]
    labels = np.arange(COUNT) % CLASSES
    along, across, phase = (rng.uniform(0, high, (CLASSES, channels, 1, 1)) for high in (1, 1, 6))
    waves = np.cos(along * x + across * y + phase).transpose(0, 2, 3, 1)[labels]
    noise = rng.normal(size=(COUNT, 9, 9, channels))
    images = waves * rng.uniform(0.5, 1.5, (COUNT, 1, 1, 1)) + noise[:, 1:] + 0.7 * noise[:, :-1]
    low, high = images[:TRAIN].min(), images[:TRAIN].max()
    images = (images - low) / (high - low)
    return images.astype(np.float32), labels


def fit(spec: rd.NetworkSpec, store: Path, listeners: Any = (), **run: Any) -> rd.ResCNetClassifier:
    """Train on images of `make_images`, of which the last ones are held out."""
    images, labels = make_images()
    options = {"validation": 0, "keep_maps": "all", "chunk_images": 7, "accumulators": 2} | run
    clf = rd.ResCNetClassifier(spec, store=store, run=rd.RunSpec(**options), listeners=listeners)
    return clf.fit(images[:TRAIN], labels[:TRAIN], validation=(images[TRAIN:], labels[TRAIN:]))


def test_maps_equal_those_of_pcanet(tmp_path: Path, client: Any) -> None:
    """Filters of layer 2 are applied to each map, and patches have no mean."""
    clf = fit(SPEC, tmp_path / "run")
    run, images = RunStore.open(tmp_path / "run"), make_images()[0]
    expected = pcanet_oracle.stages(images, np.arange(COUNT) < TRAIN, (3, 2), FILTERS)
    for layer, reference in enumerate(expected, start=1):
        found = np.asarray(run.maps(layer)[...])
        assert found.shape == reference.shape
        np.testing.assert_allclose(found, reference, atol=1e-4 * np.abs(reference).max())
    bank = clf.network_.layers[1].bank
    assert np.count_nonzero(bank.filters.any(axis=(0, 1)).sum(axis=0) > 1) == 0


HASHED = SPEC.replace(
    heads="last", features={"name": "binary-hash", "bits": 3, "block": 4, "stride": 2}, ridge=3.0
)


@pytest.fixture(scope="module")
def hashed(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Any:
    """Return a classifier with binary hashing and one head, trained with two threads."""
    with Client(threads_cluster):
        yield fit(HASHED, tmp_path_factory.mktemp("hashed") / "run")


def test_features_equal_those_of_pcanet(hashed: rd.ResCNetClassifier) -> None:
    """Histograms of the codes of the three maps of each map of layer 1."""
    images = make_images()[0]
    (_, maps) = pcanet_oracle.stages(images, np.arange(COUNT) < TRAIN, (3, 2), FILTERS)
    expected = pcanet_oracle.hash_histograms(maps, 3, 4, 2)
    found = hashed.network_.features(images)
    assert found.shape == (COUNT, expected[0].size)
    assert np.array_equal(found, expected.reshape(COUNT, -1))


def test_only_the_last_layer_has_a_head(hashed: rd.ResCNetClassifier) -> None:
    """It is a ridge regression of the classes on the features of the last layer."""
    images, labels = make_images()
    network = hashed.network_
    assert [layer.head is None for layer in network.layers] == [True, False]
    assert [accuracy["layer"] for accuracy in hashed.accuracies_] == [2]
    features = network.features(images).astype(np.float64)
    expected = fit_ridge(features[:TRAIN], labels[:TRAIN], HASHED.ridge, features)
    np.testing.assert_allclose(network.scores(images), expected, atol=1e-3)
    accuracy = np.mean(expected[TRAIN:].argmax(axis=1) == labels[TRAIN:])
    assert hashed.accuracies_[0]["validation"] == pytest.approx(accuracy)
    with pytest.raises(SpecError, match=r"no layer before layer 2 predicts\. Use predict"):
        hashed.staged_predict(images[:2])


def fit_ridge(x: np.ndarray, labels: np.ndarray, ridge: float, new: np.ndarray) -> np.ndarray:
    """Return the scores of new features of a ridge regression on standardized features."""
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    inverse = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1), 0)
    z = (x - mean) * inverse
    covariance = z.T @ z / len(z)
    y = np.eye(CLASSES)[labels]
    ridged = covariance + ridge * np.mean(np.diag(covariance)) * np.eye(len(covariance))
    weights = np.linalg.solve(ridged, z.T @ (y - y.mean(axis=0)) / len(z))
    return (new - mean) * inverse @ weights + y.mean(axis=0)


def test_networks_with_one_head_are_saved_and_exported(
    hashed: rd.ResCNetClassifier, tmp_path: Path
) -> None:
    """Layers without a head are stored, loaded and exported with their filters only."""
    images, network = make_images()[0], hashed.network_
    network.save(tmp_path / "network.zip")
    loaded = rd.Network.load(tmp_path / "network.zip")
    assert loaded.layers[0].head is None
    assert np.array_equal(loaded.scores(images), network.scores(images))
    network.to_onnx(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (scores,) = session.run(["scores"], {"images": images})
    np.testing.assert_allclose(scores, network.scores(images), atol=1e-3)


def test_runs_with_one_head_are_described(hashed: rd.ResCNetClassifier) -> None:
    """Layers without a head have no accuracy, and no layers can be added."""
    url = hashed.run_url_
    description = describe_run(url)
    assert [layer["validation"] is None for layer in description["layers"]] == [True, False]
    assert description["depth"] == 2
    assert verify_run(url) == []
    report = make_report(url, pictures=True)
    assert report.evaluation is not None
    assert report.evaluation["accuracy"] == hashed.accuracies_[0]["validation"]
    assert StoredRun(url).view().depth == 2
    hashed.plot.accuracy()
    with pytest.raises(SpecError, match="only the last of the 2 layers"):
        rd.ResCNetClassifier.resume(url, max_layers=3)
    assert rd.ResCNetClassifier.resume(url).depth_ == 2


@pytest.mark.parametrize(
    ("maps", "stopped"),
    [
        ("memory", ("grow", 1)),
        ("store", ("survey", 0)),
        ("store", ("grow", 2)),
        pytest.param("memory", ("survey", 0), marks=pytest.mark.slow),
        pytest.param("memory", ("grow", 2), marks=pytest.mark.slow),
        pytest.param("store", ("grow", 1), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_resumed_runs_with_one_head_have_the_same_bits(
    hashed: rd.ResCNetClassifier, tmp_path: Path, client: Any, maps: str, stopped: Any
) -> None:
    """A network without its head cannot be used before."""

    def stop(event: Any) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == stopped:
            raise Stopped

    with pytest.raises(Stopped):
        fit(HASHED, tmp_path / "run", [stop], keep_maps="last", maps=maps)
    if stopped == ("grow", 1):
        with pytest.raises(StoreError, match="1 of 2 layers, of which only the last has a head"):
            rd.Network.load(tmp_path / "run")
    rd.ResCNetClassifier.resume(tmp_path / "run")
    assert_same_bits(read_model(tmp_path / "run"), read_model(hashed.run_url_))


class Stopped(KeyboardInterrupt):
    """Raised by a listener to stop a run."""


def test_one_head_is_planned() -> None:
    """Features are those of the last layer."""
    images, labels = make_images()
    forecast = rd.plan(images, labels, HASHED, measure=False)
    assert forecast.features == HASHED.architecture((8, 9, 2), CLASSES).feature_count(2)


def test_one_head_can_be_solved_by_conjugate_gradients(
    hashed: rd.ResCNetClassifier, tmp_path: Path, client: Any
) -> None:
    """With the features of the last layer only, for which it is meant."""
    clf = fit(HASHED.replace(solver="cg"), tmp_path / "run", keep_maps="last")
    images = make_images()[0]
    expected = hashed.network_.scores(images)
    np.testing.assert_allclose(clf.network_.scores(images), expected, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "ldanet",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("pcanet+", "dctnet", "randnet", "ccanet")
        ),
    ],
)
def test_presets_of_the_family_can_be_trained(name: str, tmp_path: Path, client: Any) -> None:
    """In small: they have other filters than PCANet."""
    filters = {"pcanet+": 4, "ccanet": [4, 4]}.get(name, [4, 2])
    spec = rd.NetworkSpec.preset(name).replace(
        **{"filters": filters, "filter_size": 3, "first_filter_size": 3, "solver": "exact"},
        **{"hash_bits": 2, "hash_block": 4, "hash_stride": 2, "hash_levels": (2, 1)},
    )
    clf = fit(spec, tmp_path / "run", keep_maps="last")
    images, labels = make_images()
    maps = 4 if name == "pcanet+" else 8
    assert clf.network_.layers[1].bank.filters.shape[3] == maps
    assert clf.score(images[:TRAIN], labels[:TRAIN]) > 0.6
