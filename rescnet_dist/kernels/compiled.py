"""The compiled kernels, imported at first use: Numba takes a second and 60 MB to load."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache


@cache
def pool_blocks() -> Callable[..., None]:
    """`blocks.pool_blocks`, ready for single precision."""
    from rescnet_dist.kernels import blocks, jit

    return jit.prepared(blocks.pool_blocks, blocks.SIGNATURE)


@cache
def slide() -> Callable[..., None]:
    """`sliding.slide`, ready for single precision."""
    from rescnet_dist.kernels import jit, sliding

    return jit.prepared(sliding.slide, sliding.SIGNATURE)


def prepare() -> None:
    """Have all of them ready; the first time on a machine they are compiled, which takes half a
    minute."""
    pool_blocks(), slide()
