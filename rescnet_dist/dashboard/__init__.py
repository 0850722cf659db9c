"""Watching runs: pages, reports and figures, from events and run stores alone."""

from rescnet_dist.dashboard.figures import Plots
from rescnet_dist.dashboard.render import rendered
from rescnet_dist.dashboard.report import Report, report_of
from rescnet_dist.dashboard.view import LayerView, RunView, StoredRun

__all__ = ["LayerView", "Plots", "Report", "RunView", "StoredRun", "rendered", "report_of"]
