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


@cache
def lay_out_patches() -> Callable[..., None]:
    """`layout.lay_out_patches`, ready for single precision."""
    from rescnet_dist.kernels import jit, layout

    return jit.prepared(layout.lay_out_patches, layout.PATCHES)


@cache
def lay_out_strips() -> Callable[..., None]:
    """`layout.lay_out_strips`, ready to write single and double precision."""
    from rescnet_dist.kernels import jit, layout

    return jit.prepared(layout.lay_out_strips, layout.STRIPS, layout.DOUBLE_STRIPS)


@cache
def gather_sums() -> Callable[..., None]:
    """`layout.gather_sums`, ready for single precision."""
    from rescnet_dist.kernels import jit, layout

    return jit.prepared(layout.gather_sums, layout.SUMS)


def prepare() -> None:
    """Have all of them ready; the first time on a machine they are compiled, which takes half a
    minute."""
    for kernel in (pool_blocks, slide, lay_out_patches, lay_out_strips, gather_sums):
        kernel()
