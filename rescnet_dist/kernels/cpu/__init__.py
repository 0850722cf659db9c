"""The operations on NumPy arrays: BLAS, LAPACK, and loops compiled by Numba."""

from rescnet_dist.kernels.cpu.blas import add_scatter
from rescnet_dist.kernels.cpu.convolution import convolve
from rescnet_dist.kernels.cpu.copies import make_copies
from rescnet_dist.kernels.cpu.hashing import hash_blocks
from rescnet_dist.kernels.cpu.pixels import gather_sums
from rescnet_dist.kernels.cpu.pooling import pool_blocks
from rescnet_dist.kernels.cpu.products import patch_products
from rescnet_dist.kernels.cpu.roots import pool_roots
from rescnet_dist.kernels.cpu.scatter import (
    add_centered,
    add_outer,
    column_means,
    multiply_rows,
    new_rows,
    new_square,
)
from rescnet_dist.kernels.cpu.solve import whiten

__all__ = [
    "add_centered",
    "add_outer",
    "add_scatter",
    "column_means",
    "convolve",
    "gather_sums",
    "hash_blocks",
    "make_copies",
    "multiply_rows",
    "new_rows",
    "new_square",
    "patch_products",
    "pool_blocks",
    "pool_roots",
    "whiten",
]
