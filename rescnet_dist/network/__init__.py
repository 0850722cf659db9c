"""A fitted network: scores of images in memory and on clusters, and its stored form."""

from typing import TYPE_CHECKING

from rescnet_dist._lazy import attach

if TYPE_CHECKING:
    from rescnet_dist.network.base import BaseNetwork
    from rescnet_dist.network.describe import describe_network
    from rescnet_dist.network.fusion import (
        FusedNetwork,
        HeldOut,
        fuse,
        fuse_scores,
        select_for_fusion,
    )
    from rescnet_dist.network.loading import (
        has_metadata_checksum,
        load_network,
        require_layers,
        verify_network,
    )
    from rescnet_dist.network.metrics import Metrics
    from rescnet_dist.network.network import Network
    from rescnet_dist.network.prediction import ImagePrediction
    from rescnet_dist.network.saving import check_vacant, stored_accuracies

__all__ = [
    "BaseNetwork",
    "FusedNetwork",
    "HeldOut",
    "ImagePrediction",
    "Metrics",
    "Network",
    "check_vacant",
    "describe_network",
    "fuse",
    "fuse_scores",
    "has_metadata_checksum",
    "load_network",
    "require_layers",
    "select_for_fusion",
    "stored_accuracies",
    "verify_network",
]

# A name is imported on first use: to describe a saved network takes no Dask arrays.
__getattr__, __dir__ = attach(
    __name__,
    {
        "base": ("BaseNetwork",),
        "describe": ("describe_network",),
        "fusion": ("FusedNetwork", "HeldOut", "fuse", "fuse_scores", "select_for_fusion"),
        "loading": (
            "has_metadata_checksum",
            "load_network",
            "require_layers",
            "verify_network",
        ),
        "metrics": ("Metrics",),
        "network": ("Network",),
        "prediction": ("ImagePrediction",),
        "saving": ("check_vacant", "stored_accuracies"),
    },
)
