"""Watching runs: pages, reports and figures, from events and run stores alone."""

from rescnet_dist.dashboard.view import LayerView, RunView, StoredRun

__all__ = ["LayerView", "RunView", "StoredRun"]
