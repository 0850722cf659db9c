"""Dask clusters: connections, workers and version checks.

What does not start or ask a cluster does not import distributed.
"""

from typing import TYPE_CHECKING

from rescnet_dist._lazy import attach

if TYPE_CHECKING:
    from rescnet_dist.cluster.connect import (
        available_cores,
        check_versions,
        current_client,
        list_workers,
        open_client,
        translate_errors,
    )
    from rescnet_dist.cluster.scaling import hold_workers, keep_workers
    from rescnet_dist.cluster.spans import passes_span
    from rescnet_dist.cluster.workers import (
        WORKER_TIMEOUT_SECONDS,
        CheckedWorkers,
        Workers,
        find_workers,
        wait_for_worker,
    )

__all__ = [
    "WORKER_TIMEOUT_SECONDS",
    "CheckedWorkers",
    "Workers",
    "available_cores",
    "check_versions",
    "current_client",
    "find_workers",
    "hold_workers",
    "keep_workers",
    "list_workers",
    "open_client",
    "passes_span",
    "translate_errors",
    "wait_for_worker",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "connect": (
            "available_cores",
            "check_versions",
            "current_client",
            "list_workers",
            "open_client",
            "translate_errors",
        ),
        "spans": ("passes_span",),
        "scaling": (
            "hold_workers",
            "keep_workers",
        ),
        "workers": (
            "WORKER_TIMEOUT_SECONDS",
            "CheckedWorkers",
            "Workers",
            "find_workers",
            "wait_for_worker",
        ),
    },
)
