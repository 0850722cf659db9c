"""Watching runs: pages, reports and figures, from events and run stores alone."""

from rescnet_dist.dashboard.figures import Plots
from rescnet_dist.dashboard.mlflow_writer import MLflowWriter
from rescnet_dist.dashboard.render import rendered
from rescnet_dist.dashboard.report import Report, report_of
from rescnet_dist.dashboard.scheduler import SchedulerPage
from rescnet_dist.dashboard.tensorboard_writer import TensorBoardWriter
from rescnet_dist.dashboard.view import LayerView, RunView, StoredRun

__all__ = [
    "LayerView",
    "MLflowWriter",
    "Plots",
    "Report",
    "RunView",
    "SchedulerPage",
    "StoredRun",
    "TensorBoardWriter",
    "rendered",
    "report_of",
]
