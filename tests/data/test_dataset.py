"""Images and labels from what users have, the embedded digits, and the validation split."""

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
    Stored,
    as_images,
    as_labels,
    check_finite,
    classes_from_json,
    classes_to_json,
    encode,
    images_of,
    select_split,
    select_validation,
)
from rescnet_dist.data.labels import classes_array, classes_of
from rescnet_dist.errors import DataError, StoreError


def refuse(*args: Any, **kwargs: Any) -> None:
    """A scheduler that fails the test: nothing may compute here."""
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
    "float": [0.1, 2.5, -1e300, 0.1],
    "single float": np.array([0.1, 0.2, 0.1, 3], np.float32),
    "tuple": [(1, "a"), (0, "b"), (1, "a"), (1, "c")],
    "tuples of one length": [(1, 2), (3, 4), (1, 2), (5, 6)],
    "tuples of many lengths": [(), (1,), ((1, None), b"x"), (1,)],
    "none": [None, "a", None, "b"],
    "mix": [None, "a", 1, 2.5],
    "bytes": [b"x", b"x\x00", b"\x00\xff", b""],
    "bytes array": np.array([b"ab", b"c", b"ab", b"d"]),
    "str array": np.array(["left", "right", "left", "up"]),
    "object array": np.array(["left", 3, "left", None], dtype=object),
    "int8 array": np.array([3, -1, 3, 0], np.int8),
    "day": np.array(["2024-02-29", "1969-01-01", "2024-02-29", "2000-01-01"], "M8[D]"),
    "nanosecond": np.array([1, 5, 1, 10**18], "M8[ns]"),
    "duration": np.array([90, -5, 90, 0], "m8[s]"),
}
each_kind = pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())


def vector(labels: Any) -> Any:
    """Labels as the package takes them in."""
    return as_labels(labels, len(labels))


def assert_labels_equal(got: Any, expected: Any) -> None:
    """Equal values of equal types; of NumPy arrays, equal dtypes."""
    if isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
    values = expected.tolist() if isinstance(expected, np.ndarray) else list(expected)
    assert got.tolist() == values
    assert [type(a) for a in got.tolist()] == [type(b) for b in values]


@each_kind
def test_labels_of_any_kind_come_back_as_given(labels: Any) -> None:
    """The classes at the codes of the labels are the labels."""
    values = vector(labels)
    classes = classes_array(classes_of(values))
    codes = encode(values, classes)
    assert codes.dtype == np.int32
    assert len(classes) == codes.max() + 1 == len(set(np.asarray(codes).tolist()))
    assert_labels_equal(classes[codes], labels)


@each_kind
def test_labels_of_any_kind_survive_storage(labels: Any) -> None:
    """Their JSON form is text and gives back equal classes of the same dtype."""
    classes = classes_array(classes_of(vector(labels)))
    again = classes_from_json(json.loads(json.dumps(classes_to_json(classes))))
    assert again.dtype == classes.dtype
    assert_labels_equal(again, classes)


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
def test_any_mixture_of_labels_survives_storage(labels: list[Any]) -> None:
    """Numbers, strings, bytes, None and tuples of these, in any mixture and nesting."""
    objects = np.empty(len(labels), dtype=object)
    objects[:] = labels
    classes = classes_of(objects)
    stored = json.dumps(classes_to_json(classes_array(classes)))
    again = classes_from_json(json.loads(stored))
    assert again.tolist() == classes
    assert [repr(a) for a in again.tolist()] == [repr(c) for c in classes]
    assert [again[code] for code in encode(objects, again)] == labels


def test_classes_are_sorted_where_they_can_be() -> None:
    """Else they come as first seen, so that the order does not depend on hashes."""
    assert classes_of(np.array([3, 1, 2, 1])) == [1, 2, 3]
    assert classes_of(vector([(2, "a"), (1, "b")])) == [(1, "b"), (2, "a")]
    assert classes_of(vector([None, "b", 1, "a", "b"])) == [None, "b", 1, "a"]


