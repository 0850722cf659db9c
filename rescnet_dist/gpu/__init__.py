"""The kernels for arrays on a GPU, in CuPy, with the signatures of those for the CPU.

`rescnet_dist.kernels` calls these if it is given CuPy arrays; nothing else imports them.
"""

from rescnet_dist.gpu import device
from rescnet_dist.gpu.convolution import convolve
from rescnet_dist.gpu.device import using_matmul_precision
from rescnet_dist.gpu.patches import patch_products
from rescnet_dist.gpu.pooling import pool_blocks
from rescnet_dist.gpu.scatter import add_outer, add_scatter, new_rows, new_square
from rescnet_dist.gpu.solve import whiten
from rescnet_dist.gpu.sums import column_means, gather_sums

__all__ = [
    "add_outer",
    "add_scatter",
    "column_means",
    "convolve",
    "device",
    "gather_sums",
    "new_rows",
    "new_square",
    "patch_products",
    "pool_blocks",
    "using_matmul_precision",
    "whiten",
]
