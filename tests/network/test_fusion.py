"""Networks averaged by weights of held-out images: one object that is used like one network."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from onnxruntime import InferenceSession
from PIL import Image
from scipy.special import log_softmax
from zarr.core.sync import sync as zarr_sync

import rescnet_dist as rd
from rescnet_dist import AugmentSpec, FusedNetwork, Network, NetworkSpec, RunSpec
from rescnet_dist.cli.actions.fuse import warn_if_trained_on
from rescnet_dist.dashboard.mlflow_models import _load_pyfunc
from rescnet_dist.errors import CorruptDataError
from rescnet_dist.network import describe_network, load_network
from rescnet_dist.runs import open_held_out
from rescnet_dist.store.zipped import _open_files, open_zip
from tests.commands import run as run_command
from tests.saved import edit_saved

Array = np.ndarray[Any, Any]

MIRROR = AugmentSpec(copies=1, flip=True)
# Different structures, heads and preprocessing
SPECS = (
    NetworkSpec(
        filters=4,
        block=5,
        stride=2,
        head="regress",
        ridge=0.3,
        learning_rate=0.5,
        max_layers=2,
        stop_at_zero_error=False,
    ),
    NetworkSpec(
        filters=6,
        block=4,
        stride=2,
        sigma=2.0,
        max_layers=1,
        local_contrast=True,
        first_filter_size=5,
    ),
)


@pytest.fixture(scope="module")
def networks(
    threads_cluster: LocalCluster, images: Array, labels: Array, tmp_path_factory: Any
) -> list[Network]:
    """Return two networks of different structure in their run stores, trained on 80 digits."""
    folder = tmp_path_factory.mktemp("networks")
    run = RunSpec(chunk_images=120, accumulators=1, solve_threads=1)
    with Client(threads_cluster):
        for number, spec in enumerate(SPECS):
            clf = rd.ResCNetClassifier(spec, store=folder / f"run-{number}", run=run)
            clf.fit(images[:80], labels[:80], validation=0)
    return [Network.load(folder / f"run-{number}") for number in range(len(SPECS))]


@pytest.fixture(scope="module")
def held_out(images: Array, labels: Array) -> tuple[Array, Array]:
    """Return 40 digits that the networks were not trained on."""
    return images[80:], labels[80:]


@pytest.fixture(scope="module")
def fused(networks: list[Network], held_out: tuple[Array, Array]) -> FusedNetwork:
    """Return both networks, fused."""
    return rd.fuse(networks, *held_out)


def encode(network: Any, labels: Array) -> Array:
    """Return the class codes of labels."""
    return np.array([network.classes.tolist().index(label) for label in labels])


def score_chunks(network: Any, images: Array, *sizes: int) -> Array:
    """Return the scores of chunks: BLAS rounds by the number of images on some processors."""
    parts = np.split(images, np.cumsum(sizes)[:-1])
    chunks = [network.scores(da.from_array(part, chunks=part.shape)).compute() for part in parts]
    return np.concatenate(chunks)


# scores -----------------------------------------------------------------------------------------


def test_one_network_stays_the_same(
    networks: list[Network], held_out: tuple[Array, Array], images: Array
) -> None:
    """To the bit, for images in memory and lazy ones."""
    for network in networks:
        alone = rd.fuse([network], *held_out)
        assert alone.weights.tolist() == [1.0]
        np.testing.assert_array_equal(alone.scores(images), network.scores(images))
        lazy = alone.scores(da.from_array(images, chunks=(50, -1, -1, -1)))
        assert isinstance(lazy, da.Array)
        np.testing.assert_array_equal(lazy.compute(), score_chunks(network, images, 50, 50, 20))


def test_scores_are_the_weighted_mean(
    fused: FusedNetwork, networks: list[Network], images: Array
) -> None:
    """Of scores in float64; lazy images give the same bits, with their chunks."""
    assert (fused.weights > 0).all()
    assert fused.weights.sum() == pytest.approx(1)
    parts = [network.scores(images) for network in networks]
    expected = fused.weights @ np.stack(parts).astype(np.float64).swapaxes(0, 1)
    scores = fused.scores(images)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    lazy = fused.scores(da.from_array(images, chunks=((70, 50), -1, -1, -1)))
    assert lazy.chunks == ((70, 50), (10,))
    np.testing.assert_array_equal(lazy.compute(), score_chunks(fused, images, 70, 50))


def test_weights_and_temperature_have_the_smallest_log_loss(
    fused: FusedNetwork, networks: list[Network], held_out: tuple[Array, Array]
) -> None:
    """Of the held-out images, on a grid of weights and temperatures."""
    images, codes = held_out[0], encode(fused, held_out[1])
    parts = [np.asarray(network.scores(images), np.float64) for network in networks]
    target = (40 * np.eye(10)[codes] + 0.05) / 40.5

    def loss(weight: float, temperature: float) -> float:
        mean = weight * parts[0] + (1 - weight) * parts[1]
        return float(-(target * log_softmax(mean / temperature, axis=1)).sum(axis=1).mean())

    grid = [loss(w, t) for w in np.linspace(0, 1, 51) for t in np.geomspace(1e-3, 2, 100)]
    assert loss(fused.weights[0], fused.calibration.temperature) <= 1.001 * min(grid)
    calibration = fused.calibration
    assert (calibration.fitted_on, calibration.images) == ("validation", 40)
    metrics = fused.evaluate(images, codes)
    assert metrics.log_loss == pytest.approx(calibration.log_loss, rel=1e-3)
    assert fused.held_out is not None
    accuracies = [float((part.argmax(axis=1) == codes).mean()) for part in parts]
    assert fused.held_out.network_accuracies == tuple(accuracies)
    assert fused.held_out.accuracy == metrics.accuracy


def test_averaging_over_mirror_images_is_part_of_it(
    networks: list[Network], held_out: tuple[Array, Array], images: Array
) -> None:
    """It is used in the fit, and in predictions unless other copies are given."""
    fused = rd.fuse(networks, *held_out, augment=MIRROR)
    mirrored = fused.scores(images[:, :, ::-1], AugmentSpec())
    plain = fused.scores(images, AugmentSpec())
    np.testing.assert_allclose(fused.scores(images), (plain + mirrored) / 2, atol=1e-5)
    assert not np.array_equal(fused.scores(images), plain)
    codes = encode(fused, held_out[1])
    assert fused.held_out is not None
    assert fused.evaluate(held_out[0], codes).accuracy == fused.held_out.accuracy


def test_photos_are_predicted(fused: FusedNetwork, images: Array, tmp_path: Path) -> None:
    """As by one network."""
    Image.fromarray(images[0, :, :, 0]).save(tmp_path / "digit.png")
    found = fused.predict_image(tmp_path / "digit.png", resize=14, channels="gray")
    expected = fused.probabilities(fused.scores(images[:1]))[0]
    np.testing.assert_allclose(found.probabilities, expected)


# stored forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fused.zip", "folder"])
def test_saved_network_predicts_the_same_bits(
    fused: FusedNetwork, images: Array, tmp_path: Path, name: str
) -> None:
    """Through the loader of any network, and the classifier that it gives."""
    fused.save(tmp_path / name)
    loaded = load_network(tmp_path / name)
    assert isinstance(loaded, FusedNetwork)
    np.testing.assert_array_equal(loaded.scores(images), fused.scores(images))
    np.testing.assert_array_equal(loaded.weights, fused.weights)
    assert (loaded.calibration, loaded.held_out) == (fused.calibration, fused.held_out)
    assert loaded.averaging == fused.averaging
    assert [n.spec for n in loaded.networks] == [n.spec for n in fused.networks]
    clf = rd.load(tmp_path / name)
    expected = fused.classes[fused.scores(images).argmax(axis=1)]
    np.testing.assert_array_equal(clf.predict(images), expected)
    lazy = clf.predict_proba(da.from_array(images, chunks=(60, -1, -1, -1)))
    np.testing.assert_array_equal(lazy, fused.probabilities(score_chunks(fused, images, 60, 60)))


def test_workers_read_a_zip_file(
    fused: FusedNetwork, images: Array, threads_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Zarr asks what exists in it before it would open it, in several threads."""
    fused.save(tmp_path / "fused.zip")
    loaded = load_network(tmp_path / "fused.zip")
    _open_files.clear()
    assert zarr_sync(open_zip(str(tmp_path / "fused.zip")).exists("networks/0001/zarr.json"))
    _open_files.clear()
    with Client(threads_cluster):
        found = loaded.scores(da.from_array(images[:60], chunks=(10, -1, -1, -1))).compute()
    assert np.array_equal(found, score_chunks(fused, images[:60], *6 * [10]))


