"""A fitted network: scores of images in memory and on clusters, and its stored form."""

from rescnet_dist.network.metrics import Metrics
from rescnet_dist.network.network import Network
from rescnet_dist.network.prediction import ImagePrediction
from rescnet_dist.network.saving import describe_network, stored_accuracies

__all__ = ["ImagePrediction", "Metrics", "Network", "describe_network", "stored_accuracies"]
