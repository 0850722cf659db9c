"""Helpers for arrays of NumPy or, on a GPU, CuPy. CuPy is never imported here."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def on_gpu(array: Any) -> bool:
    """Return whether an array is a CuPy array."""
    kind = type(array)
    return kind is not np.ndarray and kind.__module__.startswith("cupy")


def get_array_module(array: Any) -> Any:
    """Return the module of an array's library: numpy or cupy."""
    return sys.modules["cupy"] if on_gpu(array) else np


def to_host(value: Any) -> Any:
    """Copy an array, or all arrays of a dataclass, dict or tuple, to the memory of the host.

    Parameters
    ----------
    value : ndarray, cupy.ndarray, dataclass instance, dict, tuple or any other value
        Containers are converted recursively.

    Returns
    -------
    ndarray, dataclass instance, dict, tuple or any other value
        NumPy arrays and values that hold no arrays are returned unchanged.
    """
    if on_gpu(value):
        return value.get()
    if isinstance(value, dict):
        return {name: to_host(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(to_host(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: to_host(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **changed)
    return value


def asarray_like(array: Any, other: Any) -> Any:
    """Return `array` in the memory, of the host or of the GPU, that `other` is in."""
    return get_array_module(other).asarray(array) if on_gpu(other) else to_host(array)


def contiguous_copy(array: Any) -> Any:
    """Return a copy of `array` if it is a view on a GPU, else `array` itself.

    The memory alignment of a view can change the rounding of a matrix product on a GPU.
    """
    return array.copy() if on_gpu(array) and array.base is not None else array


def signed_root(values: Any) -> Any:
    """Return sign(v)·|v|^½ of each value v."""
    return np.copysign(np.sqrt(np.abs(values)), values)