def test_pickle_needs_no_store(fused: FusedNetwork, images: Array, tmp_path: Path) -> None:
    """It holds all layers."""
    fused.save(tmp_path / "fused.zip")
    dumped = pickle.dumps(load_network(tmp_path / "fused.zip"))
    (tmp_path / "fused.zip").unlink()
    np.testing.assert_array_equal(pickle.loads(dumped).scores(images), fused.scores(images))


def test_workers_read_the_networks(
    fused: FusedNetwork, images: Array, tmp_path: Path, client: Client
) -> None:
    """Of a zip file, in a graph that is computed on a cluster."""
    fused.save(tmp_path / "fused.zip")
    lazy = load_network(tmp_path / "fused.zip").scores(
        da.from_array(images, chunks=(40, -1, -1, -1))
    )
    expected = score_chunks(fused, images, 40, 40, 40)
    np.testing.assert_array_equal(client.compute(lazy).result(), expected)


def test_mlflow_predicts_with_it(fused: FusedNetwork, images: Array, tmp_path: Path) -> None:
    """The loader that MLflow calls takes any kind of network."""
    fused.save(tmp_path / "fused.zip")
    answer = _load_pyfunc(str(tmp_path / "fused.zip")).predict(images[:5])
    scores = fused.scores(images[:5])
    np.testing.assert_array_equal(answer["scores"], scores)
    assert answer["label"].tolist() == fused.classes[scores.argmax(axis=1)].tolist()


