"""Watching runs: pages, reports and figures, from events and run stores alone."""

from rescnet_dist.dashboard.mlflow_writer import MLflowWriter
from rescnet_dist.dashboard.tensorboard_writer import TensorBoardWriter
from rescnet_dist.dashboard.view import LayerView, RunView, StoredRun

__all__ = ["LayerView", "MLflowWriter", "RunView", "StoredRun", "TensorBoardWriter"]
