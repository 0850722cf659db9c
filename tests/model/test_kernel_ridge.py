"""Test the head that compares images, through training, resume, prediction and saving."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, RunSpec, SpecError
from rescnet_dist.cluster import Workers
from rescnet_dist.errors import CorruptDataError, WorkersTooSmallError
from rescnet_dist.planning import Problem, make_plan
from tests.models import assert_same_bits, read_model

X, Y = rd.load_digits()
X, Y = X[:300, ::2, ::2], Y[:300]
SPEC = NetworkSpec(
    filters=6,
    block=7,
    levels=(2, 1),
    head="kernel-ridge",
    max_layers=3,
    learning_rate=0.5,
    stop_at_zero_error=False,
)


def train(
    folder: Path, spec: NetworkSpec = SPEC, augment: AugmentSpec | None = None, **run: object
) -> ResCNetClassifier:
    """Return a network, trained in a store."""
    options = RunSpec(**{"chunk_images": 70, "validation": 0.2} | run)  # type: ignore[arg-type]
    clf = ResCNetClassifier(spec, run=options, store=folder, augment=augment, random_state=0)
    return clf.fit(X, Y)


def test_predictions_are_the_scores_of_training(client: Client, tmp_path: Path) -> None:
    """Validation images have the scores that the network, loaded or not, predicts for them."""
    spec = SPEC.replace(store_dtype="float16")
    clf = train(tmp_path / "run", spec)
    held_out = ~zarr.open_array(tmp_path / "run" / "data" / "train", mode="r")[:]
    accuracy = clf.accuracies_[-1]
    predicted = clf.predict(X[held_out])
    assert (predicted == Y[held_out]).mean() == pytest.approx(accuracy["validation"])
    loaded = ResCNetClassifier.load(tmp_path / "run")
    scores = clf.decision_function(X)
    np.testing.assert_allclose(loaded.decision_function(X), scores, rtol=1e-5, atol=1e-6)
    assert accuracy["train"] < (predicted == Y[held_out]).mean() + 0.15
    assert clf.score(X, Y) > accuracy["train"] + 0.05  # which is that of images left out


def test_saved_and_pickled_networks_have_their_images(client: Client, tmp_path: Path) -> None:
    """They predict the same without the run, and have no corrections of its rows."""
    clf = train(tmp_path / "run", augment=AugmentSpec(copies=1, shift=1))
    scores = clf.decision_function(X[:20])
    clf.save(tmp_path / "saved.zip")
    pickled = pickle.dumps(clf.network_)
    (tmp_path / "run").rename(tmp_path / "moved")
    saved = ResCNetClassifier.load(tmp_path / "saved.zip")
    np.testing.assert_allclose(saved.decision_function(X[:20]), scores, rtol=1e-5, atol=1e-6)
    restored = pickle.loads(pickled).scores(X[:20])
    np.testing.assert_allclose(restored, scores, rtol=1e-5, atol=1e-6)
    head = saved.network_.layers[0].head
    assert head is not None
    assert head.arrays["corrections"].shape == (0, 10)
    assert len(head.arrays["weights"]) == 2 * 240


def test_maps_in_memory_and_in_the_store_give_the_same_bits(client: Client, tmp_path: Path) -> None:
    """Also with a validation image in another place, and after a resume."""
    train(tmp_path / "stored", maps="store")
    train(tmp_path / "memory", maps="memory", checkpoint_every=3)
    assert_same_bits(read_model(tmp_path / "stored"), read_model(tmp_path / "memory"))
    train(tmp_path / "resumed", SPEC.replace(max_layers=1), maps="memory", checkpoint_every=100)
    ResCNetClassifier.resume(tmp_path / "resumed", max_layers=3)
    assert_same_bits(read_model(tmp_path / "stored"), read_model(tmp_path / "resumed"))


def test_features_and_maps_need_no_training_images(client: Client, tmp_path: Path) -> None:
    """Heads have no part in them."""
    network = train(tmp_path / "run").network_
    for folder in ("images", "labels"):
        (tmp_path / "run" / "data" / folder).rename(tmp_path / folder)
    assert network.features(X[:3], layer=2).shape == (3, network.architecture.feature_count(2))
    assert network.maps(X[:3], 2).shape == (3, 14, 14, 6)


def test_lost_training_images_are_noticed(client: Client, tmp_path: Path) -> None:
    """A saved network with fewer images than weights predicts nothing."""
    clf = train(tmp_path / "run")
    clf.save(tmp_path / "saved")
    path = tmp_path / "saved" / "training_images"
    zarr.open_array(path, mode="r+").resize((200, 14, 14, 1))
    with pytest.raises(CorruptDataError, match="trained on 240 images, of which 200 were found"):
        ResCNetClassifier.load(tmp_path / "saved").predict(X[:3])


def test_what_it_cannot_do_is_refused(client: Client, tmp_path: Path) -> None:
    """Weights of images, tiles of features and ONNX; each message has a remedy."""
    with pytest.raises(SpecError, match=r"kernel-ridge.*weights.*Use"):
        train(tmp_path / "weights", class_weight="balanced")
    with pytest.raises(SpecError, match="tile_features=64 is for heads that need the scatter"):
        train(tmp_path / "tiles", tile_features=64)
    assert not (tmp_path / "tiles").exists()
    clf = train(tmp_path / "run", SPEC.replace(max_layers=1))
    with pytest.raises(SpecError, match="kernel-ridge"):
        clf.network_.to_onnx(tmp_path / "network.onnx")


def test_too_many_images_for_the_matrix_of_pairs() -> None:
    """The message names its size and a head that does not need it."""
    problem = Problem(1_000_000, (32, 32, 3), 10)
    workers = Workers(8, 16, 2, 2, 2**34)
    with pytest.raises(WorkersTooSmallError, match=r"1,000,000 images \(3.6 TiB\).*leave-one-out"):
        make_plan(problem, SPEC, RunSpec(), workers)
