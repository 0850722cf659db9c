"""Deep convolutional networks trained without backpropagation, on data larger than memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rescnet_dist._lazy import attach

if TYPE_CHECKING:
    __version__: str
    from rescnet_dist.cluster import hold_workers
    from rescnet_dist.dashboard import (
        MLflowWriter,
        PrometheusExporter,
        TensorBoardWriter,
        open_run,
    )
    from rescnet_dist.data import import_dataset, load_digits, open_dataset
    from rescnet_dist.data.sheet import sheet
    from rescnet_dist.errors import ClusterError, DataError, RescnetError, SpecError, StoreError
    from rescnet_dist.estimator import (
        FlatResCNetClassifier,
        ResCNetClassifier,
        ResCNetTransformer,
        load,
        plan,
    )
    from rescnet_dist.events import Callback
    from rescnet_dist.network import FusedNetwork, ImagePrediction, Network, fuse
    from rescnet_dist.runs import find_runs
    from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec

__all__ = [
    "AugmentSpec",
    "Callback",
    "ClusterError",
    "DataError",
    "FlatResCNetClassifier",
    "FusedNetwork",
    "ImagePrediction",
    "MLflowWriter",
    "Network",
    "NetworkSpec",
    "PrometheusExporter",
    "ResCNetClassifier",
    "ResCNetTransformer",
    "RescnetError",
    "RunSpec",
    "SpecError",
    "StoreError",
    "TensorBoardWriter",
    "find_runs",
    "fuse",
    "hold_workers",
    "import_dataset",
    "load",
    "load_digits",
    "open_dataset",
    "open_run",
    "plan",
    "sheet",
]

# Public names by module. A name is imported on first use, because imports take time.
_NAMES = {
    "cluster": ("hold_workers",),
    "dashboard": ("MLflowWriter", "PrometheusExporter", "TensorBoardWriter", "open_run"),
    "data": ("import_dataset", "load_digits", "open_dataset"),
    "data.sheet": ("sheet",),
    "errors": ("ClusterError", "DataError", "RescnetError", "SpecError", "StoreError"),
    "estimator": (
        *("FlatResCNetClassifier", "ResCNetClassifier", "ResCNetTransformer"),
        *("load", "plan"),
    ),
    "events": ("Callback",),
    "network": ("FusedNetwork", "ImagePrediction", "Network", "fuse"),
    "runs": ("find_runs",),
    "spec": ("AugmentSpec", "NetworkSpec", "RunSpec"),
}
_get, __dir__ = attach(__name__, _NAMES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use; `__version__` is that of the installed package."""
    if name == "__version__":
        return import_module("importlib.metadata").version("rescnet-dist")
    return _get(name)
