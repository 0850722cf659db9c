"""HTTP route of a Dask worker, for readiness probes: `/ready` answers 200 once it takes tasks.

Add this module to Dask's setting `distributed.worker.http.routes`. A worker answers at `/health` as
soon as its process runs. It takes tasks only after the preload `rescnet_dist.cluster.warmup` has
loaded the kernels and the worker has registered with its scheduler.
"""

from __future__ import annotations

from typing import Any

from distributed.core import Status
from tornado import web

READY_STATES = (Status.running, Status.paused)  # paused: too full for a moment


class ReadyHandler(web.RequestHandler):
    """Answers whether a worker takes tasks."""

    def initialize(self, dask_server: Any = None, extra: Any = None) -> None:
        """Store the worker, which Dask passes to its handlers."""
        self.worker = dask_server

    def get(self) -> None:
        """Answer with the state of the worker: 200 if it takes tasks, else 503."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_status(200 if self.worker.status in READY_STATES else 503)
        self.write(self.worker.status.name)


routes: list[tuple[str, type[web.RequestHandler], dict[str, Any]]] = [("/ready", ReadyHandler, {})]
