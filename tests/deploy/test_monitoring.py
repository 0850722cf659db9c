"""Monitoring: alerts that fire, a board whose queries work, and policies that let Prometheus in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from dask.utils import parse_timedelta
from test_manifests import EXAMPLE, render

pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
pytest.importorskip("prometheus_client", reason="needs prometheus-client")

from schemas import check, pods  # type: ignore[import-not-found]

from rescnet_dist.cli import main
from rescnet_dist.dashboard.prometheus import RunMetrics
from rescnet_dist.deploy import PANELS, alert_rules
from rescnet_dist.deploy.monitoring import NOT_STARTED_SECONDS
from rescnet_dist.deploy.pods import DRIVER_WAIT
from rescnet_dist.events import RunStarted
from rescnet_dist.logs import JSON_LOGGING

ROOT = Path(__file__).parents[2]
FIGURE = ROOT / "notebooks/figures/metrics.py"


@pytest.fixture(scope="module", params=["job", "cluster"])
def monitored(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, Any]]]:
    """A kind of deployment, and its manifests with monitoring from the namespace `watch`."""
    options = ["--kind", request.param, "--monitoring", "watch"]
    return request.param, render(*EXAMPLE, *options)


def find_added(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects that monitoring adds."""
    return [
        document
        for document in documents
        if document["apiVersion"].startswith("monitoring")
        or document["metadata"]["name"].endswith("-metrics")
    ]


def test_monitoring_adds_only_objects(monitored: tuple[str, list[dict[str, Any]]]) -> None:
    """The others are as without it, so it can be added to a running deployment."""
    kind, documents = monitored
    added = find_added(documents)
    assert [document for document in documents if document not in added] == render(
        *EXAMPLE, "--kind", kind
    )
    assert [document["kind"] for document in added] == [
        "NetworkPolicy",
        "PodMonitor",
        "PrometheusRule",
    ]


def test_prometheus_may_scrape_what_the_pods_serve(
    monitored: tuple[str, list[dict[str, Any]]],
) -> None:
    """From the named namespace only; the PodMonitor names ports of the pods."""
    kind, documents = monitored
    policy, monitor, _ = find_added(documents)
    check(policy)
    ((rule,), labels) = policy["spec"]["ingress"], policy["spec"]["podSelector"]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "watch"}}
    assert rule["from"] == [{"namespaceSelector": selector}]
    assert (
        labels
        == monitor["spec"]["selector"]
        == {"matchLabels": {"dask.org/cluster-name": "cifar10"}}
    )
    allowed = {port["port"] for port in rule["ports"]}
    scraped = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    (dask,) = (
        document
        for document in documents
        if document["kind"].startswith("Dask") and list(pods(document))
    )
    served = {}
    for name, pod in pods(dask):
        (container,) = pod["containers"]
        ports = {p["name"]: p["containerPort"] for p in container["ports"] if p["name"] in scraped}
        assert len(ports) == 1, name
        served[name] = ports.popitem()[1]
    assert set(served.values()) | ({8790} if kind == "cluster" else set()) == allowed


def test_driver_serves_metrics_and_logs_json() -> None:
    """In pods, at the port that is open; Dask's processes log JSON, too."""
    (job,) = (document for document in render(*EXAMPLE) if document["kind"] == "DaskJob")
    for name, pod in pods(job):
        (container,) = pod["containers"]
        variables = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert variables["DASK_LOGGING"] == repr(JSON_LOGGING)
        if name == "driver":
            retry, train = " ".join(container["args"]).split(" train ")
            assert retry.endswith("--log-format json")
            assert "--metrics-address :8790 --log-format json" in train
            assert [port["containerPort"] for port in container["ports"]] == [8790]


