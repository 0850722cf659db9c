"""Lazy loading of compiled kernels: importing Numba takes a second and 60 MB."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

Kernel = Callable[..., None]


@cache
def _get_kernels() -> dict[str, tuple[Kernel, tuple[str, ...]]]:
    """Return the kernels by name, and the signatures that each is compiled for in advance."""
    from rescnet_dist.kernels.cpu import blocks, layout, sliding

    return {
        "pool_blocks": (blocks.pool_blocks, (blocks.POOL_BLOCKS_SIGNATURE,)),
        "sum_over_patches": (sliding.sum_over_patches, (sliding.SUM_OVER_PATCHES_SIGNATURE,)),
        "write_patches": (layout.write_patches, (layout.WRITE_PATCHES_SIGNATURE,)),
        "write_row_windows": (
            layout.write_row_windows,
            (layout.WRITE_ROW_WINDOWS_SIGNATURE, layout.WRITE_DOUBLE_ROW_WINDOWS_SIGNATURE),
        ),
        "gather_sums": (layout.gather_sums, (layout.GATHER_SUMS_SIGNATURE,)),
    }


@cache
def kernel(name: str) -> Kernel:
    """Return a kernel, compiled for single precision."""
    from rescnet_dist.kernels.cpu import jit

    function, signatures = _get_kernels()[name]
    return jit.precompile(function, *signatures)


def prepare() -> None:
    """Load all compiled kernels.

    The first call on a machine compiles them, which takes half a minute; later ones, also of other
    processes, read them from Numba's cache.
    """
    for name in _get_kernels():
        kernel(name)
