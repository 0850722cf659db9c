"""Saved networks: one zip file or a folder, whole or not at all, and in half precision."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import joblib
import numpy as np
import pytest
import xarray as xr
import zarr

import rescnet_dist as rd
from rescnet_dist import ResCNetClassifier
from rescnet_dist.errors import CorruptDataError
from rescnet_dist.network import (
    HeldOut,
    describe_network,
    has_metadata_checksum,
    saving,
    verify_network,
)
from rescnet_dist.store import Location
from rescnet_dist.store.half import from_half, to_half
from tests.saved import edit_saved, read_saved

Array = np.ndarray[Any, Any]


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a zip file to be."""
    if request.param == "folder":
        yield str(tmp_path / "net.zip")
        return
    yield "memory://saved/net.zip"
    fs = fsspec.filesystem("memory")
    if fs.exists("/saved"):
        fs.rm("/saved", recursive=True)


# one file ---------------------------------------------------------------------------------------


def test_zip_file_predicts_the_same_bits(
    fitted: ResCNetClassifier, images: Array, url: str
) -> None:
    """On any file system, in memory and pickled for other processes."""
    fitted.save(url)
    fs, path = fsspec.url_to_fs(url)
    assert fs.isfile(path)
    loaded = rd.load(url)
    np.testing.assert_array_equal(loaded.classes_, fitted.classes_)
    expected = fitted.decision_function(images)
    np.testing.assert_array_equal(loaded.decision_function(images), expected)
    layers = pickle.loads(pickle.dumps(loaded.network_.layers))
    assert len(layers) == 2
    assert layers[1].bank.filters.tobytes() == fitted.network_.layers[1].bank.filters.tobytes()


def test_zip_file_is_a_plain_zarr_store(fitted: ResCNetClassifier, tmp_path: Path) -> None:
    """Uncompressed, each member once, readable by Zarr alone; two saves give the same bytes."""
    one, other = tmp_path / "one.zip", tmp_path / "other.ZIP"
    fitted.save(one)
    fitted.network_.save(other)
    assert one.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(one) as file:
        names = file.namelist()
        assert {member.compress_type for member in file.infolist()} == {zipfile.ZIP_STORED}
        assert file.testzip() is None
    assert len(names) == len(set(names))
    store = zarr.storage.ZipStore(one, mode="r")
    weights = zarr.open_array(store, path="layers/0001/weights", mode="r")[...]
    store.close()
    np.testing.assert_array_equal(weights, fitted.network_.layers[0].head.arrays["weights"])


def test_zip_file_is_not_overwritten(fitted: ResCNetClassifier, url: str) -> None:
    """As with folders, whatever the file is."""
    fs, path = fsspec.url_to_fs(url)
    fs.pipe_file(path, b"a thesis")
    with pytest.raises(rd.StoreError, match="already holds something"):
        fitted.save(url)
    assert fs.cat_file(path) == b"a thesis"


