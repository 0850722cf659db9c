"""Tree reductions over workers: Dask graphs for any accumulator, without storage."""

from typing import TYPE_CHECKING

from rescnet_dist._lazy import attach

if TYPE_CHECKING:
    from rescnet_dist.reduce.fold import fold_graph, fold_name, split_graph, tree_merge
    from rescnet_dist.reduce.layer import DescribedLayer
    from rescnet_dist.reduce.levels import count_levels
    from rescnet_dist.reduce.memory import trim_memory

__all__ = [
    "DescribedLayer",
    "count_levels",
    "fold_graph",
    "fold_name",
    "split_graph",
    "tree_merge",
    "trim_memory",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "fold": ("fold_graph", "fold_name", "split_graph", "tree_merge"),
        "layer": ("DescribedLayer",),
        "levels": ("count_levels",),
        "memory": ("trim_memory",),
    },
)
