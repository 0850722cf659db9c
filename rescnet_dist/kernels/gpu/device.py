"""The GPU device: its memory, compiled CUDA sources, and matrix products of a chosen precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any

import cupy
import numpy as np

from rescnet_dist._compat import load_cuda_library

Array = Any  # a cupy.ndarray: CuPy has no type annotations

cublas, get_cublas_handle = load_cuda_library("cublas")

CUBLAS_COMPUTE_32F = 68  # sums in single precision
CUDA_R_32F, CUDA_R_16F = 0, 2  # data types of matrices
ALIGNMENT_NUMBERS = 32  # sides of matrices are padded to a multiple of it for matrix units

# The pairs of parts, left and right, that are multiplied if matrices have 1 or 2 parts
PRODUCT_PARTS = {1: ((0, 0),), 2: ((0, 0), (0, 1), (1, 0))}
_matmul_precision: ContextVar[str] = ContextVar("matmul_precision", default="split")
RETAINED_BYTES = 2**26  # of two arrays that stay: of fewer, free blocks are kept
_RETAINED_POOL = cupy.cuda.MemoryPool()  # of arrays that stay


@cache
def problem() -> str | None:
    """Return the reason why no GPU can be used, None if one can."""
    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "no device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)


def memory() -> tuple[str, int, int]:
    """Return the unique name of the GPU in use, its bytes, and the bytes this process may use.

    The latter are all, unless CUPY_GPU_MEMORY_LIMIT limits them.
    """
    device = cupy.cuda.Device()
    total = int(device.mem_info[1])
    limit = cupy.get_default_memory_pool().get_limit()
    return str(device.pci_bus_id), total, min(limit or total, total)


def used_memory_fraction() -> float:
    """Return the used fraction of the GPU memory that this process may use.

    Memory that CuPy has pooled for later use counts as free. If other processes have left less than
    this process may use, the rest counts as used.
    """
    pools, limit = (cupy.get_default_memory_pool(), _RETAINED_POOL), memory()[2]
    used = sum(pool.used_bytes() for pool in pools)
    available = cupy.cuda.Device().mem_info[0] + sum(pool.free_bytes() for pool in pools)
    return float(1 - min(limit - used, available) / limit)


def retain(array: Array) -> Array:
    """Copy an array (any shape) that stays to memory that temporary arrays are not taken from.

    CuPy divides the blocks of its pool, and an array that stays keeps the rest of its block from
    being returned. Many of them leave pieces that are too small for the arrays of a chunk.

    The array itself is returned if CUPY_GPU_MEMORY_LIMIT is set, which holds for each pool, and if
    there is no memory for a copy.
    """
    pool = cupy.get_default_memory_pool()
    if pool.get_limit():
        return array
    for is_last in (False, True):
        try:
            with cupy.cuda.using_allocator(_RETAINED_POOL.malloc):
                copy = array.copy()
            if RETAINED_BYTES < 2 * array.nbytes < _RETAINED_POOL.free_bytes():
                _RETAINED_POOL.free_all_blocks()  # blocks of another size, of an earlier layer
            return copy
        except cupy.cuda.memory.OutOfMemoryError:
            if not is_last:
                pool.free_all_blocks()  # the other pool frees only its own blocks by itself
    return array


def free() -> None:
    """Release the memory, of the GPU and pinned main memory, that CuPy has pooled for later use."""
    cupy.get_default_memory_pool().free_all_blocks()
    _RETAINED_POOL.free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def matmul_precision() -> str:
    """Return the precision of matrix products: "float32", "split" or "half"."""
    return _matmul_precision.get()


@contextmanager
def using_matmul_precision(precision: str) -> Iterator[None]:
    """Multiply matrices in the body with a precision: "float32", "half" or "split".

    "half" rounds to half precision, whose 11 bits are those of TF32 as well, and runs on matrix
    units. "split" computes three such products, of rounded numbers and their remainders, which
    keeps nearly all digits. Sums are always in single precision.
    """
    token = _matmul_precision.set(precision)
    try:
        yield
    finally:
        _matmul_precision.reset(token)


@cache
def load_module(name: str, definitions: tuple[tuple[str, object], ...]) -> Any:
    """Compile the CUDA source {name}.cu of this package with preprocessor definitions."""
    source = (files(__package__) / f"{name}.cu").read_text()
    options = ["--std=c++17", *(f"-D{name}={value}" for name, value in definitions)]
    return cupy.RawModule(code=source, options=tuple(options))


def transpose(
    matrix: Array,
    mean: Array | None = None,
    factors: Array | None = None,
    last: Array | None = None,
) -> tuple[Array, ...]:
    """Return the transpose (m', n') of a matrix (n, m), padded with zeros, as one or two parts.

    Depending on `matmul_precision` it is in single precision, in half precision, or split into half
    precision and the remainder. Numbers should be of the order of 1; rows need not be contiguous
    with each other.

    A mean (m,) in float64 is subtracted from each row, which is then multiplied by its factor, if
    factors (n,) are given. A last row (m,) may follow, which is transposed as it is.
    """
    n, m = matrix.shape
    if matrix.dtype != np.float32 or matrix.strides[1] != matrix.itemsize:
        matrix = cupy.ascontiguousarray(matrix, np.float32)
    parts = _allocate_parts(n + (last is not None), m)
    high, low = parts
    shift, rest = (None, None) if mean is None else split_mean(mean)
    single = (None if a is None else a.astype(np.float32) for a in (factors, last))
    vectors = [array_or_null(vector) for vector in (shift, rest, *single)]
    _load_transpose_kernels()("transpose")(
        (len(high) // ALIGNMENT_NUMBERS, high.shape[1] // ALIGNMENT_NUMBERS),
        (32, 8),
        (matrix, *vectors, high, array_or_null(low), n, m, matrix.strides[0] // 4, high.shape[1]),
    )
    return tuple(part for part in parts if part is not None)


def split_mean(mean: Array) -> tuple[Array, Array]:
    """Return a mean (m,) in float64 rounded to single precision, and the rest of it."""
    shift = mean.astype(np.float32)
    return shift, (mean - shift).astype(np.float32)


def transpose_pixels(
    inputs: tuple[Array, Array],
    shift: Array,
    scale: Array,
    factors: Array | None,
    margin: int,
    across: int,
    channels: int,
) -> tuple[Array, ...]:
    """Return (pixels − shift)·scale of maps and images as a transposed matrix (P·c, n').

    maps (n, H, W, f) and images (n, H, W, d); shift and scale (f + d,). Each image is multiplied by
    its factor, if factors (n,) are given. The parts are those of `transpose`. Each row of pixels
    starts with `margin` zeros and is padded to `across` pixels, the last row is followed by a
    margin, P = H·across + margin, and pixels are padded to c = `channels` channels.
    """
    maps, images = inputs
    n, height, width, second = images.shape
    parts = _allocate_parts(n, (height * across + margin) * channels)
    high, low = parts
    _load_transpose_kernels()("transpose_pixels")(
        (len(high) // ALIGNMENT_NUMBERS, high.shape[1] // ALIGNMENT_NUMBERS),
        (32, 8),
        (
            maps,
            images,
            shift,
            scale,
            array_or_null(factors),
            high,
            array_or_null(low),
            *(np.int32(v) for v in (n, height, width, maps.shape[3], second, margin, across)),
            np.int32(channels),
            high.shape[1],
        ),
    )
    return tuple(part for part in parts if part is not None)


def _allocate_parts(n: int, m: int) -> tuple[Array, Array | None]:
    """Allocate a transposed matrix (n, m), and its remainder if products are split."""
    dtype = np.float32 if matmul_precision() == "float32" else np.float16
    high = cupy.empty((align(m), align(n)), dtype)
    return high, cupy.empty_like(high) if matmul_precision() == "split" else None


def _load_transpose_kernels() -> Any:
    """Return the function that gets the transposing kernels of the current precision by name."""
    return load_module("transpose", (("HALF", int(matmul_precision() != "float32")),)).get_function


def array_or_null(array: Array | None) -> Any:
    """Return a kernel argument: the array, or a null pointer for None."""
    return np.intp(0) if array is None else array


def align(side: int) -> int:
    """Return the side of a matrix, rounded up to a multiple of `ALIGNMENT_NUMBERS`."""
    return -(-side // ALIGNMENT_NUMBERS) * ALIGNMENT_NUMBERS


def format_initializer(values: Any) -> str:
    """Return nested integers as an array initializer of C."""
    if hasattr(values, "__len__"):
        return "{" + ",".join(map(format_initializer, values)) + "}"
    return str(int(values))


def gemm(a: Array, b: Array, c: int, pitch: int, factor: float = 1.0) -> None:
    """Add factor·A Bᵀ, of contiguous A (m, k) and B (n, k), to C (m, n).

    c is a pointer to the columns of C in single precision, which are `pitch` numbers apart.
    """
    (m, k), n = a.shape, len(b)
    one, scale = np.array(1, np.float32), np.array(factor, np.float32)
    data_type = CUDA_R_16F if a.dtype == np.float16 else CUDA_R_32F
    cublas.gemmEx(
        get_cublas_handle(),
        cublas.CUBLAS_OP_T,
        cublas.CUBLAS_OP_N,
        m,
        n,
        k,
        scale.ctypes.data,
        a.data.ptr,
        data_type,
        k,
        b.data.ptr,
        data_type,
        k,
        one.ctypes.data,
        c,
        CUDA_R_32F,
        pitch,
        CUBLAS_COMPUTE_32F,
        -1,
    )
