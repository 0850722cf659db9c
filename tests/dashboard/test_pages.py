"""The pages of runs in a real browser: in Dask's dashboard during a run, and on their own."""

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
from rescnet_dist.train import describe_run
from tests.dashboard.conftest import LAYERS, PausedRun, cluster_with_dashboard, train

DATA = "Bokeh.documents[0].get_model_by_name('{}').data"
SAID = "Bokeh.documents[0].get_model_by_name('progress-text').text"
PLOTS = ("accuracy", "residual", "time", "progress", "memory", "store")


def data(page: Any, name: str) -> dict[str, Any]:
    """The columns of a source in the browser."""
    as_lists = "d => Object.fromEntries(Object.entries(d).map(([k, v]) => [k, Array.from(v)]))"
    found: dict[str, Any] = page.evaluate(f"({as_lists})({DATA.format(name)})")
    return found


def wait_for_points(page: Any, points: int) -> None:
    """Wait until the plot of accuracies has so many points."""
    source = DATA.format("accuracy-points")
    ready = "typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0"
    page.wait_for_function(f"{ready} && {source}.layer.length >= {points}")


def assert_shows(page: Any, url: Path) -> None:
    """What is in the browser is what is in the store."""
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
    assert lines["planned_written"] == pytest.approx(written)  # and no more than had to be
    models = "[...Bokeh.documents[0]._all_models.values()]"
    labels = page.evaluate(f"{models}.filter(m => 'axis_label' in m).map(m => m.axis_label)")
    assert {"layer", "accuracy (%)", "seconds", "MiB resident", "MiB"} <= set(labels)


@pytest.fixture(scope="module")
def served() -> Iterator[LocalCluster]:
    """A cluster whose dashboard runs before any run does."""
    with cluster_with_dashboard() as cluster:
        yield cluster


def base_of(cluster: LocalCluster) -> str:
    """Where the cluster's dashboard is; by its link, it would be at the machine's own address."""
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}"


def test_a_run_shows_itself_in_dasks_dashboard(
    served: LocalCluster, opened: Callable[..., Any], tmp_path: Path
) -> None:
    """On a scheduler that runs already: opened while the second layer waits, kept up to date."""
    base = base_of(served)
    with Client(served), PausedRun(tmp_path / "run") as held:
        page = opened(f"{base}/rescnet")
        wait_for_points(page, 2)
        assert "is running" in page.evaluate(SAID)
        held.let_go()
        wait_for_points(page, 2 * LAYERS)
        page.wait_for_function(f"{SAID}.includes('is done')")
    assert len(data(page, "accuracy-points")["layer"]) == 2 * LAYERS
    assert_shows(page, tmp_path / "run")
    with (
        Client(served),
        PausedRun(tmp_path / "next", before=1),
    ):  # of which there is nothing to draw
        page.wait_for_function(f"{DATA.format('time-bars')}.layer.length == 0")
        page.wait_for_timeout(500)
    opened(f"{base}/status").click("text=Rescnet")  # it is in Dask's own bar
    offered = json.load(urllib.request.urlopen(f"{base}/individual-plots.json"))
    assert {f"/individual-rescnet-{name}" for name in PLOTS} <= set(offered.values())
    assert "/individual-task-stream" in offered.values()
    dark = opened(f"{base}/rescnet?theme=dark")
    wait_for_points(dark, 2 * LAYERS)
    assert dark.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 27, 34)"


