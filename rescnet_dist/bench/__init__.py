"""Benchmarks: the speed of this machine, compared with other libraries and with its own limit."""

from rescnet_dist.bench.cases import CASES, Case
from rescnet_dist.bench.machine import describe_machine, find_processor, measure, name_file
from rescnet_dist.bench.report import (
    NO_CHART,
    compare_results,
    describe,
    draw_chart,
    machines_markdown,
    machines_table,
    table,
)
from rescnet_dist.bench.timing import Result, keep_memory

__all__ = [
    "CASES",
    "NO_CHART",
    "Case",
    "Result",
    "compare_results",
    "describe",
    "describe_machine",
    "draw_chart",
    "find_processor",
    "keep_memory",
    "machines_markdown",
    "machines_table",
    "measure",
    "name_file",
    "table",
]
