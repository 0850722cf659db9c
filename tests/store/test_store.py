"""The run store: one contract for every kind of location, without pickles."""

from __future__ import annotations

import errno
import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.errors import StoreError, StoreFullError, StoreReadError
from rescnet_dist.model import Bank, FittedHead, ImageScale, Layer
from rescnet_dist.model.heads.linear import LinearHead
from rescnet_dist.model.layer import BANK_ARRAYS, RATE_ARRAY
from rescnet_dist.store import (
    FORMAT_VERSION,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    RunStore,
    read_image_scale,
    read_layer,
    write_image_scale,
    write_layer,
    write_region,
)

DIMS = LinearHead.arrays
SMALL_NETWORK = NetworkSpec(filters=4, block=5, stride=2, head="regress", max_layers=2)


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URL of each kind of store, at which nothing is stored yet."""
    if request.param == "local":
        yield str(tmp_path / "store")
    else:
        name = f"memory://{uuid.uuid4().hex}/store"
        yield name
        Location(name).remove()


def read_files(url: str) -> dict[str, bytes]:
    """Return all files under a URL, by their path."""
    fs, path = fsspec.url_to_fs(url)
    return {name: fs.cat_file(name) for name in fs.find(path)}


# locations --------------------------------------------------------------------------------------


def test_location_exists_if_not_empty(url: str) -> None:
    """Not before, and not after its removal; removing nothing is no error."""
    location = Location.of(url)
    assert not location.exists()
    assert location.names() == []
    assert location.size() == 0
    location.remove()
    (location / "b.json").write_json([1])
    (location / "a.json").write_json([2])
    assert location.exists()
    assert location.names() == ["a.json", "b.json"]
    assert location.size() == sum(len(data) for data in read_files(url).values()) > 0
    location.remove()
    assert not location.exists()


def test_empty_folder_does_not_exist(tmp_path: Path) -> None:
    """So that a run can be created in a folder that was made for it."""
    assert not Location.of(tmp_path).exists()
    RunStore.create(tmp_path, {})
    assert Location.of(tmp_path).exists()


def test_local_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in other folders find it; a trailing slash and file:// make no difference."""
    monkeypatch.chdir(tmp_path)
    expected = str(tmp_path / "run")
    for given in ("run", "run/", Path("run"), f"file://{tmp_path}/run"):
        assert Location.of(given).url == expected
    assert Location.of("memory://run/").url == "memory://run"


# JSON records -----------------------------------------------------------------------------------


def test_json_records_round_trip(url: str) -> None:
    """A missing record is None; a record can be replaced, and is a single file."""
    location = Location.of(url) / "deep/er/record.json"
    assert location.read_json() is None
    for record in ({"a": [1, 2.5, None, "é"]}, {"b": True}, []):
        location.write_json(record)
        assert location.read_json() == record
    assert len(read_files(url)) == 1


def test_json_records_are_written_atomically(url: str) -> None:
    """While one thread replaces a long record by another, a second reads either."""
    location = Location.of(url) / "record.json"
    records = [{"values": [value] * 20_000} for value in (1, 2)]
    location.write_json(records[0])
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            for record in records:
                location.write_json(record)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(50):
            assert location.read_json() in records
    finally:
        stop.set()
        writer.join()


