"""Kinds of arrays, told apart without importing dask.array, xarray and pandas, which are slow.

A value can be of a class only if the module of the class has been imported.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import dask.array as da
    import pandas as pd
    import xarray as xr


def is_dask_array(value: Any) -> TypeGuard[da.Array]:
    """Return whether a value is a dask array.

    >>> import dask.array as da
    >>> is_dask_array(da.ones(3)), is_dask_array([1, 1, 1])
    (True, False)
    """
    return _is_instance(value, "dask.array", "Array")


def is_xarray_dataset(value: Any) -> TypeGuard[xr.Dataset]:
    """Return whether a value is an xarray Dataset.

    >>> is_xarray_dataset("photos.zarr")
    False
    """
    return _is_instance(value, "xarray", "Dataset")


def is_url_or_dataset(value: Any) -> TypeGuard[str | os.PathLike[str] | xr.Dataset]:
    """Return whether a value is a dataset that may have splits: a URL, a path or a Dataset.

    >>> is_url_or_dataset("photos.zarr"), is_url_or_dataset([[0, 1], [1, 0]])
    (True, False)
    """
    return isinstance(value, str | os.PathLike) or is_xarray_dataset(value)


def is_xarray_array(value: Any) -> TypeGuard[xr.DataArray]:
    """Return whether a value is an xarray DataArray.

    >>> import xarray as xr
    >>> is_xarray_array(xr.DataArray([1])), is_xarray_array(xr.Dataset())
    (True, False)
    """
    return _is_instance(value, "xarray", "DataArray")


def is_data_frame(value: Any) -> TypeGuard[pd.DataFrame]:
    """Return whether a value is a pandas DataFrame.

    >>> import pandas as pd
    >>> is_data_frame(pd.DataFrame()), is_data_frame({})
    (True, False)
    """
    return _is_instance(value, "pandas", "DataFrame")


def _is_instance(value: Any, module: str, name: str) -> bool:
    """Return whether a value is of a class of a module; not if the module is not imported."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))
