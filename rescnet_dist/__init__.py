"""Deep convolutional networks trained without backpropagation, on data larger than memory."""

from rescnet_dist.data import import_dataset, load_digits, open_dataset
from rescnet_dist.errors import ClusterError, DataError, RescnetError, SpecError, StoreError
from rescnet_dist.estimator import ResCNetClassifier, plan
from rescnet_dist.network import Network
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec

load = ResCNetClassifier.load

__all__ = [
    "AugmentSpec",
    "ClusterError",
    "DataError",
    "Network",
    "NetworkSpec",
    "ResCNetClassifier",
    "RescnetError",
    "RunSpec",
    "SpecError",
    "StoreError",
    "import_dataset",
    "load",
    "load_digits",
    "open_dataset",
    "plan",
]
