"""A Grafana dashboard of runs: layers, accuracy, speed, memory, store traffic and retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SELECTOR = 'dask_cluster=~"$dask_cluster"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GRID_COLUMNS = 24  # of a Grafana dashboard
STAT_SIZE, CHART_SIZE = (6, 4), (12, 8)  # columns and rows


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the board.

    Attributes
    ----------
    title : str
    unit : str
        Unit, as Grafana names it.
    queries : tuple of (str, str)
        Legend and PromQL expression of each query; SELECTOR stands for the selected clusters.
    is_stat : bool
        Whether only the last value is shown, as a number.
    is_stacked : bool
        Whether the series are stacked.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    is_stat: bool = False
    is_stacked: bool = False


PANELS = (
    Panel("Layers", "none", (("", "rescnet_layers{SELECTOR}"),), is_stat=True),
    Panel("Layers at most", "none", (("", "rescnet_max_layers{SELECTOR}"),), is_stat=True),
    Panel("Time left", "s", (("", "rescnet_time_left_seconds{SELECTOR}"),), is_stat=True),
    Panel(
        "Since the last progress",
        "s",
        (("", "time() - rescnet_last_progress_timestamp_seconds{SELECTOR}"),),
        is_stat=True,
    ),
    Panel("Accuracy", "percentunit", (("{{split}}", "rescnet_accuracy_ratio{SELECTOR}"),)),
    Panel(
        "Images per second",
        "none",
        (
            (
                "{{dask_cluster}}",
                "rate(rescnet_images_processed_total{SELECTOR}[$__rate_interval])",
            ),
        ),
    ),
    Panel(
        "Memory of the largest worker",
        "bytes",
        (
            ("used", "rescnet_worker_memory_max_bytes{SELECTOR}"),
            ("planned", "rescnet_worker_memory_planned_bytes{SELECTOR}"),
            ("limit", "rescnet_worker_memory_limit_bytes{SELECTOR}"),
        ),
    ),
    Panel(
        "Time of passes by phase",
        "s",
        (("{{phase}}", "rescnet_phase_seconds_total{SELECTOR}"),),
        is_stacked=True,
    ),
    Panel(
        "Store traffic",
        "bytes",
        (
            ("read", "rescnet_store_read_bytes_total{SELECTOR}"),
            ("written", "rescnet_store_written_bytes_total{SELECTOR}"),
        ),
    ),
    Panel(
        "Retries",
        "none",
        (
            ("retried passes", "sum without (pass) (rescnet_pass_retries_total{SELECTOR})"),
            ("rebuilt chunks", "rescnet_rebuilt_chunks_total{SELECTOR}"),
            ("redone chunks", "rescnet_redone_chunks_total{SELECTOR}"),
        ),
    ),
    Panel("Workers", "none", (("{{state}}", "dask_scheduler_workers{SELECTOR}"),), is_stacked=True),
    Panel("Tasks", "none", (("{{state}}", "dask_scheduler_tasks{SELECTOR}"),), is_stacked=True),
)


def grafana_board() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": "rescnet runs",
        "uid": "rescnet-runs",
        "tags": ["rescnet", "dask"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource_variable(), _cluster_variable()]},
        "panels": _place_panels(),
    }


def _place_panels() -> list[dict[str, Any]]:
    """Return the panels as JSON, from left to right and from top to bottom."""
    placed, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(PANELS, 1):
        width, new_height = STAT_SIZE if panel.is_stat else CHART_SIZE
        if x + width > GRID_COLUMNS or (height and new_height != height):
            x, y = 0, y + height
        height = new_height
        placed.append(
            _panel_json(panel)
            | {"id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}}
        )
        x += width
    return placed


def _panel_json(panel: Panel) -> dict[str, Any]:
    """Return a panel without its place."""
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 40} if panel.is_stacked else {}
    return {
        "title": panel.title,
        "type": "stat" if panel.is_stat else "timeseries",
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "expr": expression.replace("SELECTOR", SELECTOR),
                "legendFormat": legend or "__auto",
                "datasource": DATASOURCE,
            }
            for index, (legend, expression) in enumerate(panel.queries)
        ],
    }


def _datasource_variable() -> dict[str, Any]:
    """Return the variable that selects a Prometheus."""
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _cluster_variable() -> dict[str, Any]:
    """Return the variable that selects clusters, each of which has one run at a time."""
    query = "label_values(rescnet_run_state, dask_cluster)"
    return {
        "name": "dask_cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "clusters"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
    }
