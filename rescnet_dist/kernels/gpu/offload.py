"""Arrays of a GPU that wait in pinned main memory, copied while the GPU computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import cupyx

Array = Any  # a cupy.ndarray: CuPy has no type annotations


class OffloadedArray:
    """A GPU array that is copied to main memory, and later back.

    Both copies run on streams of their own, next to the kernels of the default stream. The memory
    is pinned, so that copies need no help of the processor; CuPy keeps it for the next array.

    Parameters
    ----------
    array : cupy.ndarray of any shape
        The array. The copy starts once the work that is queued now has been done; the array must
        not be changed afterwards, and its GPU memory is released by `wait`.
    """

    def __init__(self, array: Array) -> None:
        stream = _copy_stream("to host")
        stream.wait_event(cupy.cuda.get_current_stream().record())
        self._host = cupyx.empty_pinned(array.shape, array.dtype)
        array.get(stream=stream, out=self._host, blocking=False)
        self._copied = stream.record()
        self._source: Array | None = array

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(self._host.nbytes)

    def wait(self) -> None:
        """Wait until the array is in main memory, and release the array on the GPU."""
        self._copied.synchronize()
        self._source = None

    def load(self) -> Array:
        """Copy the array back to the GPU and wait for it.

        Call it in another thread than the one that queues kernels, so that these run meanwhile.

        Returns
        -------
        cupy.ndarray
            The array, in the same shape and dtype.
        """
        self.wait()
        stream, array = _copy_stream("to device"), cupy.empty(self._host.shape, self._host.dtype)
        # CuPy may have given it the memory of an array that queued kernels still read
        stream.wait_event(cupy.cuda.get_current_stream().record())
        array.set(self._host, stream=stream)
        stream.synchronize()
        return array


@cache
def _copy_stream(_direction: str) -> Any:
    """Return the stream of copies in one direction, which run next to those in the other."""
    return cupy.cuda.Stream(non_blocking=True)