def test_nothing_is_left_of_a_failed_save(fused: FusedNetwork, tmp_path: Path) -> None:
    """Nor is anything overwritten."""
    with pytest.raises(rd.SpecError, match="dtype='float61' is unknown"):
        fused.save(tmp_path / "fused", dtype="float61")
    assert list(tmp_path.iterdir()) == []
    fused.save(tmp_path / "fused", dtype="float16")
    with pytest.raises(rd.StoreError, match="already holds something"):
        fused.save(tmp_path / "fused")


@pytest.mark.parametrize("augment", [None, MIRROR])
def test_onnx_file_has_the_same_scores(
    networks: list[Network],
    held_out: tuple[Array, Array],
    images: Array,
    tmp_path: Path,
    augment: AugmentSpec | None,
) -> None:
    """One graph with one input, mirror images included."""
    fused = rd.fuse(networks, *held_out, augment=augment)
    fused.to_onnx(tmp_path / "fused.onnx", dtype="uint8")
    session = InferenceSession(tmp_path / "fused.onnx")
    assert [item.name for item in session.get_inputs()] == ["images"]
    label, probabilities, scores = session.run(None, {"images": images[:20]})
    expected = fused.scores(images[:20])
    np.testing.assert_allclose(scores, expected, atol=3e-5)
    np.testing.assert_allclose(probabilities, fused.probabilities(expected), atol=1e-3)
    assert label.tolist() == fused.classes[expected.argmax(axis=1)].tolist()
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["rescnet.weights"]) == fused.weights.tolist()


def test_random_copies_are_not_exported(networks: list[Network], tmp_path: Path) -> None:
    """They depend on the number of the image."""
    fused = FusedNetwork(networks[:1], np.ones(1), averaging=AugmentSpec(copies=2, shift=1))
    with pytest.raises(rd.SpecError, match=r"cannot be exported: .* mirror images only"):
        fused.to_onnx(tmp_path / "fused.onnx")


# errors -----------------------------------------------------------------------------------------


def test_networks_that_do_not_fit_are_refused(
    networks: list[Network], held_out: tuple[Array, Array]
) -> None:
    """With what differs."""
    first, second = networks
    shifted = replace(second, classes=np.roll(second.classes, 1))
    with pytest.raises(rd.DataError, match=r"Network 2 has other classes .*zero.* \(10\)"):
        rd.fuse([first, shifted], *held_out)
    larger = replace(second, image_shape=(28, 28, 1))
    with pytest.raises(rd.DataError, match=r"shape \(28, 28, 1\), but network 1 of \(14, 14, 1\)"):
        rd.fuse([first, larger], *held_out)
    scale = replace(second.image_scale, scale=255 * second.image_scale.scale)
    with pytest.raises(rd.DataError, match="values from 0 to 1, but network 1 on values from 0 to"):
        rd.fuse([first, replace(second, image_scale=scale)], *held_out)
    with pytest.raises(rd.DataError, match="no networks to fuse"):
        rd.fuse([], *held_out)
    with pytest.raises(rd.DataError, match="Network 2 is a FusedNetwork"):
        rd.fuse([first, FusedNetwork([second], np.ones(1))], *held_out)  # type: ignore[list-item]


