"""Predictions do not depend on how images are divided, nor on where layers are."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

from rescnet_dist import AugmentSpec, Network, NetworkSpec, ResCNetClassifier
from rescnet_dist.data import Images
from rescnet_dist.model import Architecture
from rescnet_dist.model.bank import Tower
from rescnet_dist.network.layer_cache import LAYER_MEMORY_SETTING
from rescnet_dist.network.scoring import Predictor
from rescnet_dist.store.location import Location

SPEC = NetworkSpec(
    filters=4,
    filter_size=3,
    block=4,
    stride=2,
    levels=(2, 1),
    head="regress",
    max_layers=3,
    stop_at_zero_error=False,
)
RANDOM = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (RANDOM.integers(0, 99, (60, 10, 10, 1)) + 50 * Y[:, None, None, None]).astype(np.uint8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved network of 3 layers."""
    path = tmp_path_factory.mktemp("networks") / "network"
    ResCNetClassifier(SPEC).fit(X, Y).save(path)
    return path


@pytest.fixture(scope="module")
def expected(saved: Path) -> np.ndarray[Any, Any]:
    """The scores of all images, of a network in memory, image by image."""
    network = Network.load(saved).in_memory()
    return np.concatenate([np.asarray(network.scores(Images(X[n : n + 1]))) for n in range(60)])


@pytest.mark.parametrize("slab", [1, 7, 1000])
@pytest.mark.parametrize("layer_memory", ["1 GB", "2 kB", 0])
def test_scores_do_not_depend_on_memory(
    saved: Path,
    expected: np.ndarray[Any, Any],
    slab: int,
    layer_memory: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of slabs, of layers, and of tasks."""
    network = Network.load(saved)
    image_bytes = 4 * 10 * 10 * 5
    monkeypatch.setattr("rescnet_dist.network.scoring.SLAB_BYTES", slab * image_bytes)
    monkeypatch.setattr("rescnet_dist.network.scoring.STREAM_TASK_BYTES", 13 * image_bytes)
    with dask.config.set({LAYER_MEMORY_SETTING: layer_memory}):
        assert network.predictor.streams_layers == (layer_memory != "1 GB")
        scores = network.scores(Images(X))
        lazy = network.scores(Images(da.from_array(X, (25, 5, 5, 1))))
        assert isinstance(lazy, da.Array)
        assert lazy.chunks == ((25, 25, 10), (3,))
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        np.testing.assert_allclose(lazy.compute(), expected, atol=1e-5)
        staged = np.asarray(network.staged_scores(Images(X)))
    np.testing.assert_allclose(staged[:, -1], expected, atol=1e-5)
    assert staged.shape == (60, 3, 3)


def test_filters_are_divided_between_towers_once(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each image: for one, it takes a fifth of the time."""
    made: list[int] = []
    make = Architecture._make_towers

    def count(architecture: Architecture, layer: int) -> tuple[Tower, ...]:
        made.append(layer)
        return make(architecture, layer)

    monkeypatch.setattr(Architecture, "_make_towers", count)
    network = Network.load(saved)
    for image in X[:5]:
        network.scores(image[np.newaxis])
    assert sorted(made) == [1, 2, 3]


def test_layers_and_images_are_read_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By any number of predictions with any number of tasks."""
    paths: list[str] = []
    read = Location.read_small
    monkeypatch.setattr(
        Location,
        "read_small",
        lambda self, path, names: paths.append(path) or read(self, path, names),
    )
    images: list[int] = []

    def load(block_info: Any = None) -> np.ndarray[Any, Any]:
        start = block_info[None]["array-location"][0][0]
        images.append(start)
        return X[start : start + 10]

    lazy = da.map_blocks(load, chunks=((10,) * 6, 10, 10, 1), dtype=np.uint8)
    network = Network.load(saved)
    network.scores(Images(lazy)).compute(scheduler="threads")
    network.scores(Images(X))
    network.scores(Images(X[:1]))
    assert sorted(path for path in paths if path.startswith("layers")) == [
        f"layers/{layer:04d}" for layer in (1, 2, 3)
    ]
    assert sorted(images) == list(range(0, 60, 10))


def test_chunks_are_divided_and_merged(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged only where a batch should be large, and never in parts."""
    network = Network.load(saved)
    monkeypatch.setattr(Predictor, "task_images", property(lambda self: 400))
    chunks = (170, 170, 170, 40, 1000, 3, 3)
    assert network.predictor.divide(chunks) == (170, 170, 170, 40, 334, 333, 333, 3, 3)
    with dask.config.set({LAYER_MEMORY_SETTING: 0}):
        assert network.predictor.divide(chunks) == (340, 210, 334, 333, 333, 6)


def test_copies_depend_on_the_image_alone(saved: Path) -> None:
    """Averages over copies are the same for all divisions into tasks."""
    network, augment = Network.load(saved), AugmentSpec(copies=2, shift=2)
    whole = network.scores(Images(X), augment)
    lazy = network.scores(Images(da.from_array(X, (7, -1, -1, -1))), augment)
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), whole, atol=1e-5)
    assert np.abs(np.asarray(whole) - np.asarray(network.scores(Images(X)))).max() > 1e-3


