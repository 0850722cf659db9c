"""The scikit-learn interface: a classifier that trains on Dask and predicts dask arrays lazily."""

from rescnet_dist.estimator.classifier import ResCNetClassifier, load, plan

__all__ = ["ResCNetClassifier", "load", "plan"]
