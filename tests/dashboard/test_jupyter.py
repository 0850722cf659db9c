"""The pages of runs inside a real JupyterHub: through its proxy, and in JupyterLab's Dask panel.

    pip install -e ".[test,jupyter]" && npm install -g configurable-http-proxy
    pytest -m slow tests/dashboard/test_jupyter.py -s

It needs Chromium too, such as Debian's package chromium. With RESCNET_SHOTS=FOLDER it leaves
pictures of what it saw there. The hub listens on loopback alone, and is called hub.localhost by the
browser, as a real hub has another name than the machine a run is on.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from tests.conftest import Processes, free_port
from tests.dashboard.conftest import LAYERS, PausedRun, cluster_with_dashboard, train
from tests.dashboard.test_pages import DATA, SAID, assert_shows, data, wait_for_points

pytestmark = pytest.mark.slow

USER = "ada"
PASSWORD = "a-password-of-this-test"
PLOTS = ("Accuracy", "Memory", "Progress", "Residual", "Store", "Time")

CONFIG = """
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/"
c.JupyterHub.public_url = "{url}/"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}/"
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie-secret"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "{password}"
c.Authenticator.allowed_users = {{"{user}"}}
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/{{username}}"
c.Spawner.cmd = ["{python}", "-m", "jupyterhub.singleuser"]
c.Spawner.args = {arguments}
c.Spawner.ip = "127.0.0.1"
c.Spawner.environment = {environment}
"""

# else it asks for leave to fetch some, over the plots
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'


class Hub:
    """A JupyterHub whose user is logged in: URLs of it, and what a browser must bring."""

    def __init__(self, url: str, state: Any) -> None:
        self.url, self.state = url, state
        self.server = f"{url}/user/{USER}"

    def proxied(self, port: int, path: str = "") -> str:
        """The URL of what listens at a port of loopback, through the hub."""
        return f"{self.server}/proxy/{port}/{path}"


@pytest.fixture(scope="module")
def hub(
    processes_in: Callable[[Path], AbstractContextManager[Processes]],
    tmp_path_factory: pytest.TempPathFactory,
    browser: Any,
) -> Iterator[Hub]:
    """A hub on loopback, in a folder of its own, and its user's server."""
    for module in ("jupyterhub", "jupyterlab", "dask_labextension", "jupyter_server_proxy"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module} (pip install -e '.[jupyter]')")
    proxy = shutil.which("configurable-http-proxy")
    if proxy is None:
        pytest.skip("needs npm's configurable-http-proxy (npm install -g configurable-http-proxy)")
    folder, port = tmp_path_factory.mktemp("hub"), free_port()
    (folder / "tmp").mkdir()
    url = f"http://hub.localhost:{port}"
    parts = {part: f"{folder}/jupyter/{part.lower()}" for part in ("CONFIG", "DATA", "RUNTIME")}
    here = {f"JUPYTER_{part}_DIR": path for part, path in parts.items()} | {
        "HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[2]),
        "TMPDIR": str(folder / "tmp"), "IPYTHONDIR": str(folder / "ipython"),
    }  # fmt: skip
    quiet = Path(here["JUPYTER_CONFIG_DIR"]) / "lab/user-settings/@jupyterlab/apputils-extension"
    quiet.mkdir(parents=True)
    (quiet / "notification.jupyterlab-settings").write_text(NO_NEWS)
    config = folder / "hub.py"
    config.write_text(
        CONFIG.format(
            port=port, url=url, hub_port=free_port(), proxy_port=free_port(), folder=folder,
            proxy=proxy, python=sys.executable, user=USER, password=PASSWORD, environment=here,
            arguments=["--allow-root"] if os.geteuid() == 0 else [],
        )
    )  # fmt: skip
    with processes_in(folder) as started:
        process = started.start(sys.executable, "-m", "jupyterhub", "-f", config, **here)
        started.wait_until(lambda: answers(f"http://127.0.0.1:{port}/hub/login"), process)
        try:
            yield Hub(url, log_in(browser, url))
        finally:
            process.send_signal(signal.SIGTERM)  # it ends its proxy and the user's server
            process.wait(30)


def answers(url: str) -> bool:
    """Whether a page can be had."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def log_in(browser: Any, url: str, user: str = USER, password: str = PASSWORD) -> Any:
    """Log in as a user does, until the user's server runs; gives the browser's cookies."""
    page = browser.new_page()
    page.set_default_timeout(90_000)
    page.goto(f"{url}/hub/login")
    page.fill("#username_input", user)
    page.fill("#password_input", password)
    page.click("#login_submit")
    page.wait_for_url(f"{url}/user/{user}/**")
    page.wait_for_selector("#jupyterlab-splash", state="detached")
    state = page.context.storage_state()
    page.context.close()
    return state


def shoot(page: Any, name: str) -> None:
    """Leave a picture, where that is asked for."""
    if folder := os.environ.get("RESCNET_SHOTS"):
        page.screenshot(path=Path(folder) / f"hub-{name}.png")


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """A cluster on loopback, beside the user's server."""
    with cluster_with_dashboard() as cluster:
        yield cluster


