"""Metrics for Prometheus: names by its conventions, values as in the store, one exporter a run."""

from __future__ import annotations

import errno
import json
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

pytest.importorskip("prometheus_client", reason="needs prometheus-client")

from prometheus_client.parser import text_string_to_metric_families

import rescnet_dist as rd
from rescnet_dist.cli.reporting import _parse_address
from rescnet_dist.dashboard import prometheus
from rescnet_dist.dashboard.prometheus import RunMetrics
from rescnet_dist.errors import RescnetError, SpecError
from rescnet_dist.events import (
    ChunkDone,
    ChunkRebuilt,
    PassDone,
    PassMetrics,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
    RunStopped,
    SolverIteration,
)
from rescnet_dist.runs import describe_run
from tests.dashboard.conftest import IMAGES, LAYERS, train

Values = dict[str, Any]
UNITS = ("_seconds", "_bytes", "_ratio")


def scrape(port: int) -> Values:
    """Return the values of all samples, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return read_families(list(text_string_to_metric_families(text)))


def read_families(families: list[Any]) -> Values:
    """Return the values of all samples of our metrics, by name and labels."""
    values = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
            values[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return {name: value for name, value in values.items() if name.startswith("rescnet_")}


def get_state(values: Values) -> str:
    """Return the only state that is 1."""
    states = [name for name, value in values.items() if "run_state" in name and value == 1]
    (state,) = states
    return state.split("=")[1].strip("}")


@pytest.fixture
def observe(client: Client, tmp_path: Path) -> Any:
    """Return the values before and during a run, and at its end, and the store of the run."""
    store, during = tmp_path / "run", []
    with rd.PrometheusExporter(0) as exporter:

        def scrape_now(event: Any) -> None:
            if type(event).__name__ == "PassStarted" and event.layer == LAYERS:
                during.append(scrape(exporter.port))

        before = scrape(exporter.port)
        train(store, listeners=[exporter, scrape_now])
        return before, during[0], scrape(exporter.port), store


def test_metrics_are_those_of_the_store(observe: Any) -> None:
    """Layers, images, accuracies, bytes and times, before, during and after a run."""
    before, during, after, store = observe
    assert get_state(before) == "waiting"
    assert "rescnet_layers" not in before
    assert get_state(during) == "running"
    assert during["rescnet_layers"] == LAYERS - 1
    assert during["rescnet_pass_layer"] == LAYERS
    assert 0 <= during["rescnet_time_left_seconds"] < 60
    found = describe_run(store)
    assert get_state(after) == "done"
    assert after["rescnet_layers"] == after["rescnet_max_layers"] == LAYERS
    assert after["rescnet_images"] == IMAGES
    last = found["layers"][-1]
    assert after["rescnet_accuracy_ratio{split=train}"] == last["train"]
    assert after["rescnet_accuracy_ratio{split=validation}"] == last["validation"]
    assert after[f"rescnet_run_info{{name=run,url={store}}}"] == 1
    passes = sum(v for k, v in after.items() if k.startswith("rescnet_pass_duration_seconds_count"))
    assert passes == LAYERS + 2  # survey and scores
    assert after["rescnet_images_processed_total"] == IMAGES * passes
    grown = sum(layer["seconds"] for layer in found["layers"])
    assert after["rescnet_pass_duration_seconds_sum{pass=grow}"] == pytest.approx(grown)
    observed = [layer["observed"] for layer in found["layers"]]
    assert after["rescnet_store_written_bytes_total"] >= sum(o["written"] for o in observed) > 0
    assert after["rescnet_phase_seconds_total{phase=solve}"] > 0
    assert after["rescnet_worker_memory_planned_bytes"] == found["expected"]["peak_memory"]
    assert after["rescnet_worker_memory_max_bytes"] > 1e6
    assert (
        after["rescnet_last_progress_timestamp_seconds"]
        > before["rescnet_last_progress_timestamp_seconds"]
    )


def make_metrics(*events: Any) -> Values:
    """Return the values after some events of a run without a store."""
    metrics = RunMetrics()
    for event in (RunStarted("memory://no-store", 60, 5, 0, ()), *events):
        metrics.handle_event(event)
    return read_families(list(metrics.collect()))


def test_chunks_count_once(caplog: pytest.LogCaptureFixture) -> None:
    """A chunk that is processed again, and one whose event is lost, count once; retries count."""
    grow = PassStarted("grow", 1)
    chunk = ChunkDone("grow", 1, 0, 30, "tcp://a", 100)
    done = PassDone("grow", 1, 2.0, None, observed=PassMetrics({"read": 1.0}, 5, 6, {}, redone=1))
    values = make_metrics(
        grow,
        chunk,
        chunk,
        PassRetried("grow", 1, "a worker died"),
        ChunkRebuilt(1, 0, 30, "lost", unexpected=True),
        ChunkRebuilt(1, 30, 60, "in memory", unexpected=False),
    )
    assert values["rescnet_images_processed_total"] == 30
    assert values["rescnet_pass_progress_ratio"] == 0.5
    assert values["rescnet_pass_retries_total{pass=grow}"] == 1
    assert values["rescnet_rebuilt_chunks_total"] == 1
    assert values["rescnet_worker_memory_max_bytes"] == 100
    values = make_metrics(grow, chunk, done)
    assert values["rescnet_images_processed_total"] == 60
    assert values["rescnet_redone_chunks_total"] == 1
    assert values["rescnet_store_read_bytes_total"] == 5
    assert values["rescnet_layers"] == 1
    assert "The metrics lack the plan" in caplog.text


@pytest.mark.parametrize(
    ("event", "is_progress"),
    [
        (PassRetried("grow", 1, "lost"), False),
        (RunStopped("memory://no-store", "lost"), False),
        (SolverIteration(1, 1, 10, 0.5), True),
        (RunDone("memory://no-store", 1, "done"), True),
    ],
)
def test_retries_are_no_progress(event: Any, is_progress: bool) -> None:
    """Else a run that retries for ever would raise no alert."""
    metrics = RunMetrics()
    metrics.handle_event(RunStarted("memory://no-store", 60, 5, 0, ()))
    metrics._last_progress = 0.0
    metrics.handle_event(event)
    found = read_families(list(metrics.collect()))["rescnet_last_progress_timestamp_seconds"]
    assert (found > 0) == is_progress


def test_names_follow_the_conventions() -> None:
    """Base units, which come last; counters end with _total, and only counters do."""
    families = RunMetrics()
    families.handle_event(RunStarted("memory://no-store", 60, 5, 0, ()))
    for family in families.collect():
        assert re.fullmatch(r"rescnet_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation[0].isupper() or family.documentation[0] == "1"
        if "seconds" in family.name or "bytes" in family.name or "ratio" in family.name:
            assert family.name.endswith(UNITS), family.name
        totals = [s.name for s in family.samples if s.name.endswith("_total")]
        assert bool(totals) == (family.type == "counter"), family.name


def test_busy_port_is_an_error() -> None:
    """And so is one that does not exist; a closed exporter frees its port."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(RescnetError, match=f"port {port} of 127.0.0.1 .*Use another port"):
            rd.PrometheusExporter(port)
    with pytest.raises(RescnetError, match="port 70000"):
        rd.PrometheusExporter(70000)
    for _ in range(2):
        rd.PrometheusExporter(port).close()


