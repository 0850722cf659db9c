"""Images and labels of arrays and stores, the embedded digits, and the validation split."""

from __future__ import annotations

import json
import os
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rescnet_dist import load_digits
from rescnet_dist.data import (
    ArrayReference,
    as_images,
    as_labels,
    check_finite,
    classes_from_json,
    classes_to_json,
    encode,
    evaluation_images,
    select_split,
    select_validation,
)
from rescnet_dist.data.classes import classes_array
from rescnet_dist.data.labels import find_classes
from rescnet_dist.errors import DataError, StoreError


def fail_on_compute(*args: Any, **kwargs: Any) -> None:
    """Raise, as a Dask scheduler for tests in which nothing may be computed."""
    raise AssertionError("something lazy was computed")


# labels -----------------------------------------------------------------------------------------

LABELS = {
    "str": ["cat", "dog", "cat", "ant"],
    "unicode": ["ö", "語", "ö", ""],
    "int": [3, 1, 2, 1],
    "negative int": [-3, 7, -3, 0],
    "huge int": [2**70, 1, 2**70, 5],
    "int of 64 bits": [2**63, 1, 2**63 + 1, 1],
    "unsigned int": np.array([2**64 - 1, 0, 3, 0], np.uint64),
    "bool": [True, False, True, True],
    "whole float": [1.0, 2.0, -1e300, 1.0],
    "whole single float": np.array([1, 2, 1, 3], np.float32),
    "tuple": [(1, "a"), (0, "b"), (1, "a"), (1, "c")],
    "tuples of one length": [(1, 2), (3, 4), (1, 2), (5, 6)],
    "tuples of many lengths": [(), (1,), ((1, None), b"x"), (1,)],
    "int and whole float": [3, 1.0, 3, 2],
    "bytes": [b"x", b"x\x00", b"\x00\xff", b""],
    "bytes array": np.array([b"ab", b"c", b"ab", b"d"]),
    "str array": np.array(["left", "right", "left", "up"]),
    "object array": np.array([3, 1.0, 3, 2], dtype=object),
    "int8 array": np.array([3, -1, 3, 0], np.int8),
    "day": np.array(["2024-02-29", "1969-01-01", "2024-02-29", "2000-01-01"], "M8[D]"),
    "nanosecond": np.array([1, 5, 1, 10**18], "M8[ns]"),
    "duration": np.array([90, -5, 90, 0], "m8[s]"),
}
each_label_type = pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())


def to_vector(labels: Any) -> Any:
    """Return labels as the package converts them."""
    return as_labels(labels, len(labels))


def assert_labels_equal(got: Any, expected: Any) -> None:
    """Assert equal values of equal types and, for NumPy arrays, equal dtypes."""
    if isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
    values = expected.tolist() if isinstance(expected, np.ndarray) else list(expected)
    assert got.tolist() == values
    assert [type(a) for a in got.tolist()] == [type(b) for b in values]


@each_label_type
def test_encode_labels_of_any_type(labels: Any) -> None:
    """The classes at the codes of the labels are the labels."""
    values = to_vector(labels)
    classes = classes_array(find_classes(values))
    codes = encode(values, classes)
    assert codes.dtype == np.int32
    assert len(classes) == codes.max() + 1 == len(set(np.asarray(codes).tolist()))
    assert_labels_equal(classes[codes], labels)


@each_label_type
def test_classes_of_any_type_round_trip_through_json(labels: Any) -> None:
    """The restored classes are equal and have the same dtype."""
    classes = classes_array(find_classes(to_vector(labels)))
    restored = classes_from_json(json.loads(json.dumps(classes_to_json(classes))))
    assert restored.dtype == classes.dtype
    assert_labels_equal(restored, classes)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.binary(max_size=3)
            | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=3),
            lambda inner: st.lists(inner, max_size=3).map(tuple),
            max_leaves=4,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_classes_of_mixed_types_round_trip_through_json(labels: list[Any]) -> None:
    """Numbers, strings, bytes, None and tuples of these, as runs of earlier releases have them."""
    objects = classes_array(labels)
    classes = list(dict.fromkeys(labels))
    stored = json.dumps(classes_to_json(classes_array(classes)))
    restored = classes_from_json(json.loads(stored))
    assert restored.tolist() == classes
    assert [repr(a) for a in restored.tolist()] == [repr(c) for c in classes]
    assert [restored[code] for code in encode(objects, restored)] == labels


