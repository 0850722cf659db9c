"""The scikit-learn interface: a classifier that trains on Dask and predicts dask arrays lazily."""

from rescnet_dist.estimator.classifier import ResCNetClassifier, load, plan
from rescnet_dist.estimator.flat import FlatResCNetClassifier
from rescnet_dist.estimator.transformer import ResCNetTransformer

__all__ = ["FlatResCNetClassifier", "ResCNetClassifier", "ResCNetTransformer", "load", "plan"]