@each_kind
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_lazy_labels_are_encoded_as_eager_ones(labels: Any, chunk: int) -> None:
    """Same classes and codes, and nothing is computed until asked for."""
    values = vector(labels)
    with dask.config.set(scheduler=refuse):
        lazy = vector(da.from_array(values, chunks=chunk))
        codes = encode(lazy, classes_array(classes_of(values)))
    assert isinstance(codes, da.Array)
    assert codes.dtype == np.int32
    with dask.config.set(scheduler="sync"):
        assert classes_of(lazy) == classes_of(values)
        np.testing.assert_array_equal(codes, encode(values, classes_array(classes_of(values))))


def test_a_label_that_is_no_class_is_named_or_marked() -> None:
    """With its value and what the classes are."""
    classes = np.array(["a", "b"])
    with pytest.raises(DataError, match=r"y has the label 'c'.*\['a', 'b'\]"):
        encode(np.array(["a", "c"]), classes)
    assert encode(np.array(["c", "b"]), classes, unknown=-1).tolist() == [-1, 1]
    lazy = encode(da.from_array(np.array(["a", "c"]), chunks=1), classes, name="validation y")
    with pytest.raises(DataError, match="validation y has the label 'c'"):
        lazy.compute(scheduler="sync")


def test_lossy_json_is_for_what_json_cannot_hold() -> None:
    """A temporary run may hold the text form of such a label."""
    classes = classes_array([frozenset([1]), frozenset([2])])
    with pytest.raises(DataError, match=r"frozenset\(\{1\}\) of type frozenset.*map your labels"):
        classes_to_json(classes)
    assert classes_to_json(classes, lossy=True)["values"] == ["frozenset({1})", "frozenset({2})"]


# images -----------------------------------------------------------------------------------------


