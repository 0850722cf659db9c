"""Fractions of their memory that workers may use."""

from __future__ import annotations

import dask.config

GPU_MEMORY_FRACTION = 0.85  # of a GPU's memory that may be used


def spill_fraction() -> float:
    """Return the fraction of its memory limit at which a worker spills, or else pauses."""
    for name in ("target", "spill", "pause"):
        share = dask.config.get(f"distributed.worker.memory.{name}", False)
        if share:
            return float(share)
    return 0.9
