"""Lazy loading of compiled kernels: importing Numba takes a second and 60 MB."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rescnet_dist.kernels.cpu.ahead import use_kernels_compiled_ahead

Kernel = Callable[..., None]
FORWARD_KERNELS = ("pool_blocks", "convolve_images")  # those of a prediction
COPY_KERNELS = ("resample_float32", "adjust_float32")  # of augmented copies
WIDE_COPY_KERNELS = ("resample_float64", "adjust_float64")  # of integers of more than 2 bytes
# Of the PCANet family, and of copies: a quarter of the time of compiling
RARE_KERNELS = ("hash_blocks", *COPY_KERNELS, *WIDE_COPY_KERNELS)
COMPILED_TOGETHER = (FORWARD_KERNELS, COPY_KERNELS, WIDE_COPY_KERNELS)


@cache
def _get_kernels() -> dict[str, tuple[Kernel, tuple[str, ...]]]:
    """Return the kernels by name, and the signatures that each is compiled for in advance.

    The first takes longer to compile than all others.
    """
    use_kernels_compiled_ahead()  # before Numba is imported
    from rescnet_dist.kernels.cpu import blocks, codes, direct, layout, resampling, sliding

    return {
        "pool_blocks": (blocks.pool_blocks, (blocks.POOL_BLOCKS_SIGNATURE,)),
        "convolve_images": (direct.convolve_images, (direct.CONVOLVE_SIGNATURE,)),
        "sum_rectangles": (direct.sum_rectangles, (direct.SUM_RECTANGLES_SIGNATURE,)),
        "sum_over_patches": (sliding.sum_over_patches, (sliding.SUM_OVER_PATCHES_SIGNATURE,)),
        "write_patches": (layout.write_patches, (layout.WRITE_PATCHES_SIGNATURE,)),
        "hash_blocks": (codes.hash_blocks, codes.HASH_BLOCKS_SIGNATURES),
        "gather_sums": (layout.gather_sums, (layout.GATHER_SUMS_SIGNATURE,)),
        **{
            f"resample_{name}": (resampling.resample_images, (signature,))
            for name, signature in resampling.RESAMPLE_SIGNATURES.items()
        },
        **{
            f"adjust_{name}": (resampling.adjust_images, (signature,))
            for name, signature in resampling.ADJUST_SIGNATURES.items()
        },
    }


def kernel(name: str) -> Kernel:
    """Return a kernel, compiled for its precision."""
    _load(next((names for names in COMPILED_TOGETHER if name in names), (name,)))
    return _get_kernels()[name][0]


def tile_shape() -> tuple[int, int]:
    """Return the rows of a tile of sums, and the floats of a vector of the processor.

    The sums that kernels write to must have a multiple of both.
    """
    use_kernels_compiled_ahead()  # before Numba is imported
    from rescnet_dist.kernels.cpu.vectors import LANES, TILE_ROWS

    return TILE_ROWS, LANES


def prepare(*, rare: bool = False) -> None:
    """Load the compiled kernels.

    The first call on a machine compiles them, which takes a quarter of a minute on two cores; later
    ones, also of other processes, read them from Numba's cache.

    Parameters
    ----------
    rare : bool, default False
        Whether to load those too that few networks need, and that are otherwise compiled when they
        are first used.
    """
    _load(tuple(name for name in _get_kernels() if rare or name not in RARE_KERNELS))


def load_cached() -> None:
    """Load the compiled kernels that Numba's cache has; processes forked from this one have them.

    No kernel is compiled.
    """
    from rescnet_dist.kernels.cpu import jit

    jit.precompile([*_get_kernels().values()], only_cached=True)


@cache
def _load(names: tuple[str, ...]) -> None:
    """Load kernels by name; compile those that the cache on disk does not have."""
    kernels = [entry for name, entry in _get_kernels().items() if name in names]
    from rescnet_dist.kernels.cpu import jit

    jit.precompile(kernels)
