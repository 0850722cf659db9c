"""The table of the rig's results, and the bars that they must pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

MAX_CPU_RATIO = 2.0  # of the driver to a bare client, per task
MAX_LOOP_DELAY_SECONDS = 1.0  # of the scheduler, by the clock
MAX_DRIVER_BYTES = 500_000  # per layer
MAX_MEMORY_GROWTH = 1.1  # factor of the driver, from the smallest to the largest cluster
COLUMNS = (
    "workers",
    "tasks",
    "driver CPU per task",
    "bare client",
    "scheduler CPU per task",
    "its loop blocked, CPU",
    "by the clock",
    "submit to first task",
    "bytes through the driver",
    "memory of driver",
    "of scheduler",
)
PACED_COLUMNS = (
    "workers",
    "a task",
    "tasks per second",
    "scheduler CPU per task",
    "its loop blocked, CPU",
    "by the clock",
    "bytes through the driver",
)


def worst(costs: Sequence[dict[str, Any]], name: str) -> float:
    """Return the largest value of some passes."""
    return max(cost[name] or 0 for cost in costs)


def summarize(result: dict[str, Any]) -> dict[str, float]:
    """Return the worst of the passes of layers of one size, and the mean of the bare client."""
    layers = [cost for cost in result["driver"] if cost["name"].startswith("grow")]
    per_task = [cost["driver_cpu_seconds"] / cost["tasks"] for cost in layers]
    scheduler = [cost["scheduler_cpu_seconds"] / cost["tasks"] for cost in layers]
    bare = [cost["driver_cpu_seconds"] / cost["tasks"] for cost in result["bare"]] or [math.nan]
    return {
        "workers": result["workers"],
        "tasks": layers[0]["tasks"],
        "rate": min(cost["tasks"] / cost["seconds"] for cost in layers),
        "task_seconds": result["task_seconds"],
        "driver_cpu": max(per_task),
        "bare_cpu": sum(bare) / len(bare),
        "scheduler_cpu": max(scheduler),
        "delay_cpu": worst(layers, "loop_delay_cpu_seconds"),
        "delay": worst(layers, "loop_delay_seconds"),
        "first_task": worst(layers, "first_task_seconds"),
        "driver_bytes": worst(layers, "driver_bytes"),
        "driver_rss": worst(layers, "driver_rss"),
        "scheduler_rss": worst(layers, "scheduler_rss"),
    }


def format_head(columns: Sequence[str]) -> Iterator[str]:
    """Yield the lines above the rows of a Markdown table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"


def format_table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, a row for each size."""
    yield from format_head(COLUMNS)
    for result in results:
        found = summarize(result)
        cells = (
            f"{found['workers']:,}",
            f"{found['tasks']:,}",
            f"{1e3 * found['driver_cpu']:.2f} ms",
            f"{1e3 * found['bare_cpu']:.2f} ms",
            f"{1e3 * found['scheduler_cpu']:.1f} ms",
            f"{found['delay_cpu']:.2f} s",
            f"{found['delay']:.1f} s",
            f"{found['first_task']:.1f} s",
            f"{found['driver_bytes'] / 1e6:.2f} MB",
            f"{found['driver_rss'] / 2**20:.0f} MiB",
            f"{found['scheduler_rss'] / 2**20:.0f} MiB",
        )
        yield f"| {' | '.join(cells)} |"


def format_paced_table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table about tasks that take time, a row for each size."""
    yield from format_head(PACED_COLUMNS)
    for result in results:
        found = summarize(result)
        cells = (
            f"{found['workers']:,}",
            f"{found['task_seconds']:g} s",
            f"{found['rate']:.0f}",
            f"{1e3 * found['scheduler_cpu']:.1f} ms",
            f"{found['delay_cpu']:.2f} s",
            f"{found['delay']:.1f} s",
            f"{found['driver_bytes'] / 1e6:.2f} MB",
        )
        yield f"| {' | '.join(cells)} |"


def find_missed_bars(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each bar that the results do not pass.

    The delay of the loop counts if tasks take time, as those of real passes do.
    """
    rows, missed = [summarize(result) for result in results], list[str]()
    for row in rows:
        size = f"{row['workers']:,} workers"
        if row["driver_cpu"] > MAX_CPU_RATIO * row["bare_cpu"]:
            missed.append(f"{size}: the driver takes more than {MAX_CPU_RATIO} x a bare client")
        if row["task_seconds"] and row["delay"] > MAX_LOOP_DELAY_SECONDS:
            missed.append(
                f"{size}: the scheduler's loop is late by {row['delay']:.1f} s, "
                f"{row['delay_cpu']:.2f} s of it CPU time"
            )
        if row["driver_bytes"] > MAX_DRIVER_BYTES:
            missed.append(f"{size}: {row['driver_bytes']:,.0f} bytes go through the driver")
    if max(row["driver_rss"] for row in rows) > MAX_MEMORY_GROWTH * rows[0]["driver_rss"]:
        missed.append("the memory of the driver grows with the number of workers")
    return missed