def test_layers_in_memory_are_sent_to_workers_once(
    saved: Path,
    expected: np.ndarray[Any, Any],
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with each graph that is computed at once. A lazy one can be computed anywhere."""
    monkeypatch.setattr(Predictor, "slab_images", property(lambda self: 20))
    monkeypatch.setattr("rescnet_dist.network.network.MIN_SCATTERED_BYTES", 0)
    network = replace(Network.load(saved).in_memory())
    lazy = da.from_array(X, (20, -1, -1, -1))
    keys = set()
    for _ in range(2):
        np.testing.assert_allclose(network.scores(Images(X)), expected, atol=1e-5)
        keys |= {key for key in client.who_has() if "Predictor" in str(key)}
    assert len(keys) == 1
    client.cancel(vars(network)["_scattered"][1], force=True)  # as a restart does
    np.testing.assert_allclose(network.scores(Images(X)), expected, atol=1e-5)
    scores = network.scores(Images(lazy))
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores.compute(), expected, atol=1e-5)
    np.testing.assert_allclose(scores.compute(scheduler="sync"), expected, atol=1e-5)


def test_images_in_memory_give_no_warning_of_large_graphs(
    saved: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are part of the graph on purpose."""
    monkeypatch.setattr(Predictor, "slab_images", property(lambda self: 20))
    network = Network.load(saved)
    codes = np.zeros(len(X), np.int64)
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 kB"}):
        with pytest.warns(UserWarning, match="large graph"):
            client.compute(da.from_array(X).sum()).result()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(np.asarray(network.scores(Images(X)))) == len(X)
            assert len(network.staged_correct(Images(X), codes)) == network.depth


def test_graphs_of_a_stored_network_have_no_task_in_common(saved: Path) -> None:
    """The predictor is part of each task: no graph can release a task that another one needs."""
    network, keys = Network.load(saved), []
    for images in (X, X + 1):
        scores = network.scores(Images(da.from_array(images, (20, -1, -1, -1))))
        assert isinstance(scores, da.Array)
        keys.append(set(scores.__dask_graph__()))
    assert not keys[0] & keys[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("head", ["classify", "leave-one-out", "kernel-ridge"])
def test_only_heads_that_compare_images_load_scipy(
    client: Client, tmp_path: Path, head: str
) -> None:
    """Tasks of other heads limit the threads of NumPy's BLAS only, so they must not use SciPy's."""
    spec = NetworkSpec(
        filters=4,
        filter_size=3,
        features=["second-order", "covariance-root", "first-order"],
        block=4,
        root_block=4,
        views=["image", "zca", "contrast"],
        bank="pca:0.5,pca:0.25@zca,pca:0.25@contrast",
        head=head,
        max_layers=1,
    )
    ResCNetClassifier(spec, store=tmp_path / "run").fit(X, Y)
    np.save(tmp_path / "images.npy", X[:9])
    script = f"""
import sys
import numpy as np
from rescnet_dist import AugmentSpec, Network
from rescnet_dist.network.scoring import compute_features, compute_staged_scores
predictor = Network.load({str(tmp_path / "run")!r}).predictor
images, augment = np.load({str(tmp_path / "images.npy")!r}), AugmentSpec(copies=1, flip=True)
assert "scipy.linalg" not in sys.modules
compute_staged_scores(images, predictor, augment)
compute_features(images, predictor, AugmentSpec(), layer=1)
print("scipy.linalg" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == f"{head == 'kernel-ridge'}\n", done.stderr