@pytest.mark.parametrize("url", ["memory://user:hidden@host", "memory://no-store/run?sig=hidden"])
def test_secrets_are_masked(url: str) -> None:
    """In the URL of a store, and in the name of the run, which is its last part."""
    metrics = RunMetrics()
    metrics.handle_event(RunStarted(url, 60, 5, 0, ()))
    found = json.dumps(read_families(list(metrics.collect())))
    assert "***" in found
    assert "hidden" not in found


def test_an_empty_host_stands_for_all_addresses() -> None:
    """Of IPv4, and of IPv6 where there is any."""
    with rd.PrometheusExporter(0, "") as exporter:
        assert get_state(scrape(exporter.port)) == "waiting"
        if not socket.has_dualstack_ipv6():
            pytest.skip("needs IPv6")
        try:
            connection = socket.create_connection(("::1", exporter.port), timeout=10)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            pytest.skip("needs a loopback address of IPv6")
        connection.close()


@pytest.mark.parametrize(
    ("dual", "only", "address"), [(True, 0, "::"), (True, 1, "0.0.0.0"), (False, 0, "0.0.0.0")]
)
def test_ipv4_is_served_on_all_systems(
    dual: bool, only: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if sockets of IPv6 exclude it, or if there are none."""
    if dual and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: dual)
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: only)
    assert prometheus._find_any_address() == address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        ("10.0.0.7:0", ("10.0.0.7", 0)),
    ],
)
def test_addresses_of_the_command_line(address: str, expected: tuple[str, int]) -> None:
    assert _parse_address(address) == expected


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://me:hidden@node:9470/metrics", "node:9470"),
        ("node:9470/metrics", "127.0.0.1:9464"),
    ],
)
def test_url_is_not_an_address(url: str, address: str) -> None:
    """The error has an address that can be given."""
    with pytest.raises(SpecError, match=rf"is a URL\. .* such as {address};") as caught:
        _parse_address(url)
    assert "hidden" not in str(caught.value)