@pytest.fixture(scope="module")
def base(served: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the dashboard of a cluster is that has trained a run."""
    with Client(served):
        train(tmp_path_factory.mktemp("shown") / "run")
    return base_of(served)


@pytest.mark.parametrize("name", PLOTS)
def test_each_plot_has_a_page_of_its_own(base: str, opened: Callable[..., Any], name: str) -> None:
    """As JupyterLab's extension shows them."""
    page = opened(f"{base}/individual-rescnet-{name}")
    page.wait_for_function("typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0")
    page.wait_for_function("Bokeh.documents[0].roots().length == 1")
    assert page.title() == f"rescnet: {name}"


# on its own -------------------------------------------------------------------------------------


@pytest.fixture
def dashboard() -> Iterator[Callable[..., Dashboard]]:
    """Serves runs from a thread."""
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


def test_a_run_is_shown_from_its_store_alone(
    run: Path, dashboard: Callable[..., Dashboard], opened: Callable[..., Any]
) -> None:
    """Once it is done; dark where the browser prefers that."""
    served = dashboard(run)
    page = opened(served.url, color_scheme="dark")
    wait_for_points(page, 2 * LAYERS)
    assert_shows(page, run)
    assert page.url.endswith("?auto=dark")
    assert "small</b> is done" in page.evaluate(SAID)


def test_a_run_that_goes_on_is_followed_in_its_store(
    served: LocalCluster, dashboard: Callable[..., Dashboard], opened: Callable[..., Any],
    run: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """Beside one that is done: curves of both, and a choice of which to look into."""
    with Client(served), PausedRun(tmp_path / "live") as held:
        page = opened(dashboard(run, tmp_path / "live").url)
        wait_for_points(page, 2 * LAYERS + 2)
        assert "live</b> is running" in page.evaluate(SAID)
        page.select_option("select", label="small")
        page.wait_for_function(f"{DATA.format('time-bars')}.layer.length == {LAYERS}")
        held.let_go()
        wait_for_points(page, 4 * LAYERS)
    assert set(data(page, "accuracy-points")["run"]) == {"small", "live"}


def test_a_token_is_wanted_beyond_loopback(
    run: Path, dashboard: Callable[..., Dashboard], opened: Callable[..., Any]
) -> None:
    """None was given: one is made. Without it, or with another, nothing is shown."""
    served = dashboard(run, host="0.0.0.0")
    assert served.url.startswith(f"http://{socket.gethostname()}:{served.port}/?token=")
    url, token = f"http://127.0.0.1:{served.port}/", served.url.split("?token=")[1]
    assert len(token) >= 24
    for bad in ("", "?token=", "?token=x"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url + bad)
        assert refused.value.code == 403
        assert "needs its token" in refused.value.read().decode()
    page = opened(f"{url}?token={token}")
    wait_for_points(page, 2 * LAYERS)


def handshake(port: int, origin: str, **more: str) -> int:
    """The answer to a page of some site that wants to talk to a server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {
        "Origin": origin, "Connection": "Upgrade", "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    }  # fmt: skip
    connection.request("GET", "/ws", headers=headers | more)
    status = connection.getresponse().status
    connection.close()
    return status


def test_pages_of_other_sites_are_refused(
    run: Path, dashboard: Callable[..., Dashboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those of loopback, of the user's hub, and what is given."""
    monkeypatch.setenv("JUPYTERHUB_PUBLIC_URL", "https://hub.example.org/user/ada/")
    served = dashboard(run, origins=["other.example.org:8000"])
    assert served.proxied == f"https://hub.example.org/user/ada/proxy/{served.port}/"
    welcome = ("127.0.0.1:1", "localhost:8888", "[::1]:1", "other.example.org:8000")
    for origin in (*(f"http://{site}" for site in welcome), "https://hub.example.org"):
        assert handshake(served.port, origin) == 101, origin
    strangers = ("evil.org", f"evil.org:{served.port}", "localhost.evil.org", "other.example.org")
    for origin in (*(f"http://{site}" for site in strangers), "null"):
        assert handshake(served.port, origin) == 403, origin
    # nor is one that has pointed its own name at this machine
    rebound = {"Host": f"evil.org:{served.port}", "Sec-Fetch-Site": "same-origin"}
    assert handshake(served.port, f"http://evil.org:{served.port}", **rebound) == 403
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(served.url, headers={"Host": "evil.org"}))
    assert refused.value.read().decode().endswith("start it with --allow-origin evil.org\n")
    with pytest.raises(RescnetError, match="'a:b' is not a site"):
        Dashboard([str(run)], port=0, origins=["a:b"])


def test_a_port_in_use_is_named(run: Path, dashboard: Callable[..., Dashboard]) -> None:
    """With what to do."""
    port = dashboard(run).port
    with pytest.raises(RescnetError, match=f"Cannot listen on port {port} of 127.0.0.1"):
        Dashboard([str(run)], port=port)
