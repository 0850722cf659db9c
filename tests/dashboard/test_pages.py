"""The pages of runs in a real browser: in Dask's dashboard, and from the stand-alone server."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from rescnet_dist.dashboard.server import Dashboard
from rescnet_dist.errors import RescnetError
from rescnet_dist.runs import describe_run
from tests.dashboard.conftest import LAYERS, PausedRun, cluster_with_dashboard, train

DATA = "Bokeh.documents[0].get_model_by_name('{}').data"
PROGRESS_TEXT = "Bokeh.documents[0].get_model_by_name('progress-text').text"
PLOTS = ("accuracy", "residual", "time", "progress", "memory", "store")


def data(page: Any, name: str) -> dict[str, Any]:
    """Return the columns of a data source in the browser."""
    as_lists = "d => Object.fromEntries(Object.entries(d).map(([k, v]) => [k, Array.from(v)]))"
    found: dict[str, Any] = page.evaluate(f"({as_lists})({DATA.format(name)})")
    return found


def wait_for_points(page: Any, points: int) -> None:
    """Wait until the accuracy plot has a number of points."""
    source = DATA.format("accuracy-points")
    ready = "typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0"
    page.wait_for_function(f"{ready} && {source}.layer.length >= {points}")


def assert_shows(page: Any, url: Path) -> None:
    """Assert that the plots in the browser match the store."""
    stored = describe_run(url)["layers"]
    points = data(page, "accuracy-points")
    for kind, name in (("training", "train"), ("validation", "validation")):
        shown = [v for v, k in zip(points["value"], points["kind"], strict=True) if k == kind]
        assert shown == pytest.approx([100 * layer[name] for layer in stored])
    residuals = data(page, "residual-points")
    positive = [
        v for v, k in zip(residuals["value"], residuals["kind"], strict=True) if k[0] == "p"
    ]
    assert positive == pytest.approx([100 * layer["residual"][0] for layer in stored])
    bars = data(page, "time-bars")
    for phase in ("read", "compute", "write", "reduce", "solve"):
        expected = [layer["observed"]["seconds"][phase] for layer in stored]
        assert bars[phase] == pytest.approx(expected)
    lines = data(page, "store-lines")
    written = [layer["observed"]["written"] / 2**20 for layer in stored]
    assert lines["written"] == pytest.approx(written)
    assert lines["planned_written"] == pytest.approx(written)  # and no more than planned
    models = "[...Bokeh.documents[0]._all_models.values()]"
    labels = page.evaluate(f"{models}.filter(m => 'axis_label' in m).map(m => m.axis_label)")
    assert {"layer", "accuracy (%)", "seconds", "MiB resident", "MiB"} <= set(labels)


@pytest.fixture(scope="module")
def served() -> Iterator[LocalCluster]:
    """A cluster whose dashboard is up before any run."""
    with cluster_with_dashboard() as cluster:
        yield cluster


def dashboard_url(cluster: LocalCluster) -> str:
    """Return the dashboard's URL on loopback; its link has the machine's own address."""
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}"


def test_run_in_dasks_dashboard(
    served: LocalCluster, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """On a running scheduler: open_page while the run is paused, then updated to the end."""
    base = dashboard_url(served)
    with Client(served), PausedRun(tmp_path / "run") as paused:
        page = open_page(f"{base}/rescnet")
        wait_for_points(page, 2)
        assert "is running" in page.evaluate(PROGRESS_TEXT)
        paused.resume()
        wait_for_points(page, 2 * LAYERS)
        page.wait_for_function(f"{PROGRESS_TEXT}.includes('is done')")
    assert len(data(page, "accuracy-points")["layer"]) == 2 * LAYERS
    assert_shows(page, tmp_path / "run")
    with Client(served), PausedRun(tmp_path / "next", before=1):  # which has nothing to draw
        page.wait_for_function(f"{DATA.format('time-bars')}.layer.length == 0")
        page.wait_for_timeout(500)
    open_page(f"{base}/status").click("text=Rescnet")  # a link in Dask's navigation bar
    listed = json.load(urllib.request.urlopen(f"{base}/individual-plots.json"))
    assert {f"/individual-rescnet-{name}" for name in PLOTS} <= set(listed.values())
    assert "/individual-task-stream" in listed.values()
    dark = open_page(f"{base}/rescnet?theme=dark")
    wait_for_points(dark, 2 * LAYERS)
    assert dark.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 27, 34)"


@pytest.fixture(scope="module")
def base(served: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of the dashboard of a cluster that has trained a run."""
    with Client(served):
        train(tmp_path_factory.mktemp("shown") / "run")
    return dashboard_url(served)


@pytest.mark.parametrize("name", PLOTS)
def test_each_plot_has_its_own_page(base: str, open_page: Callable[..., Any], name: str) -> None:
    """JupyterLab's extension shows these pages."""
    page = open_page(f"{base}/individual-rescnet-{name}")
    page.wait_for_function("typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0")
    page.wait_for_function("Bokeh.documents[0].roots().length == 1")
    assert page.title() == f"rescnet: {name}"


