"""A fitted network: scores of images in memory and on clusters, and its stored form."""

from rescnet_dist.network.base import BaseNetwork
from rescnet_dist.network.fusion import (
    FusedNetwork,
    HeldOut,
    fuse,
    fuse_scores,
    select_for_fusion,
)
from rescnet_dist.network.loading import load_network, require_layers
from rescnet_dist.network.metrics import Metrics
from rescnet_dist.network.network import Network
from rescnet_dist.network.prediction import ImagePrediction
from rescnet_dist.network.saving import check_vacant, describe_network, stored_accuracies

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
    "load_network",
    "require_layers",
    "select_for_fusion",
    "stored_accuracies",
]
