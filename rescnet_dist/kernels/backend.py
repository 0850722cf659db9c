"""The backend of arrays, NumPy on the CPU or CuPy on a GPU, and the operations of each.

Kernels work on arrays of both. The few operations that need different code have two
implementations, the modules `cpu` and `gpu`; `get_operations` is the only place that chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from rescnet_dist.errors import BackendError
from rescnet_dist.kernels import cpu
from rescnet_dist.kernels.arrays import Array, on_gpu, to_host
from rescnet_dist.kernels.copy_parameters import CopyParameters
from rescnet_dist.kernels.cpu.loading import prepare
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.solving import Solve

INSTALL_CUPY = (
    "Run pip install 'rescnet-dist[gpu]' (in a checkout '.[gpu]'; cupy-cuda12x for CUDA 12) and "
    "install NVIDIA's driver, or leave array_backend out. A run that was started on a GPU must be "
    "resumed on a machine that has one."
)


@dataclass(frozen=True, slots=True)
class Backend:
    """An array library and its precision of matrix products.

    Attributes
    ----------
    name : {"numpy", "cupy"}
        The array library.
    matmul_precision : {"float32", "split", "half"}
        How matrices are multiplied on a GPU; see `RunSpec`.
    """

    name: str = "numpy"
    matmul_precision: str = "split"

    @property
    def on_gpu(self) -> bool:
        """Whether arrays are on a GPU."""
        return self.name == "cupy"

    @property
    def xp(self) -> Any:
        """The array module, numpy or cupy. Raises BackendError if it cannot be used."""
        return self._device().cupy if self.on_gpu else np

    def available(self) -> bool:
        """Return whether this process can use the backend.

        Returns
        -------
        bool
            False without CuPy or without a GPU if the backend needs them.
        """
        try:
            return self.xp is not None
        except BackendError:
            return False

    def put(self, array: Any) -> Any:
        """Copy a NumPy array to this backend.

        Parameters
        ----------
        array : ndarray or None
            An array of any shape.

        Returns
        -------
        ndarray or None
            The array of this backend; None stays None.
        """
        return array if array is None or not self.on_gpu else self.xp.asarray(array)

    def get(self, array: Any) -> Any:
        """Copy an array of this backend to a NumPy array; the inverse of `put`.

        Parameters
        ----------
        array : ndarray or None
            An array of this backend, of any shape.

        Returns
        -------
        ndarray or None
            The NumPy array; None stays None.
        """
        return to_host(array)

    def retain(self, array: Any) -> Any:
        """Return an array that is to be cached, on a GPU as a copy in a memory pool of its own.

        Parameters
        ----------
        array : ndarray
            An array of this backend, of any shape.

        Returns
        -------
        ndarray
            On a GPU a copy, which does not fragment the pool of temporary arrays; else the array.
        """
        return self._device().retain(array) if self.on_gpu else array

    def offload(self, array: Any) -> Any:
        """Start to copy an array of a GPU to main memory, to free the memory of the GPU.

        Parameters
        ----------
        array : ndarray
            An array of this backend, which must be that of a GPU, of any shape.

        Returns
        -------
        OffloadedArray
            The copy: `wait` ends it, `load` brings the array back.
        """
        self._device()
        from rescnet_dist.kernels.gpu.offload import OffloadedArray

        return OffloadedArray(array)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Multiply matrices of this backend with its precision, in this thread, in the body.

        Yields
        ------
        None
            Nothing. The previous precision is restored after the body.
        """
        if not self.on_gpu:
            yield
            return
        with self._device().using_matmul_precision(self.matmul_precision):
            yield

    def prepare(self) -> None:
        """Load, and compile if needed, the kernels that every run needs in its first pass."""
        if self.on_gpu:
            self._device()
        else:
            prepare()

    def memory(self) -> tuple[str, int, int] | None:
        """Return the memory of the GPU.

        Returns
        -------
        tuple of (str, int, int) or None
            The GPU's unique name, its bytes, and the bytes that this process may use. None if the
            backend has no GPU.
        """
        return self._device().memory() if self.on_gpu else None

    def used_memory_fraction(self) -> float:
        """Return the fraction of the GPU's memory that is in use.

        Returns
        -------
        float
            The used fraction of the memory that this process may use.

        Raises
        ------
        BackendError
            If there is no CuPy or no GPU.
        """
        return float(self._device().used_memory_fraction())

    def free(self) -> None:
        """Release the GPU and pinned memory that this process has pooled for later use."""
        if self.on_gpu:
            self._device().free()

    def _device(self) -> Any:
        """Return the module `gpu.device`. Raise BackendError without CuPy or without a GPU."""
        try:
            from rescnet_dist.kernels.gpu import device
        except ImportError as error:
            raise BackendError(
                f'array_backend="cupy" needs CuPy, which cannot be imported ({error}). '
                f"{INSTALL_CUPY}"
            ) from None
        if problem := device.problem():
            raise BackendError(
                f'array_backend="cupy" needs a GPU, and none can be used ({problem}). Check that '
                "`nvidia-smi` lists one and that its driver is new enough for the installed CuPy, "
                "or leave array_backend out."
            )
        return device


