"""Which library an array is of: NumPy, or CuPy if it is on a GPU; CuPy is never imported for it."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def on_gpu(array: Any) -> bool:
    """Whether an array is one of CuPy's."""
    return type(array).__module__.partition(".")[0] == "cupy"


def gpu_kernels() -> Any:
    """The kernels for arrays on a GPU, `rescnet_dist.gpu`."""
    return import_module("rescnet_dist.gpu")


def get_array_module(array: Any) -> Any:
    """The module that makes arrays of the kind of this one: numpy, or cupy."""
    return sys.modules["cupy"] if on_gpu(array) else np


def to_host(value: Any) -> Any:
    """An array, or a dataclass with all arrays in it, in the memory of the machine itself."""
    if on_gpu(value):
        return value.get()
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: to_host(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **changed)
    return value


def asarray_like(array: Any, other: Any) -> Any:
    """An array, wherever it is, where another one is."""
    return get_array_module(other).asarray(array) if on_gpu(other) else to_host(array)


def contiguous_copy(array: Any) -> Any:
    """Rows of an array on a GPU as an array of their own: where its memory begins can change the
    rounding of a matrix product there."""
    return array.copy() if on_gpu(array) and array.base is not None else array