@pytest.fixture
def pixels(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Seven small images of three channels."""
    return rng.integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)


def zarr_group(path: Path, arrays: dict[str, Any], zarr_format: Any = 3) -> Path:
    """A Zarr group of some arrays, in chunks of two rows."""
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(2, *values.shape[1:]))
    return path


def test_images_in_memory_and_lazy_ones_are_taken_as_they_are(
    pixels: np.ndarray[Any, Any],
) -> None:
    """NumPy stays NumPy, dask stays dask and is not computed; xarray holds either."""
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
        with dask.config.set(scheduler=refuse):
            images = as_images(source)
        assert images.is_lazy == is_lazy
        assert images.shape == pixels.shape
        assert images.stored is None
        np.testing.assert_array_equal(np.asarray(images.array), pixels)


@pytest.mark.parametrize("lazy", [False, True])
def test_images_without_channels_get_one(pixels: np.ndarray[Any, Any], lazy: bool) -> None:
    """(N, H, W) is (N, H, W, 1)."""
    gray = pixels[..., 0]
    images = as_images(da.from_array(gray, chunks=2) if lazy else gray)
    assert images.shape == (7, 6, 5, 1)
    np.testing.assert_array_equal(np.asarray(images.array)[..., 0], gray)


@pytest.mark.parametrize(
    ("as_path", "zarr_format"),
    [(str, 3), (Path, 3), (lambda path: f"file://{path}", 3), (str, 2)],
    ids=["str", "path", "url", "Zarr 2"],
)
def test_images_and_labels_are_found_in_a_zarr_group(
    tmp_path: Path, pixels: np.ndarray[Any, Any], as_path: Any, zarr_format: int
) -> None:
    """By their names, lazily, with a reference to where they lie."""
    arrays = {"images": pixels, "labels": np.arange(7) % 3, "other": np.zeros(4)}
    url = as_path(zarr_group(tmp_path / "data.zarr", arrays, zarr_format))
    with dask.config.set(scheduler=refuse):
        images = images_of(url)
        labels = select_split(url, None, "train").labels
    assert images.is_lazy
    assert images.stored == Stored(str(tmp_path / "data.zarr"), "images")
    np.testing.assert_array_equal(images.array.compute(scheduler="sync"), pixels)
    np.testing.assert_array_equal(labels.compute(scheduler="sync"), arrays["labels"])


@pytest.mark.parametrize("names", [("image", "label"), ("X", "y"), ("x", "y")])
def test_other_names_of_images_and_labels_are_known(
    tmp_path: Path, pixels: np.ndarray[Any, Any], names: tuple[str, str]
) -> None:
    """As xarray users and scikit-learn users call them."""
    zarr_group(tmp_path / "data.zarr", {names[0]: pixels, names[1]: np.arange(7)})
    assert images_of(tmp_path / "data.zarr").shape == pixels.shape
    assert select_split(tmp_path / "data.zarr", None, "train").labels.shape == (7,)


def test_a_dataset_stored_by_xarray_is_found(tmp_path: Path, pixels: np.ndarray[Any, Any]) -> None:
    """With its consolidated metadata or without."""
    data = {"images": (("n", "y", "x", "c"), pixels), "labels": (("n",), np.arange(7))}
    xr.Dataset(data).to_zarr(tmp_path / "data.zarr", consolidated=False)
    images = images_of(str(tmp_path / "data.zarr"))
    np.testing.assert_array_equal(images.array.compute(scheduler="sync"), pixels)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_bare_zarr_array_is_images(
    tmp_path: Path, pixels: np.ndarray[Any, Any], zarr_format: Any
) -> None:
    """Referred to where it has channels; without, it has to be reshaped, and has no reference."""
    for name, values in (("four", pixels), ("three", pixels[..., 0])):
        zarr.save_array(str(tmp_path / name), values, zarr_format=zarr_format)
    four, three = images_of(tmp_path / "four"), images_of(tmp_path / "three")
    assert four.stored == Stored(str(tmp_path / "four"), "")
    assert three.stored is None
    assert three.shape == (7, 6, 5, 1)
    np.testing.assert_array_equal(four.array.compute(scheduler="sync"), pixels)
    with pytest.raises((DataError, StoreError), match=r"label|no Zarr group"):
        select_split(tmp_path / "four", None, "train")


def test_images_at_a_memory_url_are_read(pixels: np.ndarray[Any, Any]) -> None:
    """Any fsspec URL will do."""
    url = "memory://test-data-images"
    zarr.save_array(url, pixels)
    assert images_of(url).stored == Stored(url, "")
    np.testing.assert_array_equal(images_of(url).array.compute(scheduler="sync"), pixels)


def test_pixels_that_are_not_finite_are_named() -> None:
    """By the index of the image, counted over all chunks, and the value."""
    images = np.zeros((4, 2, 2, 1))
    images[2, 1, 0] = np.inf
    images[3, 0, 0] = np.nan
    with pytest.raises(DataError, match="image 12 of X has the pixel value inf"):
        check_finite(images, 10)
    check_finite(images[:2], 0)
    check_finite(np.zeros((2, 2, 2, 1), np.uint8), 0)
    with pytest.raises(DataError, match="image 3 of photos has the pixel value nan"):
        as_images(np.where(np.isinf(images), 0, images), name="photos")


# digits -----------------------------------------------------------------------------------------

MNIST_PER_6000 = [592.3, 674.2, 595.8, 613.1, 584.2, 542.1, 591.8, 626.5, 585.1, 594.9]


def test_digits_have_mnists_shapes_and_values() -> None:
    """Whole images of 28×28 pixels, integer labels, and two sets without a common image."""
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


def test_digits_are_stratified_as_mnist() -> None:
    """Each class's share is within 1 % of that in MNIST."""
    counts = np.bincount(load_digits()[1], minlength=10)
    np.testing.assert_allclose(counts, MNIST_PER_6000, rtol=0.01)


def test_any_beginning_of_the_digits_has_all_classes() -> None:
    """They are shuffled, so that examples can take the first few hundred."""
    labels = load_digits()[1]
    assert all(np.bincount(labels[:200], minlength=10) > 5)


def test_digits_are_small_and_carry_their_license() -> None:
    """Under 2 MB in the package, no pickle in them, and the license beside them."""
    folder = Path(str(files("rescnet_dist.data")))
    assert os.path.getsize(folder / "digits.npz") < 2_000_000
    with np.load(folder / "digits.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "ui" for name in arrays.files)
    license = (folder / "digits-LICENSE.txt").read_text()
    for needed in ("MNIST", "LeCun", "Creative Commons Attribution-ShareAlike 3.0"):
        assert needed in license


# the split --------------------------------------------------------------------------------------


def split(codes: Any, fraction: float, seed: int, edges: list[int]) -> np.ndarray[Any, Any]:
    """The validation members (N,) when the images are cut into chunks at `edges`."""
    classes = int(codes.max()) + 1
    before = np.zeros(classes, np.int64)
    parts = []
    for chunk in np.split(codes, edges):
        parts.append(select_validation(chunk, before, fraction, seed))
        before = before + np.bincount(chunk, minlength=classes)
    return np.concatenate(parts)


@st.composite
def codes_and_chunks(draw: st.DrawFn) -> tuple[Any, list[int]]:
    """Codes (N,) of up to six classes, and where to cut them into chunks."""
    codes = np.array(draw(st.lists(st.integers(0, 5), min_size=1, max_size=300)))
    return codes, sorted(draw(st.lists(st.integers(0, len(codes)), max_size=8)))


@settings(max_examples=80, deadline=None)
@given(codes_and_chunks(), st.floats(0.01, 0.9), st.integers(0, 2**40))
def test_the_split_does_not_depend_on_chunks_and_is_stratified(
    data: tuple[Any, list[int]], fraction: float, seed: int
) -> None:
    """Each class gives its share to within one image, and the same ones whatever the chunks."""
    codes, edges = data
    whole = split(codes, fraction, seed, [])
    assert whole.dtype == bool
    np.testing.assert_array_equal(split(codes, fraction, seed, edges), whole)
    held_out, total = Counter(codes[whole].tolist()), Counter(codes.tolist())
    for code, count in total.items():
        assert abs(held_out[code] - fraction * count) <= 1, (code, count)


@pytest.mark.parametrize("fraction", [0.1, 0.2, 1 / 3, 0.5, 0.25, 0.9])
def test_shares_that_divide_a_class_are_met_exactly(fraction: float) -> None:
    """9,000 images of each class are a whole number of runs for each of these."""
    codes = np.repeat([0, 1], 9000)
    held_out = split(codes, fraction, 3, [5000, 12345])
    assert np.bincount(codes[held_out]).tolist() == [round(9000 * fraction)] * 2


def test_the_split_depends_on_the_seed_and_on_the_class() -> None:
    """Two seeds hold out different images; classes are not held out in step."""
    codes = np.repeat([0, 1], 1000)
    one, two = split(codes, 0.1, 1, []), split(codes, 0.1, 2, [])
    assert one.sum() == two.sum() == 200
    assert 0 < (one & two).sum() < 100
    assert (one[:1000] != one[1000:]).any()


def test_every_image_of_a_class_but_the_first_may_be_held_out() -> None:
    """Over many seeds, each place within a run is drawn about equally often."""
    codes = np.zeros(10, np.int64)
    drawn = sum(split(codes, 0.2, seed, []).astype(int) for seed in range(2000))
    assert drawn.sum() == 4000
    assert drawn[0] == 0
    assert abs(drawn[1] - 800) < 99  # in place of the first, too; 4.5 deviations
    assert all(abs(drawn[2:] - 400) < 80)


def test_no_split_takes_all_images_of_a_class() -> None:
    """However large the share and small the class."""
    codes = np.arange(6) % 4
    for seed in range(50):
        held_out = split(codes, 0.9, seed, [])
        assert set(codes[~held_out]) == set(codes)