def test_held_out_images_are_needed(networks: list[Network], held_out: tuple[Array, Array]) -> None:
    """With labels that the networks know, from the val split of a dataset with several splits."""
    images, labels = held_out
    with pytest.raises(rd.DataError, match=r"no held-out images|X has no images|empty"):
        rd.fuse(networks, images[:0], labels[:0])
    with pytest.raises(rd.DataError, match="y is missing"):
        rd.fuse(networks, images)
    dataset = xr.Dataset(
        {"images": (("image", "y", "x", "channel"), images), "labels": ("image", labels)},
        {"split": ("image", ["train"] * 20 + ["test"] * 20)},
    )
    with pytest.raises(rd.DataError, match=r"no images in val\. It has images in test, train"):
        rd.fuse(networks, dataset)
    named = dataset.assign_coords(split=("image", ["train"] * 10 + ["val"] * 30))
    fused = rd.fuse(networks, named)
    assert fused.held_out is not None
    assert fused.held_out.images == 30
    np.testing.assert_array_equal(
        fused.weights, rd.fuse(networks, images[10:], labels[10:]).weights
    )


def test_damaged_attributes_are_named(fused: FusedNetwork, tmp_path: Path) -> None:
    """A missing value is an error that names the store."""
    fused.save(tmp_path / "fused")
    edit_saved(tmp_path / "fused", remove=["weights"])
    for use in (FusedNetwork.load, describe_network):
        with pytest.raises(CorruptDataError, match=r"fused are damaged \(KeyError: 'weights'\)"):
            use(tmp_path / "fused")


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.0], [1.5, -0.5], [np.nan, 1.0]])
def test_weights_are_checked(networks: list[Network], weights: list[float]) -> None:
    """One for each network, from 0 on, with the sum 1."""
    with pytest.raises(rd.DataError, match="are not 2 numbers from 0 on that sum to 1"):
        FusedNetwork(networks, np.array(weights))


def test_what_needs_layers_names_the_networks(
    fused: FusedNetwork, images: Array, labels: Array, tmp_path: Path
) -> None:
    """Scores after a layer, features and figures belong to one network."""
    with pytest.raises(rd.DataError, match="layer=1 is not known: a fused network"):
        fused.scores(images, layer=1)
    fused.save(tmp_path / "fused.zip")
    clf = rd.load(tmp_path / "fused.zip")
    for use in (
        lambda: clf.transform(images),
        lambda: clf.staged_predict(images),
        lambda: clf.staged_score(images, labels),
        lambda: clf.plot,
    ):
        with pytest.raises(rd.SpecError, match="fused network, which has no layers"):
            use()
    with pytest.raises(rd.StoreError, match="is not a rescnet-network or rescnet-run store"):
        Network.load(tmp_path / "fused.zip")
    with pytest.raises(rd.StoreError, match="is not a rescnet-fused-network store"):
        FusedNetwork.load(fused.networks[0].layers.stored.location.url)