def test_text_of_python_and_numpy_is_of_one_type() -> None:
    """But not text and bytes."""
    labels = to_vector(["cat", np.str_("dog"), "ant"])
    assert find_classes(labels) == ["ant", "cat", "dog"]
    with pytest.raises(DataError, match=r"several types, such as b'dog' \(bytes\) and 'cat' \(str"):
        find_classes(to_vector(["cat", b"dog"]))


def test_classes_are_sorted_if_possible() -> None:
    """Else they are in order of appearance, so that the order does not depend on hashes."""
    assert find_classes(np.array([3, 1, 2, 1])) == [1, 2, 3]
    assert find_classes(to_vector([(2, "a"), (1, "b")])) == [(1, "b"), (2, "a")]
    mixed = [(None, "b"), (1, "a"), (0, "c"), (1, "a")]
    assert find_classes(to_vector(mixed)) == [(None, "b"), (1, "a"), (0, "c")]


@each_label_type
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_lazy_labels_have_the_same_codes(labels: Any, chunk: int) -> None:
    """The same classes and codes, and nothing is computed before it is needed."""
    values = to_vector(labels)
    with dask.config.set(scheduler=fail_on_compute):
        lazy = to_vector(da.from_array(values, chunks=chunk))
        codes = encode(lazy, classes_array(find_classes(values)))
    assert isinstance(codes, da.Array)
    assert codes.dtype == np.int32
    with dask.config.set(scheduler="sync"):
        assert find_classes(lazy) == find_classes(values)
        np.testing.assert_array_equal(codes, encode(values, classes_array(find_classes(values))))


def test_unknown_label() -> None:
    """The error has its value and the classes."""
    classes = np.array(["a", "b"])
    with pytest.raises(DataError, match=r"y has the label 'c'.*\['a', 'b'\]"):
        encode(np.array(["a", "c"]), classes)
    lazy = encode(da.from_array(np.array(["a", "c"]), chunks=1), classes, name="validation y")
    with pytest.raises(DataError, match="validation y has the label 'c'"):
        lazy.compute(scheduler="sync")


def test_lossy_json_of_unsupported_types() -> None:
    """A temporary run may have the repr of such a label."""
    classes = classes_array([frozenset([1]), frozenset([2])])
    with pytest.raises(DataError, match=r"frozenset\(\{1\}\) of type frozenset.*map your labels"):
        classes_to_json(classes)
    assert classes_to_json(classes, lossy=True)["values"] == ["frozenset({1})", "frozenset({2})"]


# images -----------------------------------------------------------------------------------------


