"""Lazy loading of compiled kernels: importing Numba takes a second and 60 MB."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

# kernel: its module, and the names of the signatures there that it is compiled for in advance
KERNELS = {
    "pool_blocks": ("blocks", ("POOL_BLOCKS_SIGNATURE",)),
    "sum_over_patches": ("sliding", ("SUM_OVER_PATCHES_SIGNATURE",)),
    "write_patches": ("layout", ("WRITE_PATCHES_SIGNATURE",)),
    "write_row_windows": (
        "layout",
        ("WRITE_ROW_WINDOWS_SIGNATURE", "WRITE_DOUBLE_ROW_WINDOWS_SIGNATURE"),
    ),
    "gather_sums": ("layout", ("GATHER_SUMS_SIGNATURE",)),
}


@cache
def kernel(name: str) -> Callable[..., None]:
    """Return a kernel, compiled for single precision."""
    from rescnet_dist.kernels import jit

    location, signatures = KERNELS[name]
    module = import_module(f"rescnet_dist.kernels.{location}")
    function: Callable[..., None] = getattr(module, name)
    return jit.precompile(function, *(getattr(module, signature) for signature in signatures))


def prepare() -> None:
    """Load all compiled kernels.

    The first call on a machine compiles them, which takes half a minute; later ones, also of other
    processes, read them from Numba's cache.
    """
    for name in KERNELS:
        kernel(name)