def rescnet(*arguments: Any) -> str:
    """Return the output of a command that succeeds."""
    result = run_command(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_training_images_are_not_held_out(tmp_path: Path) -> None:
    """Fuse warns if a run was trained on the images: its source has the same URL and split."""
    run = zarr.open_group(tmp_path / "run", mode="w")
    data = tmp_path / "data.npz"
    run.attrs["source"] = str(data)
    images, labels = rd.load_digits()
    train = {"x_train": images[:4], "y_train": labels[:4]}
    np.savez(data, **train)
    with pytest.warns(UserWarning, match=r"run was trained on images of .*data\.npz"):
        warn_if_trained_on([str(tmp_path / "run")], str(data), None)
    warn_if_trained_on([str(tmp_path / "run")], str(data), "test")
    np.savez(data, **train, x_val=images[4:8], y_val=labels[4:8])
    warn_if_trained_on([str(tmp_path / "run")], str(data), None)


# command line -----------------------------------------------------------------------------------


def test_commands_take_a_fused_network(
    networks: list[Network], held_out: tuple[Array, Array], tmp_path: Path
) -> None:
    """Fuse, info, evaluate, predict and export."""
    np.savez(tmp_path / "held-out.npz", images=held_out[0], labels=held_out[1])
    urls = [network.layers.stored.location.url for network in networks]
    out, data = tmp_path / "fused.zip", tmp_path / "held-out.npz"
    record = json.loads(rescnet("fuse", *urls, "--data", data, "--flips", "-o", out, "--json"))
    fused = rd.fuse(networks, *held_out, augment=MIRROR)
    weights = [n["weight"] for n in record["networks"]]
    assert weights == pytest.approx(fused.weights.tolist(), abs=1e-6)  # other batches in float32
    assert fused.held_out is not None
    assert record["accuracy"] == fused.held_out.accuracy
    described = json.loads(rescnet("info", out, "--json"))
    assert [n["depth"] for n in described["networks"]] == [2, 1]
    text = rescnet("info", out)
    assert f"network 2: weight {fused.weights[1]:.3f}, accuracy " in text
    assert f"held out  40 images, accuracy {100 * fused.held_out.accuracy:.2f} %" in text
    assert "averaged  copies=1, flip=True" in text
    evaluated = json.loads(rescnet("evaluate", out, data, "--split", "train", "--json"))
    assert evaluated["accuracy"] == fused.held_out.accuracy
    rows = rescnet("predict", out, data, "--split", "train").splitlines()[1:]
    predicted = fused.classes[fused.scores(held_out[0]).argmax(axis=1)].tolist()
    assert [row.split(",")[1] for row in rows] == predicted
    again = run_command("fuse", out, "--data", data, "-o", tmp_path / "again.zip")
    assert again.exit_code == 2
    assert f"Name the 2 networks that it is made of instead: {out}/networks/0001" in again.output
    urls = [f"{out}/networks/000{number}" for number in (1, 2)]
    rescnet("fuse", *urls, "--data", data, "--flips", "-o", tmp_path / "again.zip")
    assert rd.load(tmp_path / "again.zip").network_.weights.tolist() == weights
    rescnet("export", out, tmp_path / "fused.onnx")
    assert (tmp_path / "fused.onnx").exists()


@pytest.fixture(scope="module")
def runs_that_hold_out(
    threads_cluster: LocalCluster, images: Array, labels: Array, tmp_path_factory: Any
) -> dict[str, str]:
    """Return runs on copies of 100 digits, by name; those with the seed 0 held out the same 26."""
    folder = tmp_path_factory.mktemp("runs")
    cases = {"a": (4, 0), "b": (5, 0), "other seed": (4, 1)}
    with Client(threads_cluster):
        for name, (block, seed) in cases.items():
            spec = SPECS[0].replace(max_layers=1, block=block)
            clf = rd.ResCNetClassifier(spec, store=folder / name, random_state=seed)
            clf.fit(images[:100], labels[:100], validation=0.25)
    return {name: str(folder / name) for name in cases}


def test_held_out_images_of_the_runs_are_the_default(
    runs_that_hold_out: dict[str, str], images: Array, labels: Array, tmp_path: Path
) -> None:
    """If all runs held out the same ones."""
    urls = [runs_that_hold_out[name] for name in ("a", "b")]
    record = json.loads(rescnet("fuse", *urls, "-o", tmp_path / "fused.zip", "--json"))
    held_out = ~zarr.open_array(f"{urls[0]}/data/train")[:]
    assert held_out.sum() == 26
    networks = [Network.load(url) for url in urls]
    fused = rd.fuse(networks, images[:100][held_out], labels[:100][held_out])
    assert record["images"] == 26
    np.testing.assert_allclose(
        [network["weight"] for network in record["networks"]], fused.weights, atol=1e-9
    )


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["a", "other seed"], [], "other seed held out other images than .*a. Name held-out"),
        (["a", "saved"], [], "saved is a saved network, which has no held-out images. Name"),
        (["without"], [], "held out no images. Name held-out images"),
        (["a", "b"], ["--split", "val"], "--split is a split of --data, which is not given"),
    ],
)
def test_fuse_names_what_to_pass_instead(
    runs_that_hold_out: dict[str, str],
    networks: list[Network],
    tmp_path: Path,
    names: list[str],
    options: list[str],
    message: str,
) -> None:
    """Where the runs have no images in common that all held out."""
    networks[0].save(tmp_path / "saved")
    urls = runs_that_hold_out | {
        "saved": str(tmp_path / "saved"),
        "without": networks[0].layers.stored.location.url,
    }
    done = run_command("fuse", *(urls[n] for n in names), *options, "-o", tmp_path / "fused.zip")
    assert done.exit_code == 2
    assert re.search(message, done.output.replace("\n", " ")), done.output


def test_runs_on_other_images_hold_out_others(
    runs_that_hold_out: dict[str, str], tmp_path: Path
) -> None:
    """Rows and labels alone do not show it, so that copies of images are compared."""
    url = runs_that_hold_out["a"]
    shutil.copytree(url, tmp_path / "copy")
    assert len(open_held_out([url, str(tmp_path / "copy")])[1]) == 26
    images = zarr.open_array(tmp_path / "copy/data/images")
    images[np.flatnonzero(~zarr.open_array(f"{url}/data/train")[:])[3]] += 1
    with pytest.raises(rd.DataError, match="copy held out other images"):
        open_held_out([url, str(tmp_path / "copy")])
