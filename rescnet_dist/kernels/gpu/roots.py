"""Square roots of the correlation matrices of blocks on a GPU, pooled over a spatial pyramid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import cupy
import numpy as np

from rescnet_dist._compat import load_cuda_library
from rescnet_dist.kernels.gpu.device import (
    CUBLAS_COMPUTE_32F,
    CUDA_R_16F,
    CUDA_R_32F,
    Array,
    format_initializer,
    load_module,
    matmul_precision,
)

cublas, get_cublas_handle = load_cuda_library("cublas")

NORMALIZE_THREADS = 256  # threads of a block that normalizes the pixels of a block, at most
MATRIX_THREADS = 256  # threads of a block that works on a matrix, or on pairs of channels
ROOT_THREADS = 256  # threads of a block that computes a root
ROOT_SIDES = (64, 128)  # of padded matrices in shared memory, the first that suffices is used
STATIC_SHARED_BYTES = 4096  # enough for the other shared memory of the kernel that computes roots


def pool_roots(
    maps: Array,
    block: int,
    stride: int,
    shape: tuple[int, int],
    cells: Sequence[Sequence[int]],
    steps: int,
    ridge: float,
    power: bool,
    pools: tuple[str, ...],
) -> Array:
    """Return the pooled roots (n, cells, pools, pairs) of maps (n, H, W, f).

    Matrices are multiplied in half precision, or in single precision unless `matmul_precision` is
    "half": splitting them would take longer. Sums are in single precision. In half precision, roots
    of up to 128 filters are computed by one kernel in shared memory.
    """
    n, height, width, filters = maps.shape
    blocks, upper = shape[0] * shape[1], _get_upper_triangle(filters)
    features = cupy.empty((n, len(cells), len(pools), len(upper)), np.float32)
    if not n:
        return features
    half = matmul_precision() == "half"
    side = _get_side(filters, block) if half else 0
    kernel = _load_kernels(
        (height, width, filters),
        block,
        stride,
        shape,
        tuple(map(tuple, cells)),
        power,
        pools,
        half,
        side,
    )
    maps = cupy.ascontiguousarray(maps, np.float32)
    if side:
        root, traces = _find_roots(kernel, maps, block, blocks, steps, ridge, side)
    else:
        root, traces = _multiply_roots(kernel, maps, block, blocks, steps, ridge, half)
    groups = -(-len(upper) // MATRIX_THREADS)
    kernel("pool")((n * groups,), (MATRIX_THREADS,), (root, traces, upper, features))
    return features


def _find_roots(
    kernel: Any, maps: Array, block: int, blocks: int, steps: int, ridge: float, side: int
) -> tuple[Array, Array]:
    """Return the roots (n·blocks, f, f) and traces (n·blocks,) of blocks, by one kernel.

    Only the upper triangles of the roots are written.
    """
    n, filters = len(maps), maps.shape[3]
    roots = cupy.empty((n * blocks, filters, filters), np.float16)
    traces = cupy.empty(n * blocks, np.float32)
    find_roots, shared = kernel("find_roots"), _get_shared_bytes(side, block)
    find_roots.max_dynamic_shared_size_bytes = shared
    find_roots(
        (n * blocks,),
        (ROOT_THREADS,),
        (maps, roots, traces, np.int32(steps), np.float32(ridge)),
        shared_mem=shared,
    )
    return roots, traces


def _multiply_roots(
    kernel: Any, maps: Array, block: int, blocks: int, steps: int, ridge: float, half: bool
) -> tuple[Array, Array]:
    """Return what `_find_roots` does, of any size and precision, by products of cuBLAS."""
    n, filters = len(maps), maps.shape[3]
    values = cupy.empty((n * blocks, block**2, filters), np.float16 if half else np.float32)
    kernel("normalize")(
        (n * blocks,), (min(NORMALIZE_THREADS, -(-filters // 32) * 32),), (maps, values)
    )
    root = multiply_each(values, values, transpose_left=True)
    del values
    factor, traces = cupy.empty_like(root), cupy.empty(n * blocks, np.float32)
    kernel("start")((n * blocks,), (MATRIX_THREADS,), (root, factor, traces, np.float32(ridge)))
    inverse, root = factor, multiply_each(root, factor)
    for step in range(1, steps):
        factor = multiply_each(inverse, root)
        kernel("complement")((n * blocks,), (MATRIX_THREADS,), (factor,))
        root = multiply_each(root, factor)
        if step < steps - 1:
            inverse = multiply_each(factor, inverse)
    return root, traces


@cache
def _get_side(filters: int, block: int) -> int:
    """Return the side of the padded matrices of `_find_roots`, 0 if it cannot be used.

    Its matrix products need the compute capability 8.0, and three matrices, or the values of a
    block, have to fit into shared memory.
    """
    device = cupy.cuda.Device()
    limit = device.attributes["MaxSharedMemoryPerBlockOptin"] - STATIC_SHARED_BYTES
    for side in ROOT_SIDES if int(device.compute_capability) >= 80 else ():
        if filters <= side and _get_shared_bytes(side, block) <= limit:
            return side
    return 0


def _get_shared_bytes(side: int, block: int) -> int:
    """Return the dynamic shared memory of a block of threads of `_find_roots`."""
    return 2 * (side + 8) * max(3 * side, -(-(block**2) // 16) * 16)


def multiply_each(left: Array, right: Array, *, transpose_left: bool = False) -> Array:
    """Return the products (b, m, k) of matrices (b, m, l) and (b, l, k), in their dtype.

    They are in C order and in half or single precision. With `transpose_left`, those on the left
    are (b, l, m).
    """
    batch, inner, columns = right.shape
    rows = left.shape[2 if transpose_left else 1]
    product = cupy.empty((batch, rows, columns), left.dtype)
    one, zero = np.array(1, np.float32), np.array(0, np.float32)
    data_type = CUDA_R_16F if left.dtype == np.float16 else CUDA_R_32F
    cublas.gemmStridedBatchedEx(  # whose matrices are the transposes of ours
        get_cublas_handle(),
        cublas.CUBLAS_OP_N,
        cublas.CUBLAS_OP_T if transpose_left else cublas.CUBLAS_OP_N,
        columns,
        rows,
        inner,
        one.ctypes.data,
        right.data.ptr,
        data_type,
        columns,
        inner * columns,
        left.data.ptr,
        data_type,
        left.shape[2],
        rows * inner,
        zero.ctypes.data,
        product.data.ptr,
        data_type,
        columns,
        rows * columns,
        batch,
        CUBLAS_COMPUTE_32F,
        -1,
    )
    return product


@lru_cache(maxsize=16)
def _get_upper_triangle(filters: int) -> Array:
    """Return the places of pairs in a matrix (f, f), row by row of its upper triangle, in int32."""
    row, column = np.triu_indices(filters)
    return cupy.asarray(row * filters + column, np.int32)


@lru_cache(maxsize=16)
def _load_kernels(
    image_shape: tuple[int, int, int],
    block: int,
    stride: int,
    shape: tuple[int, int],
    cells: tuple[tuple[int, ...], ...],
    power: bool,
    pools: tuple[str, ...],
    half: bool,
    side: int,
) -> Any:
    """Compile the kernels for one network, and return the function that gets them by name."""
    height, width, filters = image_shape
    definitions = {
        "FILTERS": filters,
        "HEIGHT": height,
        "WIDTH": width,
        "BLOCK": block,
        "STRIDE": stride,
        "COLUMNS": shape[1],
        "BLOCKS": shape[0] * shape[1],
        "PAIRS": filters * (filters + 1) // 2,
        "CELLS": len(cells),
        "POWER": int(power),
        "USE_MAX": int("max" in pools),
        "USE_MEAN": int("mean" in pools),
        "HALF": int(half),
        "SIDE": side,
        "FIRST_MEMBER": format_initializer([0, *accumulate(map(len, cells))]),
        "MEMBERS": format_initializer([member for cell in cells for member in cell]),
    }
    return load_module("roots", tuple(definitions.items())).get_function
