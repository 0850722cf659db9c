"""CuPy where it is to be had, compiled CUDA sources, and matrix products of a chosen precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas

Array = Any  # a cupy.ndarray: CuPy has no types to check

FLOAT32 = 68  # CUBLAS_COMPUTE_32F: sums in single precision
REAL, HALF = 0, 2  # CUDA_R_32F, CUDA_R_16F
ALIGNED = 32  # numbers that rows are filled up to, as matrix units take them

# which parts of matrices are multiplied, by how many parts there are
PAIRS = {1: ((0, 0),), 2: ((0, 0), (0, 1), (1, 0))}
_products: ContextVar[str] = ContextVar("products", default="split")


@cache
def problem() -> str | None:
    """Why no GPU can be used, if so."""
    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "no device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)


def memory() -> tuple[str, int]:
    """A name of the GPU in use, which no other has, and its bytes."""
    device = cupy.cuda.Device()
    return str(device.pci_bus_id), int(device.mem_info[1])


def used_share() -> float:
    """The share of the GPU's memory that is taken, but for what CuPy keeps for later."""
    free, total = cupy.cuda.Device().mem_info
    return 1 - (free + cupy.get_default_memory_pool().free_bytes()) / total


def free() -> None:
    """Give back what CuPy keeps for later."""
    cupy.get_default_memory_pool().free_all_blocks()


def products() -> str:
    """How matrices are multiplied: "float32", "split" or "half"."""
    return _products.get()


@contextmanager
def using_products(how: str) -> Iterator[None]:
    """Multiply matrices in this way: "float32"; "half", in half precision, of the 11 bits that TF32
    has as well, on matrix units; or "split", three of these products, of such numbers and what they
    leave, for nearly all digits. Sums are in single precision."""
    token = _products.set(how)
    try:
        yield
    finally:
        _products.reset(token)


@cache
def module(name: str, definitions: tuple[tuple[str, object], ...]) -> Any:
    """The compiled CUDA source of this name in this package, with names defined."""
    source = (files(__package__) / f"{name}.cu").read_text()
    options = ["--std=c++17", *(f"-D{name}={value}" for name, value in definitions)]
    return cupy.RawModule(code=source, options=tuple(options))


def turned(matrix: Array) -> tuple[Array, ...]:
    """A matrix (n, m) of numbers of the order of 1, rows of which may lie apart, turned round: (m',
    n'), filled up with zeros. As products are to be (`using_products`) it is in single precision,
    in half precision, or split into that and the rest."""
    how = products()
    half = how != "float32"
    (n, m), (high_n, high_m) = matrix.shape, (aligned(side) for side in matrix.shape)
    kind = np.float16 if half else np.float32
    high = cupy.empty((high_m, high_n), kind)
    low = cupy.empty_like(high) if how == "split" else None
    definitions = (("HALF", int(half)),)
    module("turned", definitions).get_function("turn")(
        (high_m // ALIGNED, high_n // ALIGNED), (32, 8),
        (matrix, high, np.intp(0) if low is None else low, n, m, matrix.strides[0] // 4, high_n),
    )  # fmt: skip
    return (high,) if low is None else (high, low)


def aligned(side: int) -> int:
    """A side of a matrix as matrix units take it."""
    return -(-side // ALIGNED) * ALIGNED


def braces(values: Any) -> str:
    """Nested whole numbers as C initialises arrays with them."""
    if hasattr(values, "__len__"):
        return "{" + ",".join(map(braces, values)) + "}"
    return str(int(values))


def gemm(a: Array, b: Array, c: int, pitch: int, *, beta: float = 1.0) -> None:
    """C (m, n) += A Bᵀ of A (m, k) and B (n, k), all rows of which lie side by side; C is a pointer
    to columns of this pitch in single precision."""
    (m, k), n = a.shape, len(b)
    one, scale = np.array(1, np.float32), np.array(beta, np.float32)
    kind = HALF if a.dtype == np.float16 else REAL
    cublas.gemmEx(
        cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, m, n, k,
        one.ctypes.data, a.data.ptr, kind, k, b.data.ptr, kind, k, scale.ctypes.data, c, REAL,
        pitch, FLOAT32, -1,
    )  # fmt: skip
