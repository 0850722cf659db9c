"""Results as xarray DataArrays, with the coordinates of the images, if the images are of xarray."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from rescnet_dist.data import evaluation_coords
from rescnet_dist.data.kinds import is_xarray_array, is_xarray_dataset


def xarray_like_input(*dims: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a method of a classifier to return a DataArray for images of xarray.

    `dims` are the dimensions of the result: "image", which gets the name and the coordinates that
    it has in X, and "class" or "layer", which get coordinates of their own. A result of fewer
    dimensions has the first of them. Lazy results stay lazy.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
            values = method(self, X, *args, **kwargs)
            coords = {"class": self.classes_, "layer": np.arange(1, self.depth_ + 1)}
            return label_result(values, X, dims[: values.ndim], coords)

        return wrapper

    return decorate


def label_result(values: Any, X: Any, dims: tuple[str, ...], coords: dict[str, Any]) -> Any:
    """Return values as a DataArray if X is of xarray, else as they are.

    Parameters
    ----------
    values : ndarray or dask.array.Array
        A result for the images of X.
    X : object
        The images, as given to a method of the classifier.
    dims : tuple of str
        Dimensions of the values; "image" stands for that of the images.
    coords : dict of str to array
        Coordinates of the other dimensions.

    Returns
    -------
    ndarray, dask.array.Array or xarray.DataArray
        The values.
    """
    if not (is_xarray_array(X) or is_xarray_dataset(X)):
        return values
    import xarray as xr  # slow to import

    name, image_coords = evaluation_coords(X)
    own = {dim: (dim, coords[dim]) for dim in dims if dim in coords}
    return xr.DataArray(
        values, {**image_coords, **own}, [name if dim == "image" else dim for dim in dims]
    )
