"""Watching runs: pages, reports and figures, from events and run stores alone."""

from rescnet_dist.dashboard.figures import Plots
from rescnet_dist.dashboard.mlflow_writer import MLflowWriter
from rescnet_dist.dashboard.notebook import Run, Watch, open_run
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
    "Run",
    "RunView",
    "SchedulerPage",
    "StoredRun",
    "TensorBoardWriter",
    "Watch",
    "open_run",
    "rendered",
    "report_of",
]
