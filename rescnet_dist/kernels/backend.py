"""The backend that holds arrays during computation: NumPy on the CPU, or CuPy on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.errors import BackendError
from rescnet_dist.kernels.arrays import gpu_kernels, to_host
from rescnet_dist.kernels.loading import prepare
from rescnet_dist.spec import RunSpec

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

    @classmethod
    def of(cls, run_spec: RunSpec) -> Backend:
        """Return the backend that a run asks for.

        Parameters
        ----------
        run_spec : RunSpec
            The options of the run.

        Returns
        -------
        Backend
            The backend, which need not be available.
        """
        return cls(run_spec.array_backend, run_spec.matmul_precision)

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
        """Load, and compile if needed, everything that the first pass needs."""
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
        """Release the GPU memory that this process has pooled for later use."""
        if self.on_gpu:
            self._device().free()

    def _device(self) -> Any:
        """Return `rescnet_dist.gpu.device`. Raise BackendError without CuPy or without a GPU."""
        try:
            device = gpu_kernels().device
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