# stand-alone ------------------------------------------------------------------------------------


@pytest.fixture
def dashboard() -> Iterator[Callable[..., Dashboard]]:
    """Return a function that serves runs from a thread."""
    stops: list[Callable[[], None]] = []

    def serve(*urls: Path, **options: Any) -> Dashboard:
        ready, served = threading.Event(), list[Any]()

        def work() -> None:
            import asyncio

            asyncio.set_event_loop(asyncio.new_event_loop())
            served.append(Dashboard([str(url) for url in urls], port=0, **options))
            loop = served[0]._server.io_loop
            loop.add_callback(ready.set)
            served[0].serve()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert ready.wait(30)
        loop = served[0]._server.io_loop
        stops.append(lambda: (loop.add_callback(loop.stop), thread.join(30)))
        return served[0]

    yield serve
    for stop in stops:
        stop()


def test_finished_run_from_its_store(
    run: Path, dashboard: Callable[..., Dashboard], open_page: Callable[..., Any]
) -> None:
    """Without a cluster; dark if the browser prefers that."""
    served = dashboard(run)
    page = open_page(served.url, color_scheme="dark")
    wait_for_points(page, 2 * LAYERS)
    assert_shows(page, run)
    assert page.url.endswith("?auto=dark")
    assert "small</b> is done" in page.evaluate(PROGRESS_TEXT)


def test_running_run_from_its_store(
    served: LocalCluster,
    dashboard: Callable[..., Dashboard],
    open_page: Callable[..., Any],
    run: Path,
    tmp_path: Path,
) -> None:
    """Next to a finished run: curves of both, and a selection of one for the other plots."""
    with Client(served), PausedRun(tmp_path / "live") as paused:
        page = open_page(dashboard(run, tmp_path / "live").url)
        wait_for_points(page, 2 * LAYERS + 2)
        assert "live</b> is running" in page.evaluate(PROGRESS_TEXT)
        page.select_option("select", label="small")
        page.wait_for_function(f"{DATA.format('time-bars')}.layer.length == {LAYERS}")
        paused.resume()
        wait_for_points(page, 4 * LAYERS)
    assert set(data(page, "accuracy-points")["run"]) == {"small", "live"}


def test_token_is_required_outside_loopback(
    run: Path, dashboard: Callable[..., Dashboard], open_page: Callable[..., Any]
) -> None:
    """Without a given token, one is generated. Requests without it are rejected."""
    served = dashboard(run, host="0.0.0.0")
    assert served.url.startswith(f"http://{socket.gethostname()}:{served.port}/?token=")
    url, token = f"http://127.0.0.1:{served.port}/", served.url.split("?token=")[1]
    assert len(token) >= 24
    for bad in ("", "?token=", "?token=x"):
        with pytest.raises(urllib.error.HTTPError) as rejected:
            urllib.request.urlopen(url + bad)
        assert rejected.value.code == 403
        assert "needs its token" in rejected.value.read().decode()
    page = open_page(f"{url}?token={token}")
    wait_for_points(page, 2 * LAYERS)


def handshake(port: int, origin: str, **extra_headers: str) -> int:
    """Return the status of a websocket handshake by a page of some origin."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {
        "Origin": origin,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    }
    connection.request("GET", "/ws", headers=headers | extra_headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_other_origins_are_rejected(
    run: Path, dashboard: Callable[..., Dashboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for loopback, the user's hub, and the given origins."""
    monkeypatch.setenv("JUPYTERHUB_PUBLIC_URL", "https://hub.example.org/user/ada/")
    served = dashboard(run, origins=["other.example.org:8000"])
    assert served.proxied == f"https://hub.example.org/user/ada/proxy/{served.port}/"
    allowed = ("127.0.0.1:1", "localhost:8888", "[::1]:1", "other.example.org:8000")
    for origin in (*(f"http://{site}" for site in allowed), "https://hub.example.org"):
        assert handshake(served.port, origin) == 101, origin
    others = ("evil.org", f"evil.org:{served.port}", "localhost.evil.org", "other.example.org")
    for origin in (*(f"http://{site}" for site in others), "null"):
        assert handshake(served.port, origin) == 403, origin
    # a site that points its own name at this machine (DNS rebinding) is rejected, too
    rebound = {"Host": f"evil.org:{served.port}", "Sec-Fetch-Site": "same-origin"}
    assert handshake(served.port, f"http://evil.org:{served.port}", **rebound) == 403
    with pytest.raises(urllib.error.HTTPError) as rejected:
        urllib.request.urlopen(urllib.request.Request(served.url, headers={"Host": "evil.org"}))
    assert rejected.value.read().decode().endswith("start it with --allow-origin evil.org\n")
    with pytest.raises(RescnetError, match="'a:b' is not a site"):
        Dashboard([str(run)], port=0, origins=["a:b"])


def test_port_in_use_raises(run: Path, dashboard: Callable[..., Dashboard]) -> None:
    """With the port in the message."""
    port = dashboard(run).port
    with pytest.raises(RescnetError, match=f"Cannot listen on port {port} of 127.0.0.1"):
        Dashboard([str(run)], port=port)
