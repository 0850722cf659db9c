"""Where arrays live while they are worked on: in the machine's memory, or in that of its GPU."""

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

INSTALL = (
    "pip install 'rescnet-dist[gpu]' (in a checkout '.[gpu]'; cupy-cuda12x for CUDA 12), with "
    "NVIDIA's driver, or leave array_backend out; a run that was begun on a GPU goes on where "
    "there is one"
)


@dataclass(frozen=True, slots=True)
class Backend:
    """An array library by its name, "numpy" or "cupy", and how matrices are multiplied there."""

    name: str = "numpy"
    matmul_precision: str = "split"

    @classmethod
    def of(cls, run_spec: RunSpec) -> Backend:
        """The backend that a run asks for."""
        return cls(run_spec.array_backend, run_spec.matmul_precision)

    @property
    def on_gpu(self) -> bool:
        """Whether arrays are on a GPU."""
        return self.name == "cupy"

    @property
    def xp(self) -> Any:
        """The module that makes arrays: numpy, or cupy; refused where that cannot be used."""
        return self._device().cupy if self.on_gpu else np

    def available(self) -> bool:
        """Whether this process can use it."""
        try:
            return self.xp is not None
        except BackendError:
            return False

    def put(self, array: Any) -> Any:
        """An array of NumPy, or None, where this backend has its arrays."""
        return array if array is None or not self.on_gpu else self.xp.asarray(array)

    def get(self, array: Any) -> Any:
        """The inverse of `put`."""
        return to_host(array)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work on arrays of this backend in the body, in this thread."""
        if not self.on_gpu:
            yield
            return
        with self._device().using_matmul_precision(self.matmul_precision):
            yield

    def prepare(self) -> None:
        """Have all ready that the first pass needs."""
        if self.on_gpu:
            self._device()
        else:
            prepare()

    def memory(self) -> tuple[str, int, int] | None:
        """The name of the GPU of this process, as nobody else's is named, its bytes, and those
        that the process may take of it; None without one."""
        return self._device().memory() if self.on_gpu else None

    def used_share(self) -> float:
        """The share of the GPU's memory that is in use."""
        return float(self._device().used_share())

    def free(self) -> None:
        """Give back what this process keeps of the GPU's memory for later."""
        if self.on_gpu:
            self._device().free()

    def _device(self) -> Any:
        """`rescnet_dist.gpu.device`, if there is CuPy and a GPU."""
        try:
            device = gpu_kernels().device
        except ImportError as error:
            raise BackendError(
                f'array_backend="cupy" needs CuPy, which cannot be imported ({error}): {INSTALL}'
            ) from None
        if problem := device.problem():
            raise BackendError(
                f'array_backend="cupy" needs a GPU, and none can be used ({problem}): look whether '
                "`nvidia-smi` shows one, with a driver that is new enough for the CuPy that is "
                "installed, or leave array_backend out"
            )
        return device
