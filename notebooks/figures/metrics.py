"""Make metrics.png: the panels of the Grafana board for a run that a real Prometheus has scraped.

    python notebooks/figures/metrics.py

It needs the program `prometheus` and takes a minute or two.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from distributed import LocalCluster

from rescnet_dist.deploy import PANELS, monitoring_files

SCRAPE_SECONDS = 1
Series = dict[str, list[tuple[float, float]]]  # (time, value) by legend


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def run_prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """Run a Prometheus with the generated configuration, for other targets; yield its URL."""
    files = monitoring_files()
    config = yaml.safe_load(files["prometheus.yaml"])
    config["global"] = dict.fromkeys(config["global"], f"{SCRAPE_SECONDS}s")
    config["scrape_configs"][0]["static_configs"][0]["targets"] = targets
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (folder / "rules.yaml").write_text(files["rules.yaml"])
    address = f"127.0.0.1:{free_port()}"
    command = [
        *("prometheus", "--config.file", "prometheus.yaml", "--storage.tsdb.path", "data"),
        *("--web.listen-address", address),
    ]
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def query(url: str, path: str, **parameters: Any) -> Any:
    """Return what an API of Prometheus answers."""
    request = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["data"]


def query_range(url: str, expression: str, legend: str, start: float, stop: float) -> Series:
    """Return the series of an expression of the board, as Grafana would ask for them."""
    expression = expression.replace("SELECTOR", 'dask_cluster=~".*"')
    expression = expression.replace("$__rate_interval", f"{10 * SCRAPE_SECONDS}s")
    found = query(url, "query_range", query=expression, start=start, end=stop, step=SCRAPE_SECONDS)
    series: Series = {}
    for entry in found["result"]:
        name = legend
        for label in re.findall(r"{{(\w+)}}", legend):
            name = name.replace(f"{{{{{label}}}}}", entry["metric"].get(label, ""))
        series[name] = [(float(when) - start, float(value)) for when, value in entry["values"]]
    return series


def scrape_run(
    folder: Path, *options: str, kill_at_layer: int | None = None
) -> tuple[list[Series], dict[str, str]]:
    """Train on digits while a Prometheus scrapes driver and scheduler; kill a worker at a layer.

    Return the series of each panel of the board, and the health of each target during the run.
    """
    port = free_port()
    health: dict[str, str] = {}
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    ) as cluster:
        dashboard = urllib.parse.urlsplit(cluster.dashboard_link).port
        targets = [f"127.0.0.1:{port}", f"127.0.0.1:{dashboard}"]
        with run_prometheus(folder, targets) as url:
            start = time.time()
            command = [
                *(sys.executable, "-m", "rescnet_dist", "train", *options),
                *("--scheduler", cluster.scheduler_address, "--store", str(folder / "run")),
                *("--metrics-address", str(port)),
            ]
            with subprocess.Popen(command) as training:
                while training.poll() is None:
                    time.sleep(SCRAPE_SECONDS)
                    for target in query(url, "targets")["activeTargets"]:
                        address = target["labels"]["instance"]
                        if health.get(address) != "up":
                            health[address] = target["health"]
                    if kill_at_layer and _read_layers(url) >= kill_at_layer:
                        os.kill(cluster.workers[0].process.pid, signal.SIGKILL)
                        kill_at_layer = None
            assert training.returncode == 0
            stop = time.time()
            panels = []
            for panel in PANELS:
                series: Series = {}
                for legend, expression in panel.queries:
                    series |= query_range(url, expression, legend, start, stop)
                panels.append(series)
    return panels, health


def _read_layers(url: str) -> float:
    """Return the number of committed layers."""
    result = query(url, "query", query="rescnet_layers")["result"]
    return float(result[0]["value"][1]) if result else 0.0


def draw(panels: list[Series], path: Path) -> None:
    """Draw the charts of the board."""
    from matplotlib.figure import Figure

    charts = [(p, s) for p, s in zip(PANELS, panels, strict=True) if not p.is_stat]
    figure = Figure(figsize=(14, 11), layout="constrained")
    for axes, (panel, series) in zip(figure.subplots(4, 2).flat, charts, strict=True):
        scale, unit = {"bytes": (2**20, "MiB"), "percentunit": (0.01, "%")}.get(
            panel.unit, (1, panel.unit.replace("none", ""))
        )
        lines = {name: [v / scale for _, v in values] for name, values in series.items()}
        times = {name: [when for when, _ in values] for name, values in series.items()}
        if panel.is_stacked:
            axes.stackplot(
                next(iter(times.values())), list(lines.values()), labels=list(lines), alpha=0.7
            )
        else:
            for name, values in lines.items():
                axes.plot(times[name], values, label=name)
        axes.set_title(panel.title + (f" ({unit})" if unit else ""), loc="left", fontsize=10)
        if panel.unit != "percentunit":
            axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.grid(alpha=0.3)
    for axes in figure.axes[-2:]:
        axes.set_xlabel("seconds")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        options = ("--filters", "4", "--max-layers", "6", "--stride", "14")
        found, _ = scrape_run(Path(folder), *options, kill_at_layer=3)
    draw(found, Path(__file__).with_name("metrics.png"))
