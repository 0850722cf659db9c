"""Pages of a worker's dashboard, imported when one is requested: a preload of Dask's workers."""

from __future__ import annotations

from typing import Any

from rescnet_dist._compat import defer_dashboard


def dask_setup(worker: Any) -> None:
    """Defer the import of the pages; Dask calls this when the worker's HTTP server runs."""
    defer_dashboard(worker, "worker")