def test_failed_write_leaves_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial record is never read, even if the disk is full."""
    location = Location.of(tmp_path) / "record.json"
    location.write_json({"old": 1})

    def fail_halfway(self: Any, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        Path(path).write_bytes(value[: len(value) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.pipe_file", fail_halfway)
    with pytest.raises(StoreFullError, match=r"cannot be written: .*No space left"):
        location.write_json({"new": 2})
    assert location.read_json() == {"old": 1}


@pytest.mark.parametrize(
    "content", [b'{"step": 0, "cou', b"null", b'{"a": "\\ud800"}', b"[" * 3000 + b"]" * 3000]
)
def test_error_names_damaged_record(url: str, content: bytes) -> None:
    """The error has the path of a file that is cut off, null, or nested too deeply to be read."""
    run = RunStore.create(url, {})
    run.commit(0, {"checksums": {}, "counts": []})
    fs, path = fsspec.url_to_fs(f"{url}/commits/0000.json")
    fs.pipe_file(path, content)
    with pytest.raises(StoreError, match=r"commits/0000\.json is not valid JSON.*damaged"):
        run.commits()


# creating and opening ---------------------------------------------------------------------------


def test_attributes_of_new_run(url: str) -> None:
    """As it was created, and as it was changed."""
    run = RunStore.create(url, {"a": [1, 2], "b": "x"})
    run.update_attributes(b="y")
    opened = RunStore.open(url)
    assert opened == run
    expected = {"format": RUN_FORMAT, "format_version": FORMAT_VERSION, "a": [1, 2], "b": "y"}
    assert opened.attributes() == expected


def test_create_over_another_run(url: str) -> None:
    """The error names a remedy, and the run is not changed."""
    RunStore.create(url, {"a": 1})
    before = read_files(url)
    with pytest.raises(StoreError, match=r"already holds another run.*resume") as caught:
        RunStore.create(url, {"a": 2})
    assert url in str(caught.value)
    assert read_files(url) == before


@pytest.mark.parametrize("counts", [None, 3, [None], [[1], [1, 2]]], ids=str)
def test_damaged_counts_of_the_survey_are_named_by_every_reader(url: str, counts: Any) -> None:
    """Tasks read the checksums of this record, the driver reads all of it."""
    run = RunStore.create(url, {})
    run.commit(0, {"checksums": {}, "counts": counts})
    for read in (run.commits, run.last_commit, lambda: run.checksums(0)):
        with pytest.raises(StoreReadError, match=r"commits/0000\.json is damaged \(counts"):
            read()


@pytest.mark.parametrize("kind", ["text", "array", "group", "network", "damaged group", "file"])
def test_create_or_open_something_else(url: str, kind: str) -> None:
    """It is not overwritten, and cannot be opened as a run."""
    location = Location.of(url)
    fs, path = fsspec.url_to_fs(url)
    match kind:
        case "text":
            fs.makedirs(path, exist_ok=True)
            fs.pipe_file(f"{path}/thesis.txt", b"years of work")
        case "array":
            zarr.create_array(location.zarr_store(), data=np.arange(3))
        case "group":
            location.update_attributes({"title": "measurements"})
        case "network":
            location.update_attributes({"format": NETWORK_FORMAT, "format_version": 1})
        case "damaged group":
            fs.makedirs(path, exist_ok=True)
            fs.pipe_file(f"{path}/zarr.json", b"not json")
        case "file":
            fs.pipe_file(path, b"years of work")
    before = read_files(url)
    with pytest.raises(StoreError, match="already holds something that is not a run") as caught:
        RunStore.create(url, {})
    assert url in str(caught.value)
    with pytest.raises(StoreError, match=r"Check the (URL|path)|damaged") as caught:
        RunStore.open(url)
    assert url in str(caught.value)
    assert read_files(url) == before


def test_open_missing_run(url: str) -> None:
    """The error has the URL, and nothing is created."""
    word = "URL" if "://" in url else "path"
    with pytest.raises(StoreError, match=f"Check the {word}") as caught:
        RunStore.open(url)
    assert url in str(caught.value)
    assert caught.value.missing_path == (word == "path")
    assert not Location.of(url).exists()


# arrays -----------------------------------------------------------------------------------------


def test_only_whole_chunks_can_be_written(url: str) -> None:
    """Two tasks that wrote parts of one chunk would corrupt it silently."""
    run = RunStore.create(url, {})
    run.create_labels(10, 4)
    labels = run.data_array("labels", write=True)
    assert labels.chunks == (4,)
    for start, stop in ((0, 4), (4, 8), (8, 10), (0, 8), (4, 10)):
        write_region(labels, start, np.arange(start, stop))
    for start, stop in ((0, 3), (1, 4), (2, 6), (4, 9), (9, 10)):
        with pytest.raises(StoreError, match=f"Rows {start} to {stop} .* chunks of 4 rows"):
            write_region(labels, start, np.full(stop - start, -1))
    np.testing.assert_array_equal(run.data_array("labels")[...], np.arange(10))
    run.create_images((10, 2, 2, 1), "uint8", 4)
    images, first = run.images()
    assert images.chunks == (4, 2, 2, 1)
    assert first == 0


def test_recreated_layer_is_empty(url: str) -> None:
    """What an interrupted pass has written is not taken for the output of the next one."""
    run = RunStore.create(url, {})
    for fill in (7, 0):
        run.create_layer(1, (4, 2, 2, 3), (4, 5), 2)
        maps = run.maps(1, write=True)
        assert not np.any(maps[...])
        write_region(maps, 0, np.full((2, 2, 2, 3), fill, np.float32))


@pytest.mark.parametrize("keep", [(), (3,), (1, 2), (2, 9)])
def test_remove_maps_except_given_layers(url: str, keep: tuple[int, ...]) -> None:
    """Their maps and scores are unchanged; the others are removed, and fitted layers stay."""
    run = RunStore.create(url, {})
    for layer in (1, 2, 3):
        run.create_layer(layer, (4, 2, 2, 3), (4, 5), 2)
        write_region(run.maps(layer, write=True), 0, np.full((4, 2, 2, 3), layer, np.float32))
        write_region(run.scores(layer, write=True), 0, np.full((4, 5), layer, np.float32))
        write_layer(run.location, layer, make_layer(layer), DIMS)
    run.remove_maps_except(*keep)
    for layer in (1, 2, 3):
        if layer in keep:
            assert np.all(run.maps(layer)[...] == layer)
            assert np.all(run.scores(layer)[...] == layer)
        else:
            for open_array in (run.maps, run.scores):
                with pytest.raises(StoreError, match=f"{layer:04d}"):
                    open_array(layer)
        assert read_layer(run.location, layer, DIMS).head.rate == layer


def test_groups_are_written_with_the_first_layer(url: str) -> None:
    """A later layer does not write them again; plain Zarr finds all layers and their arrays."""
    run = RunStore.create(url, {})
    for layer in (1, 2):
        run.create_layer(layer, (4, 2, 2, 3), (4, 5), 2, with_groups=layer == 1)
        if layer == 2:
            (run.location / "layers/zarr.json").remove()  # as a mark
        write_layer(run.location, layer, make_layer(layer), DIMS)
    assert (run.location / "layers/zarr.json").read_json() is None
    assert (run.location / "layers/0002/zarr.json").read_json()["node_type"] == "group"
    write_layer(run.location, 1, make_layer(1), DIMS)
    root = zarr.open_group(run.location.zarr_store(read_only=True), mode="r")
    for group in ("layers", "maps", "scores"):
        assert sorted(root[group].keys()) == ["0001", "0002"]
    for layer in ("0001", "0002"):
        assert set(root["layers"][layer].array_keys()) == {*BANK_ARRAYS, *DIMS, RATE_ARRAY}


def test_xarray_opens_groups_after_removal(url: str) -> None:
    """The groups of maps and scores have their metadata next to the layers."""
    run = RunStore.create(url, {})
    for layer in (1, 2):
        run.create_layer(layer, (4, 2, 2, 3), (4, 5), 2)
    run.remove_maps_except(2)
    for group in ("maps", "scores"):
        with xr.open_zarr(url, group=group, consolidated=False) as dataset:
            assert set(dataset) == {"0002"}


def test_remove_maps_of_run_without_maps(url: str) -> None:
    """As before the first pass."""
    RunStore.create(url, {}).remove_maps_except(1)


# commits ----------------------------------------------------------------------------------------


def test_commits_end_at_first_gap(url: str) -> None:
    """Steps after a missing one are not committed; other files are ignored."""
    run = RunStore.create(url, {})
    assert run.commits() == []
    for step in (0, 1, 2, 4, 5):
        run.commit(step, {"seconds": step / 10, "checksums": {}, "counts": []})
    (run.location / "commits/0003.json.0a1b.partial").write_json({"step": 3})
    assert [record["step"] for record in run.commits()] == [0, 1, 2]
    assert run.commits()[2] == {"step": 2, "seconds": 0.2, "checksums": {}, "counts": []}
    run.commit(3, {"checksums": {}})
    assert [record["step"] for record in run.commits()] == [0, 1, 2, 3, 4, 5]


def test_no_commits_without_first_step(url: str) -> None:
    """The layers of a run without its survey cannot be used."""
    run = RunStore.create(url, {})
    run.commit(1, {"checksums": {}})
    assert run.commits() == []


def test_result_of_run(url: str) -> None:
    """It is None until it is written, and can be replaced."""
    run = RunStore.create(url, {})
    assert run.result() is None
    for depth in (1, 2):
        run.write_result({"depth": depth, "accuracies": []})
        assert run.result() == {"depth": depth, "accuracies": []}


# layers -----------------------------------------------------------------------------------------


def make_layer(rate: float = 0.1) -> Layer:
    """Return a layer of arbitrary numbers, some of which a text form would lose."""
    rng = np.random.default_rng(7)
    weights = rng.normal(size=(2, 3, 6)).astype(np.float32)
    weights[0, 0, :3] = [np.nextafter(np.float32(1), np.float32(2)), 1e-45, -0.0]
    return Layer(
        Bank(rng.normal(size=4), rng.normal(size=4), rng.normal(size=(3, 3, 4, 5)), np.zeros(5)),
        FittedHead(
            {
                "weights": weights,
                "intercept": rng.normal(size=(2, 3)),
                "present": np.array([[True, False, True]] * 2),
                "share": np.array([0.25, 0.75]),
            },
            rate,
        ),
    )


def assert_same_bits(got: Any, expected: Any) -> None:
    """Assert that the fields of two dataclasses have equal dtypes, shapes and bytes."""
    for name in type(expected).__dataclass_fields__:
        left, right = np.asarray(getattr(got, name)), np.asarray(getattr(expected, name))
        assert (left.dtype, left.shape) == (right.dtype, right.shape), name
        assert left.tobytes() == right.tobytes(), name


def test_layers_round_trip(url: str) -> None:
    """Filters, weights and normalization, bit for bit; also over an older layer."""
    location = Location.of(url)
    layer = make_layer(1 / 3)
    scale = ImageScale(np.array([0.1, -3.0]), np.array([1 / 255, 0.0]))
    write_layer(location, 1, make_layer(9.0), DIMS)
    write_layer(location, 1, layer, DIMS)
    write_image_scale(location, scale)
    restored = read_layer(location, 1, DIMS)
    assert_same_bits(restored.bank, layer.bank)
    assert restored.head.rate == layer.head.rate
    for name in DIMS:
        left, right = restored.head.arrays[name], layer.head.arrays[name]
        assert (left.dtype, left.tobytes()) == (right.dtype, right.tobytes()), name
    read = read_image_scale(location)
    for name in ("low", "scale"):
        assert getattr(read, name).tobytes() == getattr(scale, name).tobytes()
    assert read.views == {}


def test_read_missing_layer(url: str) -> None:
    """The error has its path and the URL."""
    RunStore.create(url, {})
    with pytest.raises(StoreError, match=r" at .*layers/0005") as caught:
        read_layer(Location.of(url), 5, DIMS)
    assert url in str(caught.value)


@pytest.mark.parametrize("attributes", [[], ["crc32c"], "crc32c", {"scale_factor": "x"}])
def test_read_layer_with_damaged_attributes(url: str, attributes: Any) -> None:
    """The error names the array."""
    location = Location.of(url)
    write_layer(location, 1, make_layer(1 / 3), DIMS)
    metadata = location / "layers/0001/filters/zarr.json"
    metadata.write_json(metadata.read_json() | {"attributes": attributes})
    with pytest.raises(StoreReadError, match="layers/0001/filters"):
        read_layer(location, 1, DIMS)


def test_messages_repeat_little_of_a_damaged_zip_file(url: str) -> None:
    """Python's own error has the whole header of a file."""

    def read() -> None:
        raise BadZipFile("header " + 5000 * "x")

    with pytest.raises(StoreReadError, match="is not a complete zip file") as raised:
        Location.of(url)._read("Zarr group", read)
    assert len(str(raised.value)) < 1000