class Operations(Protocol):
    """The operations that NumPy and CuPy arrays need different code for.

    A layer's inputs have n images of shape (H, W, c). Arrays are those of one library.
    """

    def convolve(
        self,
        inputs: LayerInput,
        filters: Array,
        bias: Array,
        low: Array,
        scale: Array,
        into: Array | None,
    ) -> Array:
        """Return maps (n, H, W, f) of (inputs − low)·scale, written to `into` if given.

        filters (k, k, c, f), bias (f,), low and scale (c,); stride 1, zero padding.
        """

    def gather_sums(self, inputs: LayerInput) -> tuple[Array, Array, Array]:
        """Return minimum and maximum (c,) of each channel, and the sum (H, W, c) over images.

        All are in float64. The sum is weighted by the weights of the inputs, if any.
        """

    def patch_products(self, inputs: LayerInput, size: int, shift: Array, extent: Array) -> Array:
        """Return Σ p pᵀ (k²c, k²c) over all valid k×k patches p of inputs − shift, in float64.

        k = size; shift (c,); extent (c,) bounds |inputs − shift|. A patch is flattened in the order
        row, column, channel. The sum is weighted by the weights of the inputs, if any.
        """

    def pool_blocks(
        self,
        maps: Array,
        block: int,
        stride: int,
        targets: Array,
        parents: Array,
        channelwise: bool,
        power: bool,
        counts: Array | None,
        cells: int,
        pairs: int,
    ) -> Array:
        """Return the pooled, normalized covariances (n, cells·pairs) of maps (n, H, W, f).

        Blocks of a cell are pooled by the mean if counts (cells,) gives their number, by the
        maximum if it is None. The other parameters are those of `cpu.pooling.pool_blocks`.
        """

    def pool_roots(
        self,
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
        """Return the pooled roots (n, cells, pools, f(f+1)/2) of maps (n, H, W, f).

        There are shape = (rows, columns) blocks, counted row by row; cells are lists of their
        numbers. The other parameters are those of `covariance_root_features`.
        """

    def hash_blocks(
        self,
        maps: Array,
        bits: int,
        block: int,
        stride: int,
        targets: Array,
        use_max: bool,
        shape: tuple[int, int, int, int],
        dtype: np.dtype[Any],
    ) -> Array:
        """Return the histograms of the codes of maps (n, H, W, f) in blocks, of this dtype.

        shape is theirs, (n, cells, f/bits, 2^bits); targets (rows, columns, m) are the cells of
        each block. The largest count of a cell's blocks is kept, or counts are summed.
        """

    def make_copies(self, pixels: Array, parameters: CopyParameters) -> Array:
        """Return the copies (n, H, W, d) of pixels (n, H, W, d), in single or double precision.

        The pixels may be overwritten. Both libraries give the same bits.
        """

    def column_means(self, rows: Array, weights: Array | None = None) -> Array:
        """Return the mean (m,) of each column of rows (n, m), in float64.

        With weights (n,), a NumPy array, it is the weighted mean.
        """

    def new_square(self, side: int, dtype: np.dtype[Any]) -> Array:
        """Return zeros (side, side) in Fortran order, for a scatter."""

    def new_rows(self, n: int, scatter: Array) -> Array:
        """Allocate rows (n, D) that will be added to scatter (D, D)."""

    def add_scatter(self, total: Array, rows: Array) -> None:
        """Add rowsᵀ rows of rows (n, D) to the lower triangle of total (D, D)."""

    def add_centered(
        self,
        total: Array,
        features: Array,
        mean: Array,
        weights: Array | None,
        between: Callable[[Array], Array] | None,
    ) -> Array:
        """Add Σ w(x−m)(x−m)ᵀ of features (n, D) to the lower triangle of total (D, D).

        mean (D,) is that of the features, in float64, but for rounding errors; the mean m that is
        subtracted is returned. weights (n,) are a NumPy array; without them w = 1. A row
        between(m) (D,) is added to the rows x−m, unless `between` is None.
        """

    def multiply_rows(self, left: Array, right: Array) -> Array:
        """Return left·rightᵀ (n, m) of rows (n, D) and (m, D) in float32."""

    def add_outer(self, total: Array, vector: Array, factor: float) -> None:
        """Add factor·v vᵀ, v = vector (D,), to the lower triangle of total (D, D)."""

    def whiten(
        self,
        scatter: Array,
        mean: Array,
        count: float,
        ridge: float,
        *,
        overwrite: bool = False,
    ) -> tuple[Array, Solve]:
        """Return the scale (D,) and the solve function of a `Whitening`.

        scatter (D, D) and mean (D,) of `count` samples. The lower triangle is read, and stays as it
        is without `overwrite`; with it, the factor may take the memory of the scatter, which only
        `solve` may use from then on. Raises SingularError if the covariance cannot be factorized
        with this ridge.
        """


def get_operations(array: Any) -> Operations:
    """Return the operations for an array: the module `cpu`, or `gpu` for CuPy arrays."""
    return _load_gpu_operations() if on_gpu(array) else cpu


@cache
def _load_gpu_operations() -> Operations:
    """Import and return the module `gpu`, which needs CuPy."""
    from rescnet_dist.kernels import gpu

    return gpu