@pytest.fixture
def pixels(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Seven small images of three channels."""
    return rng.integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)


def make_zarr_group(path: Path, arrays: dict[str, Any], zarr_format: Any = 3) -> Path:
    """Create a Zarr group of some arrays, in chunks of two rows."""
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(2, *values.shape[1:]))
    return path


def test_numpy_dask_and_xarray_images(
    pixels: np.ndarray[Any, Any],
) -> None:
    """NumPy stays NumPy, and dask stays dask and is not computed; xarray has either."""
    lazy = da.from_array(pixels, chunks=(3, 6, 5, 3))
    dims = ("image", "y", "x", "channel")
    cases = [
        (pixels, False),
        (pixels.tolist(), False),
        (xr.DataArray(pixels, dims=dims), False),
        (lazy, True),
        (xr.DataArray(lazy, dims=dims), True),
    ]
    for source, is_lazy in cases:
        with dask.config.set(scheduler=fail_on_compute):
            images = as_images(source)
        assert images.is_lazy == is_lazy
        assert images.shape == pixels.shape
        assert images.stored is None
        np.testing.assert_array_equal(np.asarray(images.array), pixels)


@pytest.mark.parametrize("lazy", [False, True])
def test_images_without_channels(pixels: np.ndarray[Any, Any], lazy: bool) -> None:
    """(N, H, W) becomes (N, H, W, 1)."""
    gray = pixels[..., 0]
    images = as_images(da.from_array(gray, chunks=2) if lazy else gray)
    assert images.shape == (7, 6, 5, 1)
    np.testing.assert_array_equal(np.asarray(images.array)[..., 0], gray)


@pytest.mark.parametrize(
    ("as_path", "zarr_format"),
    [(str, 3), (Path, 3), (lambda path: f"file://{path}", 3), (str, 2)],
    ids=["str", "path", "url", "Zarr 2"],
)
def test_images_and_labels_in_zarr_group(
    tmp_path: Path, pixels: np.ndarray[Any, Any], as_path: Any, zarr_format: int
) -> None:
    """They are found by name, and opened lazily with a reference to the array."""
    arrays = {"images": pixels, "labels": np.arange(7) % 3, "other": np.zeros(4)}
    url = as_path(make_zarr_group(tmp_path / "data.zarr", arrays, zarr_format))
    with dask.config.set(scheduler=fail_on_compute):
        images = evaluation_images(url)
        labels = select_split(url, None, "train").labels
    assert images.is_lazy
    assert images.stored == ArrayReference(str(tmp_path / "data.zarr"), "images")
    np.testing.assert_array_equal(images.array.compute(scheduler="sync"), pixels)
    np.testing.assert_array_equal(labels.compute(scheduler="sync"), arrays["labels"])


@pytest.mark.parametrize("names", [("image", "label"), ("X", "y"), ("x", "y")])
def test_aliases_of_images_and_labels(
    tmp_path: Path, pixels: np.ndarray[Any, Any], names: tuple[str, str]
) -> None:
    """The names that users of xarray and scikit-learn use."""
    make_zarr_group(tmp_path / "data.zarr", {names[0]: pixels, names[1]: np.arange(7)})
    assert evaluation_images(tmp_path / "data.zarr").shape == pixels.shape
    assert select_split(tmp_path / "data.zarr", None, "train").labels.shape == (7,)


def test_dataset_stored_by_xarray(tmp_path: Path, pixels: np.ndarray[Any, Any]) -> None:
    """Without consolidated metadata."""
    data = {"images": (("n", "y", "x", "c"), pixels), "labels": (("n",), np.arange(7))}
    xr.Dataset(data).to_zarr(tmp_path / "data.zarr", consolidated=False)
    images = evaluation_images(str(tmp_path / "data.zarr"))
    np.testing.assert_array_equal(images.array.compute(scheduler="sync"), pixels)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_single_zarr_array(tmp_path: Path, pixels: np.ndarray[Any, Any], zarr_format: Any) -> None:
    """It is a reference if it has channels; without, it is reshaped and has none."""
    for name, values in (("four", pixels), ("three", pixels[..., 0])):
        zarr.save_array(str(tmp_path / name), values, zarr_format=zarr_format)
    four, three = evaluation_images(tmp_path / "four"), evaluation_images(tmp_path / "three")
    assert four.stored == ArrayReference(str(tmp_path / "four"), "")
    assert three.stored is None
    assert three.shape == (7, 6, 5, 1)
    np.testing.assert_array_equal(four.array.compute(scheduler="sync"), pixels)
    with pytest.raises((DataError, StoreError), match=r"label|no Zarr group"):
        select_split(tmp_path / "four", None, "train")


def test_images_at_memory_url(pixels: np.ndarray[Any, Any]) -> None:
    """Any fsspec URL can be used."""
    url = "memory://test-data-images"
    zarr.save_array(url, pixels)
    assert evaluation_images(url).stored == ArrayReference(url, "")
    np.testing.assert_array_equal(evaluation_images(url).array.compute(scheduler="sync"), pixels)


def test_error_names_non_finite_pixel() -> None:
    """It has the number of the image, counted over all chunks, and the value."""
    images = np.zeros((4, 2, 2, 1))
    images[2, 1, 0] = np.inf
    images[3, 0, 0] = np.nan
    with pytest.raises(DataError, match="Image 12 of X has the pixel value inf"):
        check_finite(images, 10)
    check_finite(images[:2], 0)
    check_finite(np.zeros((2, 2, 2, 1), np.uint8), 0)
    with pytest.raises(DataError, match="Image 3 of photos has the pixel value nan"):
        as_images(np.where(np.isinf(images), 0, images), name="photos")


# digits -----------------------------------------------------------------------------------------

MNIST_PER_6000 = [592.3, 674.2, 595.8, 613.1, 584.2, 542.1, 591.8, 626.5, 585.1, 594.9]


def test_digits_shapes_and_values() -> None:
    """Images of 28×28 pixels, integer labels, and two sets without a common image."""
    images, labels = load_digits()
    test_images, test_labels = load_digits("test")
    assert images.shape == (6000, 28, 28, 1)
    assert test_images.shape == (1000, 28, 28, 1)
    assert images.dtype == test_images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 255)
    assert labels.shape == (6000,)
    assert test_labels.shape == (1000,)
    assert labels.dtype.kind == test_labels.dtype.kind == "i"
    assert set(test_labels) == set(range(10))
    assert not {i.tobytes() for i in images} & {i.tobytes() for i in test_images}
    with pytest.raises(ValueError, match="'train' and 'test'"):
        load_digits("validation")


def test_digits_are_stratified_like_mnist() -> None:
    """The fraction of each class is within 1 % of that in MNIST."""
    counts = np.bincount(load_digits()[1], minlength=10)
    np.testing.assert_allclose(counts, MNIST_PER_6000, rtol=0.01)


def test_first_digits_have_all_classes() -> None:
    """They are shuffled, so that examples can use the first few hundred."""
    labels = load_digits()[1]
    assert all(np.bincount(labels[:200], minlength=10) > 5)


def test_digits_are_small_and_have_a_license() -> None:
    """Under 2 MB in the package, without pickle, and with the license next to them."""
    folder = Path(str(files("rescnet_dist.data")))
    assert os.path.getsize(folder / "digits.npz") < 2_000_000
    with np.load(folder / "digits.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "ui" for name in arrays.files)
    license = (folder / "digits-LICENSE.txt").read_text()
    for needed in ("MNIST", "LeCun", "Creative Commons Attribution-ShareAlike 3.0"):
        assert needed in license


# the validation split ---------------------------------------------------------------------------


def select_in_chunks(
    codes: Any, fraction: float, seed: int, edges: list[int]
) -> np.ndarray[Any, Any]:
    """Return the held-out images (N,) if the images are divided into chunks at `edges`."""
    classes = int(codes.max()) + 1
    before = np.zeros(classes, np.int64)
    parts = []
    for chunk in np.split(codes, edges):
        parts.append(select_validation(chunk, before, fraction, seed))
        before = before + np.bincount(chunk, minlength=classes)
    return np.concatenate(parts)


@st.composite
def draw_codes_and_edges(draw: st.DrawFn) -> tuple[Any, list[int]]:
    """Draw codes (N,) of up to six classes, and the edges of chunks."""
    codes = np.array(draw(st.lists(st.integers(0, 5), min_size=1, max_size=300)))
    return codes, sorted(draw(st.lists(st.integers(0, len(codes)), max_size=8)))


@settings(max_examples=80, deadline=None)
@given(draw_codes_and_edges(), st.floats(0.01, 0.9), st.integers(0, 2**40))
def test_split_is_stratified_and_independent_of_chunks(
    data: tuple[Any, list[int]], fraction: float, seed: int
) -> None:
    """Each class has its fraction to within one image, for all chunkings."""
    codes, edges = data
    whole = select_in_chunks(codes, fraction, seed, [])
    assert whole.dtype == bool
    np.testing.assert_array_equal(select_in_chunks(codes, fraction, seed, edges), whole)
    held_out, total = Counter(codes[whole].tolist()), Counter(codes.tolist())
    for code, count in total.items():
        assert abs(held_out[code] - fraction * count) <= 1, (code, count)


@pytest.mark.parametrize("fraction", [0.1, 0.2, 1 / 3, 0.5, 0.25, 0.9])
def test_exact_fractions(fraction: float) -> None:
    """9,000 images of each class are a whole number of runs for each of these."""
    codes = np.repeat([0, 1], 9000)
    held_out = select_in_chunks(codes, fraction, 3, [5000, 12345])
    assert np.bincount(codes[held_out]).tolist() == [round(9000 * fraction)] * 2


def test_split_depends_on_seed_and_class() -> None:
    """Two seeds hold out different images, and two classes different ranks."""
    codes = np.repeat([0, 1], 1000)
    one, two = select_in_chunks(codes, 0.1, 1, []), select_in_chunks(codes, 0.1, 2, [])
    assert one.sum() == two.sum() == 200
    assert 0 < (one & two).sum() < 100
    assert (one[:1000] != one[1000:]).any()


def test_all_images_but_the_first_can_be_held_out() -> None:
    """Over many seeds, each rank of a run is drawn about equally often."""
    codes = np.zeros(10, np.int64)
    drawn = sum(select_in_chunks(codes, 0.2, seed, []).astype(int) for seed in range(2000))
    assert drawn.sum() == 4000
    assert drawn[0] == 0
    assert abs(drawn[1] - 800) < 99  # also in place of the first; 4.5 standard deviations
    assert all(abs(drawn[2:] - 400) < 80)


def test_split_leaves_an_image_of_each_class() -> None:
    """For any large fraction and small class."""
    codes = np.arange(6) % 4
    for seed in range(50):
        held_out = select_in_chunks(codes, 0.9, seed, [])
        assert set(codes[~held_out]) == set(codes)