# a whole run ------------------------------------------------------------------------------------


@pytest.fixture
def fitted(url: str, client: Client) -> ResCNetClassifier:
    """A small run that keeps all its maps."""
    images, labels = load_digits()
    run = RunSpec(chunk_images=40, keep_maps="all", validation=0.2)
    names = np.array([f"digit {label}" for label in labels[:100]])
    return ResCNetClassifier(SMALL_NETWORK, store=url, run=run).fit(images[:100, ::2, ::2], names)


def test_xarray_opens_run(fitted: ResCNetClassifier, url: str) -> None:
    """Every group, with names of all dimensions and the values that the package reads."""
    expected = {
        "data": {"images": ("image", "y", "x", "channel"), "labels": ("image",)},
        "maps": {"0001": ("image", "y", "x", "filter"), "0002": ("image", "y", "x", "filter")},
        "scores": {"0001": ("image", "class"), "0002": ("image", "class")},
        "image_scale": {"low": ("channel",), "scale": ("channel",)},
        "layers/0001": {
            "filters": ("filter_y", "filter_x", "input_channel", "filter"),
            "bias": ("filter",),
            "weights": ("sign", "class", "feature"),
            "intercept": ("sign", "class"),
            "rate": (),
        },
        "layers/0002": {"input_low": ("input_channel",), "input_scale": ("input_channel",)},
    }
    for group, variables in expected.items():
        with xr.open_zarr(url, group=group, consolidated=False) as dataset:
            assert {name: dataset[name].dims for name in variables} == variables
            assert dataset.sizes.get("image", 100) == 100
    with xr.open_zarr(url, group="layers/0001", consolidated=False) as dataset:
        weights = fitted.network_.layers[0].head.arrays["weights"]
        np.testing.assert_array_equal(dataset["weights"].values, weights)
    with xr.open_zarr(url, group="data", consolidated=False) as dataset:
        assert 0 < int((~dataset["train"]).sum()) < 40