def wait_for_end(page: Any) -> None:
    """Wait until all plots show a run that is done; they are updated one after another."""
    wait_for_points(page, 2 * LAYERS)
    page.wait_for_function(f"{SAID}.includes('is done')")
    page.wait_for_function(f"{DATA.format('store-lines')}.layer.length == {LAYERS}")


def test_a_run_is_followed_through_the_hub(
    hub: Hub, cluster: LocalCluster, opened: Callable[..., Any], tmp_path: Path
) -> None:
    """In Dask's own dashboard behind jupyter-server-proxy: points keep arriving by the websocket,
    and neither Dask's page nor ours says anything on the console."""
    port = cluster.scheduler.http_server.port
    with Client(cluster), PausedRun(tmp_path / "run") as run:
        page = opened(hub.proxied(port, "rescnet"), storage_state=hub.state)
        wait_for_points(page, 2)
        assert len(data(page, "accuracy-points")["layer"]) < 2 * LAYERS
        assert "is running" in page.evaluate(SAID)
        run.let_go()
        wait_for_end(page)
    assert len(data(page, "accuracy-points")["layer"]) == 2 * LAYERS
    assert_shows(page, tmp_path / "run")
    shoot(page, "proxied")
    page.click("a.theme")  # relative links stay behind the proxy
    page.wait_for_url(hub.proxied(port, "rescnet?theme=dark"))
    wait_for_points(page, 2 * LAYERS)
    page.click(".navbar >> text=Workers")
    page.wait_for_url(hub.proxied(port, "workers"))


def test_strangers_are_sent_to_log_in(
    hub: Hub, cluster: LocalCluster, opened: Callable[..., Any]
) -> None:
    """The hub guards what is behind it."""
    page = opened(hub.proxied(cluster.scheduler.http_server.port, "rescnet"))
    page.wait_for_selector("#login_submit")
    assert page.url.startswith(f"{hub.url}/hub/login")


# on its own, from a terminal of the user --------------------------------------------------------

TYPE = """async ([base, line]) => {
  const xsrf = document.cookie.match(/_xsrf=([^;]*)/)[1];
  const how = {method: "POST", headers: {"X-XSRFToken": xsrf}};
  const {name} = await (await fetch(`${base}/api/terminals`, how)).json();
  const socket = new WebSocket(`${base}/terminals/websocket/${name}`);
  await new Promise(done => { socket.onopen = done; });
  socket.send(JSON.stringify(["stdin", line + "\\r"]));
}"""


@pytest.fixture
def typed(hub: Hub, browser: Any) -> Iterator[Callable[[str], None]]:
    """Types a line into a new terminal of the user's server, as long as the test goes on."""
    page = browser.new_page(storage_state=hub.state)
    page.goto(f"{hub.server}/lab")
    yield lambda line: page.evaluate(TYPE, [hub.server, line])
    page.context.close()


@pytest.mark.parametrize(
    ("knows", "options"),
    [(True, ""), (False, "--allow-origin {site}"), (False, "--token a-secret")],
    ids=["the hub tells its URL", "an origin is given", "a token is given"],
)
def test_the_dashboard_alone_is_opened_through_the_hub(
    hub: Hub, cluster: LocalCluster, typed: Callable[[str], None], opened: Callable[..., Any],
    started: Processes, tmp_path: Path, knows: bool, options: str,
) -> None:  # fmt: skip
    """While a run goes on; a hub that tells its public URL needs no option."""
    said = tmp_path / "said"
    line = "" if knows else "env -u JUPYTERHUB_PUBLIC_URL "
    line += f"{sys.executable} -m rescnet_dist dashboard {tmp_path / 'run'} --port 0 "
    line += options.format(site=hub.url.removeprefix("http://"))
    with Client(cluster), PausedRun(tmp_path / "run") as run:
        typed(f"exec {line} 2> {said}")
        started.wait_until(lambda: said.exists() and "Ctrl-C" in said.read_text())
        url = said.read_text().split("in JupyterHub: ")[1].split()[0]
        assert url.startswith(f"{hub.server}/proxy/" if knows else f"/user/{USER}/proxy/")
        assert url.endswith("/?token=a-secret" if "token" in options else "/")
        page = opened(url if knows else hub.url + url, storage_state=hub.state)
        wait_for_points(page, 2)
        assert "is running" in page.evaluate(SAID)
        run.let_go()
        wait_for_end(page)
    assert_shows(page, tmp_path / "run")
    shoot(page, "alone")
    kept = {cookie["name"]: cookie["path"] for cookie in page.context.cookies(page.url)}
    if "token" in options:  # it is sent to no other page of the hub
        assert f"{hub.url}{kept['rescnet-token']}/" == page.url.split("?")[0]