def test_failed_save_leaves_nothing(
    fitted: ResCNetClassifier, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a file nor a part of one, whether layers or the file itself cannot be written."""

    def fail(folder: str, file: Any) -> None:
        file.write(b"half of a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "pack_folder", fail)
    with pytest.raises((rd.StoreError, OSError), match="No space left"):
        fitted.save(url)
    fs, path = fsspec.url_to_fs(url)
    assert not fs.exists(path)
    assert list(tmp_path.iterdir()) == []


def test_replaced_zip_file_is_read_anew(fitted: ResCNetClassifier, images: Array, url: str) -> None:
    """A process that has read another network at the same URL loads the new one."""
    fitted.save(url)
    rd.load(url).predict(images[:1])
    fs, path = fsspec.url_to_fs(url)
    fs.rm(path)
    fitted.save(url, dtype="float16")
    weights = rd.load(url).network_.layers[0].head.arrays["weights"]
    assert not np.array_equal(weights, fitted.network_.layers[0].head.arrays["weights"])


@pytest.mark.parametrize("content", [b"", b"no zip file", b"half"])
def test_damaged_zip_file_is_named(
    fitted: ResCNetClassifier, tmp_path: Path, content: bytes
) -> None:
    """An empty file, another kind of file, and a truncated one."""
    path = tmp_path / "net.zip"
    if content == b"half":
        fitted.save(path)
        content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)
    with pytest.raises(rd.StoreError, match=r"net\.zip is not a complete zip file"):
        rd.load(path)


@pytest.mark.parametrize("depth", [[2], "2", 1.5])
def test_damaged_depth_is_named(fitted: ResCNetClassifier, tmp_path: Path, depth: Any) -> None:
    """It is in the attributes of a saved network; found by tests/hostile/hostile.py."""
    fitted.save(tmp_path / "net")
    edit_saved(tmp_path / "net", depth=depth)
    with pytest.raises(rd.StoreError, match=r"net are damaged \(depth is "):
        rd.load(tmp_path / "net")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"depth": 2**63},
            r"net are damaged \(ValueError: there are 3 classes and 92233720",
        ),
        ({"classes": {"dtype": "<i8", "values": []}}, r"there are 0 classes"),
        ({"image_shape": [2**31, 8, 1]}, r"image_shape is \[2147483648, 8, 1\], not three numbers"),
        ({"network": {"filters": 3}}, r"layers/0001/\w+ has the shape \(.*\)\. The attributes of"),
        ({"network": {"block": 16}}, r"net are damaged \(ValueError: block=16 does not fit"),
        ({"classes": {"dtype": "<i8", "values": [0, 1]}}, r"\(sign, class, feature\) = \(1, 2, "),
    ],
)
def test_attributes_that_contradict_the_layers_are_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """The network is not used with them; found by tests/hostile/hostile.py."""
    spec = rd.NetworkSpec(filters=2, first_filter_size=3, block=4, stride=4, head="regress")
    images = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 1), np.uint8)
    network = ResCNetClassifier(spec.replace(max_layers=1)).fit(images, [0, 1, 2, 0, 1, 2])
    network.save(tmp_path / "net")
    stored = read_saved(tmp_path / "net")
    if "block" in change.get("network", {}):
        stored["network"]["features"][0]["block"] = change["network"]["block"]
    elif "network" in change:
        stored["network"] |= change["network"]
    else:
        stored |= change
    edit_saved(tmp_path / "net", **stored)
    with pytest.raises(rd.StoreError, match=words):
        rd.load(tmp_path / "net").predict(images)


def test_altered_zip_file_is_named(fitted: ResCNetClassifier, tmp_path: Path) -> None:
    """A changed weight is found by the checksum in the file."""
    path = tmp_path / "net.zip"
    fitted.save(path)
    with zipfile.ZipFile(path) as file:
        member = file.getinfo("layers/0002/weights/c/0/0/0")
    data = bytearray(path.read_bytes())
    data[member.header_offset + 30 + len(member.filename) + member.file_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(rd.RescnetError, match=r"net\.zip is damaged\. layers/0002/weights"):
        rd.load(path).network_.in_memory()


def test_missing_zip_file_is_named(tmp_path: Path) -> None:
    """And a run store may be a folder with such a name."""
    with pytest.raises(rd.StoreError, match=r"no Zarr group at .*net\.zip.* does not exist"):
        rd.load(tmp_path / "net.zip")


def test_folder_named_like_a_zip_file(run_folder: Path, images: Array, tmp_path: Path) -> None:
    """It is read as the folder that it is."""
    shutil.copytree(run_folder, tmp_path / "run.zip")
    loaded = rd.load(tmp_path / "run.zip")
    np.testing.assert_array_equal(loaded.predict(images), rd.load(run_folder).predict(images))


# checksum of the attributes ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["net", "net.zip", "fused"])
def test_attributes_have_a_checksum(fitted: ResCNetClassifier, tmp_path: Path, name: str) -> None:
    """That of their JSON text, sorted by name."""
    network = rd.FusedNetwork([fitted.network_], (1.0,)) if name == "fused" else fitted.network_
    network.save(tmp_path / name)
    members = (f"{name}/networks/0001",) if name == "fused" else ()
    for path in (name, *members):
        attributes = Location(str(tmp_path / path)).attributes()
        found = attributes.pop("crc32c")
        text = json.dumps(attributes, sort_keys=True).encode()
        assert found == google_crc32c.value(text)
    assert verify_network(tmp_path / name) == []
    assert has_metadata_checksum(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("", '"matmul_precision": "split"', '"matmul_precision": "spliT"'),
        ("", '"temperature": ', '"temperature": 1'),
        ("fused", '"accuracy": 0.5', '"accuracy": 0.6'),
        ("fused/networks/0001", '"learning_rate": 0', '"learning_rate": 1'),
    ],
)
def test_altered_attributes_are_named(
    fitted: ResCNetClassifier, tmp_path: Path, name: str, old: str, new: str
) -> None:
    """By all that read them, although the values are of the right type."""
    held_out = HeldOut(10, (0.5,), 0.5)
    fused = rd.FusedNetwork([fitted.network_], (1.0,), held_out=held_out)
    (fused if name else fitted).save(tmp_path / (name[:5] or "net"))
    path = tmp_path / (name or "net") / "zarr.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    url = tmp_path / (name[:5] or "net")
    words = r"attributes of \S+ are damaged \(they are not those that were saved: their checksum"
    for use in (rd.load, describe_network):
        with pytest.raises(CorruptDataError, match=words):
            use(url)
    (problem,) = verify_network(url)
    assert "Restore a copy of its zarr.json" in problem


def test_attributes_without_checksum_are_read(
    fitted: ResCNetClassifier, images: Array, tmp_path: Path
) -> None:
    """Those of networks that earlier releases saved; a fused one may have some of them."""
    fitted.save(tmp_path / "net")
    edit_saved(tmp_path / "net")
    np.testing.assert_array_equal(rd.load(tmp_path / "net").predict(images), fitted.predict(images))
    rd.FusedNetwork([fitted.network_], (1.0,)).save(tmp_path / "fused")
    edit_saved(tmp_path / "fused/networks/0001")
    for name in ("net", "fused"):
        assert verify_network(tmp_path / name) == []
        assert not has_metadata_checksum(tmp_path / name)


# half precision ---------------------------------------------------------------------------------


def test_half_precision_scores_are_close(
    fitted: ResCNetClassifier, images: Array, tmp_path: Path
) -> None:
    """The weights are rounded once, relative to their size; loading and saving changes no more."""
    fitted.save(tmp_path / "half", dtype="float16")
    loaded = rd.load(tmp_path / "half")
    weights = loaded.network_.layers[0].head.arrays["weights"]
    exact = fitted.network_.layers[0].head.arrays["weights"]
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, exact, rtol=2**-11, atol=2**-39 * np.abs(exact).max())
    np.testing.assert_allclose(
        loaded.decision_function(images), fitted.decision_function(images), atol=2e-3
    )
    loaded.save(tmp_path / "again", dtype="float16")
    again = rd.load(tmp_path / "again").network_.layers[0].head.arrays["weights"]
    assert again.tobytes() == weights.tobytes()
    with xr.open_zarr(tmp_path / "half", group="layers/0001", consolidated=False) as dataset:
        np.testing.assert_array_equal(dataset["weights"].values, weights)


def test_unknown_type_of_weights_is_refused(fitted: ResCNetClassifier, tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(rd.SpecError, match="dtype='float61' is unknown"):
        fitted.save(tmp_path / "net.zip", dtype="float61")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1.0, 70_000.0, 1e30])
def test_half_precision_of_any_magnitude(rng: np.random.Generator, magnitude: float) -> None:
    """No array overflows or is lost, although float16 ends at 65504 and begins at 6e-8."""
    values = (magnitude * rng.standard_normal(2000)).astype(np.float32)
    half, attributes = to_half(values)
    assert half.dtype == np.float16
    np.testing.assert_allclose(from_half(half, attributes), values, rtol=2**-11)


def test_half_precision_leaves_other_arrays(rng: np.random.Generator) -> None:
    """Small ones and integers stay as they are, zeros stay zeros, and infinity is an error."""
    for values in (rng.random(1023), np.arange(5000)):
        kept, attributes = to_half(values)
        assert kept is values
        assert from_half(kept, attributes) is values
    assert not from_half(*to_half(np.zeros(5000, np.float32))).any()
    with pytest.raises(rd.DataError, match="not finite"):
        to_half(np.full(5000, np.inf, np.float32))


# pickles ----------------------------------------------------------------------------------------

PREDICT = """
import sys, joblib, numpy as np
from rescnet_dist.data import Images
(clf, network), images = joblib.load(sys.argv[1]), np.load(sys.argv[2])
np.save(sys.argv[3], [clf.decision_function(images), network.scores(Images(images))])
"""


def test_dump_needs_no_store(
    fitted: ResCNetClassifier, run_folder: Path, images: Array, tmp_path: Path
) -> None:
    """A fresh process predicts the same bits after the run store is gone."""
    shutil.copytree(run_folder, tmp_path / "run")
    loaded = rd.load(tmp_path / "run")
    joblib.dump((loaded, loaded.network_), tmp_path / "dump")
    np.save(tmp_path / "images.npy", images)
    shutil.rmtree(tmp_path / "run")
    arguments = [tmp_path / name for name in ("dump", "images.npy", "scores.npy")]
    subprocess.run([sys.executable, "-c", PREDICT, *map(str, arguments)], check=True)
    for scores in np.load(tmp_path / "scores.npy"):
        np.testing.assert_array_equal(scores, fitted.decision_function(images))


def test_pickled_network_keeps_its_identity(fitted: ResCNetClassifier) -> None:
    """It is the same network to Dask, with the same attributes."""
    network = fitted.network_
    copy = pickle.loads(pickle.dumps(network))
    assert copy.token == network.token
    assert (copy.spec, copy.image_shape, copy.depth) == (network.spec, network.image_shape, 2)
    assert isinstance(copy.layers, tuple)


def test_fitted_classifier_is_pickled_without_listeners(fitted: ResCNetClassifier) -> None:
    """Which may not be picklable; those of a classifier that is not fitted are kept."""
    state = pickle.loads(pickle.dumps(fitted))
    assert state.listeners == ()
    clf = ResCNetClassifier(listeners=(print,))
    assert pickle.loads(pickle.dumps(clf)).listeners == (print,)
    copy = rd.load(fitted.run_url_).set_params(listeners=(lambda event: None,))
    assert pickle.loads(pickle.dumps(copy)).listeners == ()
