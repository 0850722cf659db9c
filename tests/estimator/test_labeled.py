"""Images of xarray: results have their dimension and coordinates."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import rescnet_dist as rd
from rescnet_dist.estimator.labeled import label_result

X, Y = (array[:100] for array in rd.load_digits())
X = X[:, 2:26:2, 2:26:2]
N = 6
TIMES = np.arange("2024-02-26", "2024-03-03", dtype="M8[D]")
NAMES = [f"digit {y}" for y in range(10)]
METHODS = {
    "predict": ("time",),
    "predict_proba": ("time", "class"),
    "decision_function": ("time", "class"),
    "staged_predict": ("layer", "time"),
}


def make_images(pixels: Any = X[:N]) -> xr.DataArray:
    """Return images with coordinates along several dimensions."""
    coords = {
        "time": TIMES,
        "patient": ("time", list("abcabc")),
        "row": ("y", np.arange(12)),
        "site": "north",
    }
    return xr.DataArray(pixels, coords, ["time", "y", "x", "channel"])


@pytest.mark.parametrize(("method", "dims"), METHODS.items())
@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "lazy"])
def test_results_have_the_coordinates_of_the_images(
    digits_classifier: rd.ResCNetClassifier, method: str, dims: tuple[str, ...], lazy: bool
) -> None:
    """Those along the images, and labels of classes and layers; values are the same."""
    images = make_images(da.from_array(X[:N], chunks=(4, 12, 12, 1)) if lazy else X[:N])
    result = getattr(digits_classifier, method)(images)
    assert isinstance(result, xr.DataArray)
    assert result.dims == dims
    assert dask.is_dask_collection(result) == lazy
    assert set(result.coords) == {"patient", *dims}
    np.testing.assert_array_equal(result.time, TIMES)
    if "class" in dims:
        assert result["class"].to_numpy().tolist() == NAMES
    if "layer" in dims:
        assert result.layer.to_numpy().tolist() == [1, 2]
    expected = getattr(digits_classifier, method)(X[:N])
    assert isinstance(expected, np.ndarray)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(result, expected, atol=1e-5)
    else:
        np.testing.assert_array_equal(result, expected)


def test_named_dimensions_may_be_in_any_order(digits_classifier: rd.ResCNetClassifier) -> None:
    """Channels first, or images last."""
    images = xr.DataArray(X[:N], {"image": list("abcdef")}, ["image", "y", "x", "channel"])
    expected = digits_classifier.predict(X[:N])
    for order in (("image", "channel", "y", "x"), ("y", "x", "channel", "image")):
        result = digits_classifier.predict(images.transpose(*order))
        np.testing.assert_array_equal(result, expected)
        assert result.image.to_numpy().tolist() == list("abcdef")
    without = digits_classifier.predict(images.isel(channel=0))
    np.testing.assert_array_equal(without, expected)


def test_predictions_of_a_dataset_are_those_of_its_test_split(
    digits_classifier: rd.ResCNetClassifier,
) -> None:
    """With the coordinates of these images, such as file names."""
    coords = {
        "split": ("image", ["train", "test"] * 3),
        "file": ("image", [f"{n}.png" for n in range(N)]),
    }
    dims = ["image", "y", "x", "channel"]
    dataset = xr.Dataset({"images": (dims, X[:N])}, coords)
    result = digits_classifier.predict(dataset)
    assert result.file.to_numpy().tolist() == ["1.png", "3.png", "5.png"]
    np.testing.assert_array_equal(result, digits_classifier.predict(X[1:N:2]))
    whole = digits_classifier.predict(dataset.drop_vars("split"))
    np.testing.assert_array_equal(whole, digits_classifier.predict(X[:N]))
    only = digits_classifier.predict(dataset.isel(image=slice(0, None, 2)))
    assert only.split.to_numpy().tolist() == ["train"] * 3


def test_classes_of_any_type_are_coordinates() -> None:
    """Also tuples, of which pandas would make several levels."""
    classes = np.empty(2, object)
    classes[:] = [("cat", 1), ("dog", 2)]
    result = label_result(np.eye(2), make_images()[:2], ("image", "class"), {"class": classes})
    assert result["class"].to_numpy().tolist() == [("cat", 1), ("dog", 2)]