def test_a_hub_that_tells_nothing_must_be_named(
    hub: Hub, cluster: LocalCluster, typed: Callable[[str], None], browser: Any,
    started: Processes, tmp_path: Path,
) -> None:  # fmt: skip
    """The page says how."""
    with Client(cluster):
        train(tmp_path / "run")
    said = tmp_path / "said"
    line = f"{sys.executable} -m rescnet_dist dashboard {tmp_path / 'run'} --port 0"
    typed(f"exec env -u JUPYTERHUB_PUBLIC_URL {line} 2> {said}")
    started.wait_until(lambda: said.exists() and "Ctrl-C" in said.read_text())
    page = browser.new_page(storage_state=hub.state)
    found = page.goto(hub.url + said.read_text().split("in JupyterHub: ")[1].split()[0])
    assert found.status == 403
    assert f"--allow-origin {hub.url.removeprefix('http://')}" in found.text()
    page.context.close()


# in JupyterLab ----------------------------------------------------------------------------------

# the browser warns so of any frame that dask-labextension makes, in the name of what is shown in it
SANDBOX = (
    "An iframe which has both allow-scripts and allow-same-origin for its sandbox attribute can "
    "escape its sandboxing."
)


def test_jupyterlabs_dask_panel_shows_the_plots(
    hub: Hub, cluster: LocalCluster, browser: Any, tmp_path: Path
) -> None:
    """By name, each in a tab, in the colors of the Lab.

    What the Lab says on the console for itself is none of ours; of what is said by pages behind
    the proxy, which are Dask's and ours, there must be nothing.
    """
    port = cluster.scheduler.http_server.port
    with Client(cluster):
        train(tmp_path / "run")
    page = browser.new_page(viewport={"width": 1280, "height": 800}, storage_state=hub.state)
    page.set_default_timeout(60_000)
    said: list[str] = []
    page.on("pageerror", lambda e: said.append(e.stack) if f"/proxy/{port}/" in e.stack else 0)
    page.on("console", lambda m: said.append(m.text) if is_ours(m, port) else 0)
    page.goto(f"{hub.server}/lab")
    page.click("[data-id='dask-dashboard-launcher']")
    page.fill("[placeholder='DASK DASHBOARD URL']", hub.proxied(port))
    page.keyboard.press("Enter")
    for name in PLOTS:
        page.wait_for_selector(f".dask-DashboardListing-item >> text='Rescnet {name}'")
    page.click("text='Rescnet Accuracy'")
    plot = frame_of(page, f"/proxy/{port}/individual-rescnet-accuracy")
    wait_for_points(plot, 2 * LAYERS)
    assert len(data(plot, "accuracy-points")["layer"]) == 2 * LAYERS
    assert background(plot) == "rgb(255, 255, 255)"
    shoot(page, "lab-light")
    page.click("text='Settings'")
    page.hover(".lm-Menu-item >> text='Theme'")
    page.click(".lm-Menu-item >> text='JupyterLab Dark'")
    page.wait_for_function("document.body.dataset.jpThemeLight == 'false'")
    plot.wait_for_url("**?auto=dark")
    wait_for_points(plot, 2 * LAYERS)
    assert background(plot) == "rgb(22, 27, 34)"
    shoot(page, "lab-dark")
    page.click("text='Rescnet Progress'")
    wait_for_text(frame_of(page, f"/proxy/{port}/individual-rescnet-progress"), "is done")
    shoot(page, "lab-dark-progress")
    page.context.close()
    assert said == []


def is_ours(message: Any, port: int) -> bool:
    """Whether a complaint comes from a page or a script behind the proxy."""
    if message.text == SANDBOX:
        return False
    complains = message.type in ("error", "warning")
    return complains and f"/proxy/{port}/" in message.location["url"]


def frame_of(page: Any, path: str) -> Any:
    """The frame that shows a path, once there is one."""
    return page.wait_for_selector(f"iframe[src*='{path}']").content_frame()


def background(frame: Any) -> Any:
    """The color behind the plots."""
    return frame.evaluate("getComputedStyle(document.body).backgroundColor")


def wait_for_text(frame: Any, text: str) -> None:
    """Wait until the panel of words says something."""
    ready = "typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0"
    frame.wait_for_function(f"{ready} && {SAID}.includes('{text}')")
