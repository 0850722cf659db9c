"""Dask clusters: connecting to one, its workers and their versions."""

from rescnet_dist.cluster.connect import (
    available_cores,
    check_versions,
    connected,
    current_client,
    naming_its_loss,
    processes,
    workers_of,
)
from rescnet_dist.cluster.workers import WORKER_TIMEOUT, Workers, await_worker

__all__ = [
    "WORKER_TIMEOUT",
    "Workers",
    "available_cores",
    "await_worker",
    "check_versions",
    "connected",
    "current_client",
    "naming_its_loss",
    "processes",
    "workers_of",
]
