"""Tree reductions over workers: Dask graphs for any accumulator, without storage."""

from rescnet_dist.reduce.fold import count_levels, fold_graph, fold_name, split_graph, tree_merge
from rescnet_dist.reduce.layer import DescribedLayer
from rescnet_dist.reduce.memory import trim_memory
from rescnet_dist.reduce.threads import blas_threads

__all__ = [
    "DescribedLayer",
    "blas_threads",
    "count_levels",
    "fold_graph",
    "fold_name",
    "split_graph",
    "tree_merge",
    "trim_memory",
]
