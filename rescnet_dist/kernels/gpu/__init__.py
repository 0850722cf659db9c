"""The operations on CuPy arrays: CUDA kernels, cuBLAS and cuSOLVER.

Only `rescnet_dist.kernels.backend` imports them, on first use, as CuPy may not be installed.
"""

from rescnet_dist.kernels.gpu.convolution import convolve
from rescnet_dist.kernels.gpu.copies import make_copies
from rescnet_dist.kernels.gpu.hashing import hash_blocks
from rescnet_dist.kernels.gpu.patches import patch_products
from rescnet_dist.kernels.gpu.pooling import pool_blocks
from rescnet_dist.kernels.gpu.roots import pool_roots
from rescnet_dist.kernels.gpu.scatter import (
    add_centered,
    add_outer,
    add_scatter,
    multiply_rows,
    new_rows,
    new_square,
)
from rescnet_dist.kernels.gpu.solve import whiten
from rescnet_dist.kernels.gpu.sums import column_means, gather_sums

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
