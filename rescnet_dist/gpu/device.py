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
_matmul_precision: ContextVar[str] = ContextVar("matmul_precision", default="split")


@cache
def problem() -> str | None:
    """Why no GPU can be used, if so."""
    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "no device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)


def memory() -> tuple[str, int, int]:
    """A name of the GPU in use, which no other has, its bytes, and those that this process may take
    of it: all, or as CUPY_GPU_MEMORY_LIMIT has it."""
    device = cupy.cuda.Device()
    total = int(device.mem_info[1])
    limit = cupy.get_default_memory_pool().get_limit()
    return str(device.pci_bus_id), total, min(limit or total, total)


def used_share() -> float:
    """The share of what this process may take of the GPU's memory that is taken, but for what CuPy
    keeps for later: by this process, or by others where they have left less."""
    pool, mine = cupy.get_default_memory_pool(), memory()[2]
    left = cupy.cuda.Device().mem_info[0] + pool.free_bytes()
    return float(1 - min(mine - pool.used_bytes(), left) / mine)


def free() -> None:
    """Give back what CuPy keeps for later."""
    cupy.get_default_memory_pool().free_all_blocks()


def matmul_precision() -> str:
    """How matrices are multiplied: "float32", "split" or "half"."""
    return _matmul_precision.get()


@contextmanager
def using_matmul_precision(how: str) -> Iterator[None]:
    """Multiply matrices in this way: "float32"; "half", in half precision, of the 11 bits that TF32
    has as well, on matrix units; or "split", three of these products, of such numbers and what they
    leave, for nearly all digits. Sums are in single precision."""
    token = _matmul_precision.set(how)
    try:
        yield
    finally:
        _matmul_precision.reset(token)


@cache
def module(name: str, definitions: tuple[tuple[str, object], ...]) -> Any:
    """The compiled CUDA source of this name in this package, with names defined."""
    source = (files(__package__) / f"{name}.cu").read_text()
    options = ["--std=c++17", *(f"-D{name}={value}" for name, value in definitions)]
    return cupy.RawModule(code=source, options=tuple(options))


def transpose(matrix: Array) -> tuple[Array, ...]:
    """A matrix (n, m) of numbers of the order of 1, rows of which may lie apart, turned round: (m',
    n'), filled up with zeros. As products are to be (`using_matmul_precision`) it is in single precision,
    in half precision, or split into that and the rest."""
    n, m = matrix.shape
    parts = _transposed_parts(n, m)
    high, low = parts
    _transpose_kernels()("transpose")(
        (len(high) // ALIGNED, high.shape[1] // ALIGNED), (32, 8),
        (matrix, high, pointer(low), n, m, matrix.strides[0] // 4, high.shape[1]),
    )  # fmt: skip
    return tuple(part for part in parts if part is not None)


def transpose_pixels(
    inputs: tuple[Array, Array], shift: Array, scale: Array, margin: int, across: int, channels: int
) -> tuple[Array, ...]:
    """(Pixels − shift)·scale of maps (n, H, W, f) and images (n, H, W, d), of shift and scale
    (f + d,), as a matrix turned round, as `transpose` does it: (P·c, n'). Each row of pixels is begun
    by `margin` zeros and filled up to `across`, the last is followed by a margin, P = H·across +
    margin, and pixels are filled up to c channels."""
    maps, images = inputs
    n, height, width, second = images.shape
    parts = _transposed_parts(n, (height * across + margin) * channels)
    high, low = parts
    _transpose_kernels()("transpose_pixels")(
        (len(high) // ALIGNED, high.shape[1] // ALIGNED), (32, 8),
        (
            maps, images, shift, scale, high, pointer(low),
            *(np.int32(v) for v in (n, height, width, maps.shape[3], second, margin, across)),
            np.int32(channels), high.shape[1],
        ),
    )  # fmt: skip
    return tuple(part for part in parts if part is not None)


def _transposed_parts(n: int, m: int) -> tuple[Array, Array | None]:
    """Room for a matrix (n, m) turned round, and for what half precision leaves of it, if that is
    wanted."""
    kind = np.float32 if matmul_precision() == "float32" else np.float16
    high = cupy.empty((aligned(m), aligned(n)), kind)
    return high, cupy.empty_like(high) if matmul_precision() == "split" else None


def _transpose_kernels() -> Any:
    """What gives the kernels that turn matrices as products are to be."""
    return module("transpose", (("HALF", int(matmul_precision() != "float32")),)).get_function


def pointer(array: Array | None) -> Any:
    """An argument of a kernel, or that there is none."""
    return np.intp(0) if array is None else array


def aligned(side: int) -> int:
    """A side of a matrix as matrix units take it."""
    return -(-side // ALIGNED) * ALIGNED


def braces(values: Any) -> str:
    """Nested whole numbers as C initializes arrays with them."""
    if hasattr(values, "__len__"):
        return "{" + ",".join(map(braces, values)) + "}"
    return str(int(values))


def gemm(a: Array, b: Array, c: int, pitch: int, factor: float = 1.0) -> None:
    """C (m, n) += factor·A Bᵀ of A (m, k) and B (n, k), all rows of which lie side by side; C is a
    pointer to columns of this pitch in single precision."""
    (m, k), n = a.shape, len(b)
    one, scale = np.array(1, np.float32), np.array(factor, np.float32)
    kind = HALF if a.dtype == np.float16 else REAL
    cublas.gemmEx(
        cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, m, n, k,
        scale.ctypes.data, a.data.ptr, kind, k, b.data.ptr, kind, k, one.ctypes.data, c, REAL,
        pitch, FLOAT32, -1,
    )  # fmt: skip