def test_no_pickles_are_stored(fitted: ResCNetClassifier, url: str) -> None:
    """In a run and in a saved network, by name and by content."""
    saved = f"{url}-network"
    fitted.save(saved)
    files = read_files(url) | read_files(saved)
    assert len(files) > 50
    for name, data in files.items():
        assert not name.endswith((".pkl", ".pickle", ".joblib", ".npy", ".npz")), name
        assert not data.startswith(tuple(bytes([0x80, version]) for version in range(2, 6))), name
    Location(saved).remove()


def test_arrays_with_empty_chunks_are_rejected(tmp_path: Path) -> None:
    """Zarr opens them, and each use would divide by zero; found by tests/hostile/hostile.py."""
    zarr.create_array(tmp_path / "empty", shape=(0, 3), dtype="int32", chunks=(1, 3))
    assert Location(str(tmp_path / "empty")).open_array().shape == (0, 3)
    zarr.create_array(tmp_path / "array", shape=(4, 3), dtype="int32", chunks=(2, 3))
    metadata = tmp_path / "array/zarr.json"
    record = json.loads(metadata.read_text())
    record["chunk_grid"]["configuration"]["chunk_shape"] = [0, 3]
    metadata.write_text(json.dumps(record))
    with pytest.raises(StoreReadError, match=r"of shape \(4, 3\) has chunks of shape \(0, 3\)\."):
        Location(str(tmp_path / "array")).open_array()