def test_edited_files_are_kept(tmp_path: Path) -> None:
    """A second call changes nothing; only --overwrite replaces what a user has edited."""
    command = ["deploy", "monitoring", str(tmp_path)]
    for _ in range(2):
        assert CliRunner().invoke(main, command).exit_code == 0
    original = {path.name: path.read_text() for path in tmp_path.iterdir()}
    (tmp_path / "rules.yaml").write_text("groups: []")
    (tmp_path / "board.json").unlink()
    failed = CliRunner().invoke(main, command)
    assert failed.exit_code == 2
    assert f"{tmp_path} has other content in rules.yaml" in failed.output
    assert "--overwrite" in failed.output
    assert (tmp_path / "rules.yaml").read_text() == "groups: []"
    assert not (tmp_path / "board.json").exists()
    assert CliRunner().invoke(main, [*command, "--overwrite"]).exit_code == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == original


def test_generated_files_are_current(tmp_path: Path) -> None:
    """They equal the output of `rescnet deploy monitoring`."""
    done = CliRunner().invoke(main, ["deploy", "monitoring", str(tmp_path)])
    assert done.exit_code == 0, done.output
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {path.name for path in (ROOT / "deploy/monitoring").iterdir()}
    for name in names:
        assert (tmp_path / name).read_text() == (ROOT / "deploy/monitoring" / name).read_text()


def test_board_and_alerts_use_metrics_that_exist() -> None:
    """Those of the driver; a query of any other name has no data, and never fires."""
    metrics = RunMetrics()
    metrics.handle_event(RunStarted("memory://no-store", 60, 5, 0, ()))
    exported = {
        family.name + ("_total" if family.type == "counter" else "") for family in metrics.collect()
    }
    queries = [query for panel in PANELS for _, query in panel.queries]
    queries += [rule["expr"] for rule in alert_rules()["groups"][0]["rules"]]
    used = set(re.findall(r"rescnet_[a-z_]+", " ".join(queries)))
    assert used
    assert used <= exported


def test_board_places_each_panel_once() -> None:
    """In a grid without overlaps."""
    board = json.loads((ROOT / "deploy/monitoring/board.json").read_text())
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        new = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not new & cells
        cells |= new
        assert all('dask_cluster=~"$dask_cluster"' in target["expr"] for target in panel["targets"])
    assert len({panel["id"] for panel in board["panels"]}) == len(PANELS)


# with Prometheus itself --------------------------------------------------------------------------


def run_promtool(*arguments: str, folder: Path) -> None:
    """Run promtool; fail with its output."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_configuration_and_rules(
    monitored: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Those of the folder, and the rules of the manifests."""
    run_promtool("check", "config", "prometheus.yaml", folder=ROOT / "deploy/monitoring")
    rule = find_added(monitored[1])[-1]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    run_promtool("check", "rules", "rules.yaml", folder=tmp_path)


