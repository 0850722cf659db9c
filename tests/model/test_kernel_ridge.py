"""Test the head that compares images, through training, resume, prediction and saving."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, RunSpec, SpecError
from rescnet_dist.cluster import Workers
from rescnet_dist.dashboard.report import make_report
from rescnet_dist.errors import CorruptDataError, StoreError, StoreReadError, WorkersTooSmallError
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.network import scoring, training_images
from rescnet_dist.network.network import Network
from rescnet_dist.network.training_images import ImagesInMemory
from rescnet_dist.planning import Problem, make_plan
from tests.commands import run
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "copies"), [("float16", 0), ("float32", 2)])
def test_predictions_are_the_scores_of_training(
    client: Client, tmp_path: Path, dtype: str, copies: int
) -> None:
    """Validation images have the scores that the network, loaded or not, predicts for them."""
    augment = AugmentSpec(copies=copies, shift=1) if copies else None
    clf = train(tmp_path / "run", SPEC.replace(store_dtype=dtype), augment)
    trained = zarr.open_array(tmp_path / "run" / "data" / "train", mode="r")[:]
    rows = np.concatenate([[0], np.cumsum(1 + copies * trained)])[:-1][~trained]
    model, layers = read_model(tmp_path / "run"), range(1, clf.network_.depth + 1)
    updates = (model[f"layer {n} rate"] * model[f"layer {n} corrections"][rows] for n in layers)
    scores = clf.decision_function(X)
    np.testing.assert_allclose(scores[~trained], sum(updates), atol=1e-4)
    loaded = ResCNetClassifier.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.decision_function(X), scores, rtol=1e-5, atol=1e-6)
    accuracy = clf.accuracies_[-1]["train"]
    assert accuracy < clf.score(X[~trained], Y[~trained]) + 0.15
    assert clf.score(X, Y) > accuracy + 0.05  # which is that of images left out


def test_predictions_do_not_depend_on_memory(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With training images in many parts, and one part for each few images to predict."""
    network = train(tmp_path / "run").network_
    expected = network.scores(X), network.scores(X, layer=2), network.staged_scores(X)
    size = network.predictor._image_bytes
    monkeypatch.setattr(scoring, "STREAM_TASK_BYTES", 50 * size)
    monkeypatch.setattr(scoring, "COMPARED_BYTES", 110 * network.architecture.image_bytes)
    monkeypatch.setattr(scoring, "COMPARED_BLOCK_BYTES", 50 * size)
    assert network.predictor.task_images == 50
    assert network.predictor.divide((10,) * 30) == (50,) * 6
    groups = network.predictor._iter_training_states(network.image_scale, 0, 1)
    found_rows = [[(rows.start, rows.stop) for rows, _ in group] for group in groups]
    assert found_rows == [[(0, 50), (50, 100)], [(100, 150), (150, 200)], [(200, 240)]]
    found = network.scores(X), network.scores(X, layer=2), network.staged_scores(X)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("saved", "thread_counts"), [(False, (2, 100)), (True, (5,))], ids=["run", "saved"]
)
def test_parts_of_the_training_images_give_the_same_bits(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved: bool,
    thread_counts: tuple[int, ...],
) -> None:
    """Of images in memory and lazy ones, on a cluster and without one, however many threads."""
    clf = train(tmp_path / "run", augment=AugmentSpec(copies=1, shift=1))
    if saved:
        clf.save(tmp_path / "saved")
    network = Network.load(tmp_path / ("saved" if saved else "run"))
    monkeypatch.setattr(scoring, "COMPARED_BLOCK_BYTES", 70 * network.predictor._image_bytes)
    averaged, lazy = AugmentSpec(copies=1, shift=1), da.from_array(X, (100, -1, -1, -1))
    monkeypatch.setattr(Network, "_count_threads", lambda self: 1)
    assert network.predictor.count_parts(1, 1) == 1
    expected = network.staged_scores(X), network.scores(X, averaged, layer=2)
    assert not np.array_equal(expected[0][:, 1], expected[0][:, 2])
    for threads in thread_counts:
        monkeypatch.setattr(Network, "_count_threads", lambda self, n=threads: n)
        assert network.predictor.count_parts(1, threads) == min(threads, 7)  # 480 images in 70s
        assert network.predictor.count_parts(2, threads) == min(-(-threads // 2), 7)
        for images in (X, lazy):
            for scheduler in (None, "threads"):
                with dask.config.set(scheduler=scheduler):
                    found = network.staged_scores(images), network.scores(images, averaged, layer=2)
                    assert_same_bits(*({"a": a, "b": b} for a, b in (map_compute(found), expected)))
    codes = np.searchsorted(network.classes, Y)
    counts = (expected[0].argmax(axis=2) == codes[:, None]).sum(axis=0)
    assert network.staged_correct(X, codes).tolist() == counts.tolist()
    assert network.staged_correct(lazy, codes).tolist() == counts.tolist()


def map_compute(arrays: Iterable[Any]) -> tuple[Any, ...]:
    """Return arrays, computed if they are lazy."""
    return dask.compute(*arrays)


def test_parts_read_their_own_images(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together all of them, in order, from a run and from a saved network."""
    clf = train(tmp_path / "run", augment=AugmentSpec(copies=1, shift=1))
    monkeypatch.setattr(training_images, "SAVED_CHUNK_BYTES", 50 * X[0].nbytes)
    clf.save(tmp_path / "saved")
    for name in ("run", "saved"):
        images = Network.load(tmp_path / name).training_images
        assert images is not None
        assert images.count() == 480
        whole = np.concatenate(list(images.read()))
        for start, stop in ((0, 1), (0, 50), (49, 51), (60, 300), (470, None), (480, None)):
            parts = [whole[:0], *images.read(start, stop)]
            assert np.array_equal(np.concatenate(parts), whole[start:stop])


@pytest.mark.parametrize("size", [1, 7, 40, 100])
def test_batches_have_all_images_in_order(size: int) -> None:
    """Of any size, from parts of any size."""

    class Parts(ImagesInMemory):
        def read(self, start: int = 0, stop: int | None = None) -> Iterator[Array]:
            yield from np.split(self.images, [20, 21, 21, 60])

    images = np.arange(85)[:, None, None, None]
    found = list(Parts(images).batches(size))
    assert [len(batch) for batch in found[:-1]] == [size] * (85 // size - (85 % size == 0))
    assert np.array_equal(np.concatenate(found), images)


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


def test_damaged_training_images_are_noticed(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is predicted, or saved, with images that are missing or altered."""
    clf = train(tmp_path / "run")
    monkeypatch.setattr(training_images, "SAVED_CHUNK_BYTES", 50 * X[0].nbytes)
    clf.save(tmp_path / "saved")
    saved = tmp_path / "saved" / "training_images"
    (saved / "c" / "2" / "0" / "0" / "0").unlink()
    with pytest.raises(CorruptDataError, match=r"Rows 100 to 150 of training_images .* Restore"):
        ResCNetClassifier.load(tmp_path / "saved").predict(X[:3])
    zarr.open_array(saved, mode="r+").resize((200, 14, 14, 1))
    with pytest.raises(CorruptDataError, match="4 chunks, of which 5 have checksums"):
        ResCNetClassifier.load(tmp_path / "saved").predict(X[:3])
    shutil.rmtree(saved)
    with pytest.raises(StoreError, match="training_images"):
        ResCNetClassifier.load(tmp_path / "saved").predict(X[:3])
    zarr.open_array(tmp_path / "run" / "data" / "images", mode="r+")[80] = 1
    with pytest.raises(CorruptDataError, match=r"Rows 70 to 140 of .*images .* Restore the data"):
        clf.predict(X[:3])
    with pytest.raises(CorruptDataError, match=r"Rows 70 to 140"):
        clf.save(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_changed_data_are_named(client: Client, tmp_path: Path) -> None:
    """Images of a dataset that were altered, removed or moved; images added later do no harm."""
    data, network = tmp_path / "data.zarr", SPEC.replace(max_layers=1)
    np.savez(tmp_path / "more.npz", images=X, labels=Y)
    np.savez(tmp_path / "images.npz", images=X[:200], labels=Y[:200])
    rd.import_dataset(tmp_path / "images.npz", data)
    options = RunSpec(chunk_images=70, validation=0.2)
    clf = ResCNetClassifier(network, run=options, store=tmp_path / "run", random_state=0).fit(data)
    expected = clf.decision_function(X[:5])
    shutil.rmtree(data)
    rd.import_dataset(tmp_path / "more.npz", data)
    assert np.array_equal(rd.load(tmp_path / "run").decision_function(X[:5]), expected)
    zarr.open_array(data / "images", mode="r+")[80] = 1
    message = rf"Rows 70 to 140 of images .* Restore the data at {data}, .*, or train again"
    with pytest.raises(CorruptDataError, match=message):
        rd.load(tmp_path / "run").predict(X[:5])
    shutil.rmtree(data)
    message = rf"compares images with its training images, .* Restore the data at {data}"
    with pytest.raises(StoreReadError, match=message):
        rd.load(tmp_path / "run").predict(X[:5])


def test_chunks_to_predict_are_whole_tasks(client: Client, tmp_path: Path) -> None:
    """Fewer images at a time would run the training images forward more often."""
    spec = SPEC.replace(max_layers=1)
    compared = train(tmp_path / "run", spec).network_
    linear = train(tmp_path / "linear", spec.replace(head="regress")).network_
    assert compared.chunk_images(10, 4) == compared.batch_images > 10
    assert linear.chunk_images(10, 4) == 3 < linear.batch_images
    assert linear.chunk_images(10**9, 4) == linear.batch_images


def test_lazy_predictions_with_an_asynchronous_client(client: Client, tmp_path: Path) -> None:
    """Which cannot be asked for its threads; bits do not depend on them."""
    network = train(tmp_path / "run", SPEC.replace(max_layers=1)).network_
    address, expected = client.scheduler.address, network.scores(X[:5])

    async def predict() -> Array:
        async with Client(address, asynchronous=True) as current:
            return await current.compute(network.scores(da.from_array(X[:5])))

    assert np.array_equal(asyncio.run(predict()), expected)


def test_as_many_training_images_as_weights(client: Client, tmp_path: Path) -> None:
    """Neither fewer nor more are compared or saved."""
    network = train(tmp_path / "run").network_
    for count in (239, 241):
        other = replace(network, training_images=ImagesInMemory(X[:count]))
        message = f"trained on 240 images, of which {count} were found"
        with pytest.raises(CorruptDataError, match=message):
            other.scores(X[:3])
        with pytest.raises(CorruptDataError, match=message):
            other.save(tmp_path / "saved")


def test_training_images_that_end_early_are_noticed(client: Client, tmp_path: Path) -> None:
    """Also if their number is right, as of a store that loses some meanwhile."""

    class Shortened(ImagesInMemory):
        def read(self, start: int = 0, stop: int | None = None) -> Iterator[Array]:
            yield self.images[start:200]

    network = train(tmp_path / "run", SPEC.replace(max_layers=1)).network_
    other = replace(network, training_images=Shortened(X[:240]))
    with pytest.raises(CorruptDataError, match="trained on 240 images, of which 200 were found"):
        other.scores(X[:3])


def test_report_has_pictures_of_maps(client: Client, tmp_path: Path) -> None:
    """They are computed without heads."""
    train(tmp_path / "run", SPEC.replace(max_layers=1))
    assert make_report(tmp_path / "run", pictures=True).pictures.samples


@pytest.mark.filterwarnings("error")
def test_accuracies_of_images_left_out_are_named_so(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the lines of layers, `rescnet info` and reports; their fall is no warning."""
    url, spec = tmp_path / "run", SPEC.replace(max_layers=5, learning_rate=1.0)
    options, augment = RunSpec(validation=0.2), AugmentSpec(copies=1, shift=1)
    clf = ResCNetClassifier(spec, run=options, store=url, augment=augment, verbose=True)
    accuracies = clf.set_params(random_state=0).fit(X, Y).accuracies_
    assert accuracies[-1]["train"] < 0.8 * max(entry["train"] for entry in accuracies)
    percent = f"{100 * accuracies[0]['train']:.2f} %"
    line = f"after layer 1: train {percent} (leave-one-out, with copies), validation "
    assert line in capsys.readouterr().err
    percent = f"{100 * accuracies[clf.depth_ - 1]['train']:.2f} %"
    outcome = make_report(url, pictures=False).outcome
    assert f"the leave-one-out accuracy is {percent} on the training images, copies" in outcome
    assert "train % (leave-one-out, with" in run("info", url).output  # of 80 columns


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


@pytest.mark.parametrize(
    ("option", "value"),
    [("width", 1e-44), ("width", 1e7), ("width", np.nan), ("ridge", 0), ("probes", 0)],
)
def test_options_out_of_range(option: str, value: float) -> None:
    """Of a width of 1e-44, the kernel of an image with itself was NaN."""
    with pytest.raises(SpecError, match=f"{option}={value} is out of range. It must be"):
        SPEC.replace(**{option: value})


def test_too_many_images_for_the_matrix_of_pairs() -> None:
    """The message names its size and a head that does not need it."""
    problem = Problem(1_000_000, (32, 32, 3), 10)
    workers = Workers(8, 16, 2, 2, 2**34)
    with pytest.raises(WorkersTooSmallError, match=r"1,000,000 images \(3.6 TiB\).*leave-one-out"):
        make_plan(problem, SPEC, RunSpec(), workers)
