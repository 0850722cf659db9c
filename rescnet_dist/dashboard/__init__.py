"""Dashboards, reports and figures of runs, made from events and run stores alone.

A report does not import what shows running runs, such as the page in Dask's dashboard.
"""

from typing import TYPE_CHECKING

from rescnet_dist._lazy import attach

if TYPE_CHECKING:
    from rescnet_dist.dashboard.figures import Plots
    from rescnet_dist.dashboard.mlflow_models import save_mlflow_model
    from rescnet_dist.dashboard.mlflow_writer import MLflowWriter
    from rescnet_dist.dashboard.notebook import Run, Watch, open_run
    from rescnet_dist.dashboard.prometheus import PrometheusExporter
    from rescnet_dist.dashboard.render import render_report
    from rescnet_dist.dashboard.report import Report, make_report
    from rescnet_dist.dashboard.scheduler import SchedulerPage
    from rescnet_dist.dashboard.tensorboard_writer import TensorBoardWriter
    from rescnet_dist.dashboard.view import LayerView, RunView, StoredRun

__all__ = [
    "LayerView",
    "MLflowWriter",
    "Plots",
    "PrometheusExporter",
    "Report",
    "Run",
    "RunView",
    "SchedulerPage",
    "StoredRun",
    "TensorBoardWriter",
    "Watch",
    "make_report",
    "open_run",
    "render_report",
    "save_mlflow_model",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "figures": ("Plots",),
        "mlflow_models": ("save_mlflow_model",),
        "mlflow_writer": ("MLflowWriter",),
        "notebook": (
            "Run",
            "Watch",
            "open_run",
        ),
        "prometheus": ("PrometheusExporter",),
        "render": ("render_report",),
        "report": (
            "Report",
            "make_report",
        ),
        "scheduler": ("SchedulerPage",),
        "tensorboard_writer": ("TensorBoardWriter",),
        "view": (
            "LayerView",
            "RunView",
            "StoredRun",
        ),
    },
)