# Series by alert, one value a minute, that make it fire at the end of an hour, or do not.
FIRING = {
    "RescnetNoProgress": {
        "rescnet_last_progress_timestamp_seconds{S}": "0+60x10 600x60",
        'rescnet_run_state{S, state="running"}': "1x70",
    },
    "RescnetNotStarted": {
        "rescnet_last_progress_timestamp_seconds{S}": "_x40 2400x30",
        'rescnet_run_state{S, state="waiting"}': "_x40 1x30",
    },
    "RescnetWorkerMemoryHigh": {
        "rescnet_worker_memory_max_bytes{S}": "50x50 95x20",
        "rescnet_worker_memory_limit_bytes{S}": "100x70",
    },
    "RescnetWorkersPaused": {'dask_scheduler_workers{S, state="paused"}': "0x50 2x20"},
    "RescnetPassRetries": {'rescnet_pass_retries_total{S, pass="grow"}': "0x40 0+1x30"},
    "RescnetChunksRebuilt": {"rescnet_rebuilt_chunks_total{S}": "0x50 4x20"},
    "RescnetDriverRestarts": {
        "process_start_time_seconds{S}": "0x10 600x10 1200x10 1800x10 2400x5 stale",
        "rescnet_last_progress_timestamp_seconds{S}": "0+60x49 stale",
    },
}
QUIET = {
    "RescnetNoProgress": {
        "rescnet_last_progress_timestamp_seconds{S}": "600x70",
        'rescnet_run_state{S, state="done"}': "1x70",
        'rescnet_run_state{S, state="running"}': "0x70",
    },
    "RescnetNotStarted": {
        "rescnet_last_progress_timestamp_seconds{S}": "600x70",
        'rescnet_run_state{S, state="waiting"}': "1x20 0x50",
        'rescnet_run_state{S, state="running"}': "0x20 1x50",
    },
    "RescnetWorkerMemoryHigh": {
        "rescnet_worker_memory_max_bytes{S}": "80x70",
        "rescnet_worker_memory_limit_bytes{S}": "100x70",
    },
    "RescnetWorkersPaused": {'dask_scheduler_workers{S, state="idle"}': "2x70"},
    "RescnetPassRetries": {'rescnet_pass_retries_total{S, pass="grow"}': "0x50 2x20"},
    "RescnetChunksRebuilt": {"rescnet_rebuilt_chunks_total{S}": "4x70"},
    "RescnetDriverRestarts": {
        "process_start_time_seconds{S}": "0x30 600x40",
        "rescnet_last_progress_timestamp_seconds{S}": "0+60x70",
    },
}


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """Each alert fires for its own series, and not for those of a healthy run."""
    rules = alert_rules('dask_cluster="a"')
    alerts = {rule["alert"]: rule for rule in rules["groups"][0]["rules"]}
    assert alerts.keys() == FIRING.keys() == QUIET.keys()
    labels = 'instance="i", dask_cluster="a"'
    tests = []
    for name in alerts:
        for cases, fires in ((FIRING, True), (QUIET, False)):
            series = [
                {"series": key.replace("S", labels, 1), "values": values}
                for key, values in cases[name].items()
            ]
            tests.append(
                {"interval": "1m", "input_series": series} | expect(name, fires, alerts[name])
            )
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests})
    )
    run_promtool("test", "rules", "test.yaml", folder=tmp_path)


def test_alert_fires_before_a_driver_gives_up_waiting() -> None:
    """The next try is another process, whose waiting time begins at zero."""
    assert parse_timedelta(DRIVER_WAIT) > NOT_STARTED_SECONDS + 120


def expect(name: str, fires: bool, rule: dict[str, Any]) -> dict[str, Any]:
    """Return the expectation of promtool after an hour."""
    severity = rule["labels"]["severity"]
    labels = f'alertname="{name}", alertstate="firing", severity="{severity}"'
    samples = [{"labels": "{}", "value": 1}] if fires else []
    found = {"expr": f"count(ALERTS{{{labels}}})", "eval_time": "60m", "exp_samples": samples}
    return {"promql_expr_test": [found]}


@pytest.mark.slow
def test_prometheus_scrapes_a_run(tmp_path: Path) -> None:
    """Driver and scheduler are up while a run trains, and each query of the board has data."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs the program prometheus, of Debian's package of this name")
    spec = spec_from_file_location("metrics_figure", FIGURE)
    assert spec
    assert spec.loader
    figure = module_from_spec(spec)
    spec.loader.exec_module(figure)
    options = ("digits", "--filters", "4", "--max-layers", "4", "--block", "14", "--stride", "14")
    panels, health = figure.scrape_run(tmp_path, *options)
    assert list(health.values()) == ["up", "up"]
    for panel, series in zip(PANELS, panels, strict=True):
        assert series, panel.title
    layers, accuracy = panels[0], panels[4]
    assert max(value for _, value in next(iter(layers.values()))) >= 3
    assert accuracy.keys() == {"train", "validation"}
    figure.draw(panels, tmp_path / "metrics.png")
    assert (tmp_path / "metrics.png").stat().st_size > 10_000
