"""Deep convolutional networks trained without backpropagation, on data larger than memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

# Module of each public name. A name is imported on first use, because imports take time.
_MODULES = {
    **dict.fromkeys(
        ("MLflowWriter", "PrometheusExporter", "TensorBoardWriter", "open_run"), "dashboard"
    ),
    **dict.fromkeys(("import_dataset", "load_digits", "open_dataset"), "data"),
    "sheet": "data.sheet",
    **dict.fromkeys(
        ("ClusterError", "DataError", "RescnetError", "SpecError", "StoreError"), "errors"
    ),
    **dict.fromkeys(
        ("FlatResCNetClassifier", "ResCNetClassifier", "ResCNetTransformer", "load", "plan"),
        "estimator",
    ),
    **dict.fromkeys(("AugmentSpec", "NetworkSpec", "RunSpec"), "spec"),
    **dict.fromkeys(("FusedNetwork", "ImagePrediction", "Network", "fuse"), "network"),
    "Callback": "events",
    "hold_workers": "cluster",
    "find_runs": "runs",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use; `__version__` is that of the installed package."""
    if name == "__version__":
        return import_module("importlib.metadata").version("rescnet-dist")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the module, those not yet imported included."""
    return sorted({*globals(), *__all__})
