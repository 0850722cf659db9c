"""Benchmarks: how fast this machine runs the passes, beside peers and beside its own limit."""

from rescnet_dist.bench.cases import CASES, Case
from rescnet_dist.bench.report import NO_CHART, compared, draw_chart, table
from rescnet_dist.bench.timing import Result, keep_memory, machine

__all__ = [
    "CASES",
    "NO_CHART",
    "Case",
    "Result",
    "compared",
    "draw_chart",
    "keep_memory",
    "machine",
    "table",
]
