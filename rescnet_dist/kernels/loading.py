"""Loading compiled kernels, at first use: Numba takes a second and 60 MB to import."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

# by name: the module, and the names there of the signatures that it is to be ready for
KERNELS = {
    "pool_blocks": ("blocks", ("SIGNATURE",)),
    "slide": ("sliding", ("SIGNATURE",)),
    "lay_out_patches": ("layout", ("PATCHES",)),
    "lay_out_strips": ("layout", ("STRIPS", "DOUBLE_STRIPS")),
    "gather_sums": ("layout", ("SUMS",)),
}


@cache
def kernel(name: str) -> Callable[..., None]:
    """A compiled kernel, ready for single precision."""
    from rescnet_dist.kernels import jit

    location, signatures = KERNELS[name]
    module = import_module(f"rescnet_dist.kernels.{location}")
    found: Callable[..., None] = getattr(module, name)
    return jit.prepared(found, *(getattr(module, signature) for signature in signatures))


def prepare() -> None:
    """Have all of them ready; the first time on a machine they are compiled, which takes half a
    minute."""
    for name in KERNELS:
        kernel(name)
