"""Benchmarks: the speed of this machine, compared with other libraries and with its own limit."""

from rescnet_dist.bench.cases import CASES, Case
from rescnet_dist.bench.report import NO_CHART, compare_results, draw_chart, table
from rescnet_dist.bench.timing import Result, keep_memory, machine

__all__ = [
    "CASES",
    "NO_CHART",
    "Case",
    "Result",
    "compare_results",
    "draw_chart",
    "keep_memory",
    "machine",
    "table",
]
