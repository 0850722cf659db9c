"""The pages of runs in a real JupyterHub: through its proxy, and in JupyterLab's Dask panel.

    pip install -e ".[test,jupyter]" && npm install -g configurable-http-proxy
    pytest -m slow tests/dashboard/test_jupyter.py -s

It needs Chromium, too, such as Debian's package chromium. With RESCNET_SHOTS=FOLDER it writes
screenshots there. The hub listens on loopback only; the browser calls it hub.localhost, as a real
hub has another name than the machine of a run.
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
from ports import free_port

from tests.conftest import Processes
from tests.dashboard.conftest import LAYERS, PausedRun, cluster_with_dashboard, train
from tests.dashboard.test_pages import DATA, PROGRESS_TEXT, assert_shows, data, wait_for_points

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

# without this, JupyterLab asks whether to fetch news, in front of the plots
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'


class Hub:
    """A JupyterHub whose user is logged in: its URLs, and the cookies of the session."""

    def __init__(self, url: str, state: Any) -> None:
        self.url, self.state = url, state
        self.server = f"{url}/user/{USER}"

    def proxied(self, port: int, path: str = "") -> str:
        """Return the URL of a port on loopback through the hub."""
        return f"{self.server}/proxy/{port}/{path}"


@pytest.fixture(scope="module")
def hub(
    processes_in: Callable[[Path], AbstractContextManager[Processes]],
    tmp_path_factory: pytest.TempPathFactory,
    browser: Any,
) -> Iterator[Hub]:
    """A hub on loopback in its own folder, and its user's server."""
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
    environment = {f"JUPYTER_{part}_DIR": path for part, path in parts.items()} | {
        "HOME": str(folder),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TMPDIR": str(folder / "tmp"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    user_settings = Path(environment["JUPYTER_CONFIG_DIR"]) / "lab/user-settings"
    plugin_settings = user_settings / "@jupyterlab/apputils-extension"
    plugin_settings.mkdir(parents=True)
    (plugin_settings / "notification.jupyterlab-settings").write_text(NO_NEWS)
    config = folder / "hub.py"
    config.write_text(
        CONFIG.format(
            port=port,
            url=url,
            hub_port=free_port(),
            proxy_port=free_port(),
            folder=folder,
            proxy=proxy,
            python=sys.executable,
            user=USER,
            password=PASSWORD,
            environment=environment,
            arguments=["--allow-root"] if os.geteuid() == 0 else [],
        )
    )
    with processes_in(folder) as started:
        process = started.start(sys.executable, "-m", "jupyterhub", "-f", config, **environment)
        started.wait_until(lambda: is_reachable(f"http://127.0.0.1:{port}/hub/login"), process)
        try:
            yield Hub(url, log_in(browser, url))
        finally:
            process.send_signal(signal.SIGTERM)  # it ends its proxy and the user's server
            process.wait(30)


def is_reachable(url: str) -> bool:
    """Return whether a page can be fetched."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def log_in(browser: Any, url: str, user: str = USER, password: str = PASSWORD) -> Any:
    """Log in as a user, wait until the user's server runs, and return the browser's cookies."""
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


def take_screenshot(page: Any, name: str) -> None:
    """Write a screenshot if RESCNET_SHOTS is set."""
    if folder := os.environ.get("RESCNET_SHOTS"):
        page.screenshot(path=Path(folder) / f"hub-{name}.png")


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """A cluster on loopback, on the machine of the user's server."""
    with cluster_with_dashboard() as cluster:
        yield cluster


def wait_for_end(page: Any) -> None:
    """Wait until all plots show a finished run; they are updated one after another."""
    wait_for_points(page, 2 * LAYERS)
    page.wait_for_function(f"{PROGRESS_TEXT}.includes('is done')")
    page.wait_for_function(f"{DATA.format('store-lines')}.layer.length == {LAYERS}")


def test_page_through_the_hub(
    hub: Hub, cluster: LocalCluster, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """In Dask's dashboard, through jupyter-server-proxy.

    Points keep arriving by the websocket, and no page writes to the console.
    """
    port = cluster.scheduler.http_server.port
    with Client(cluster), PausedRun(tmp_path / "run") as run:
        page = open_page(hub.proxied(port, "rescnet"), storage_state=hub.state)
        wait_for_points(page, 2)
        assert len(data(page, "accuracy-points")["layer"]) < 2 * LAYERS
        assert "is running" in page.evaluate(PROGRESS_TEXT)
        run.resume()
        wait_for_end(page)
    assert len(data(page, "accuracy-points")["layer"]) == 2 * LAYERS
    assert_shows(page, tmp_path / "run")
    take_screenshot(page, "proxied")
    page.click("a.theme")  # relative links work through the proxy
    page.wait_for_url(hub.proxied(port, "rescnet?theme=dark"))
    wait_for_points(page, 2 * LAYERS)
    page.click(".navbar >> text=Workers")
    page.wait_for_url(hub.proxied(port, "workers"))


def test_hub_requires_a_login(
    hub: Hub, cluster: LocalCluster, open_page: Callable[..., Any]
) -> None:
    """Requests without the cookies are redirected to the login page."""
    page = open_page(hub.proxied(cluster.scheduler.http_server.port, "rescnet"))
    page.wait_for_selector("#login_submit")
    assert page.url.startswith(f"{hub.url}/hub/login")


# stand-alone, from a terminal of the user -------------------------------------------------------

TYPE = """async ([base, line]) => {
  const xsrf = document.cookie.match(/_xsrf=([^;]*)/)[1];
  const options = {method: "POST", headers: {"X-XSRFToken": xsrf}};
  const {name} = await (await fetch(`${base}/api/terminals`, options)).json();
  const socket = new WebSocket(`${base}/terminals/websocket/${name}`);
  await new Promise(done => { socket.onopen = done; });
  socket.send(JSON.stringify(["stdin", line + "\\r"]));
}"""


@pytest.fixture
def type_line(hub: Hub, browser: Any) -> Iterator[Callable[[str], None]]:
    """Return a function that types a line into a new terminal of the user's server."""
    page = browser.new_page(storage_state=hub.state)
    page.goto(f"{hub.server}/lab")
    yield lambda line: page.evaluate(TYPE, [hub.server, line])
    page.context.close()


@pytest.mark.parametrize(
    ("has_public_url", "options"),
    [(True, ""), (False, "--allow-origin {site}"), (False, "--token a-secret")],
    ids=["public URL", "allowed origin", "token"],
)
def test_stand_alone_dashboard_through_the_hub(
    hub: Hub,
    cluster: LocalCluster,
    type_line: Callable[[str], None],
    open_page: Callable[..., Any],
    started: Processes,
    tmp_path: Path,
    has_public_url: bool,
    options: str,
) -> None:
    """During a run; a hub that sets its public URL needs no option."""
    output = tmp_path / "output"
    line = "" if has_public_url else "env -u JUPYTERHUB_PUBLIC_URL "
    line += f"{sys.executable} -m rescnet_dist dashboard {tmp_path / 'run'} --port 0 "
    line += options.format(site=hub.url.removeprefix("http://"))
    with Client(cluster), PausedRun(tmp_path / "run") as run:
        type_line(f"exec {line} 2> {output}")
        started.wait_until(lambda: output.exists() and "Ctrl-C" in output.read_text())
        url = output.read_text().split("in JupyterHub: ")[1].split()[0]
        assert url.startswith(f"{hub.server}/proxy/" if has_public_url else f"/user/{USER}/proxy/")
        assert url.endswith("/?token=a-secret" if "token" in options else "/")
        page = open_page(url if has_public_url else hub.url + url, storage_state=hub.state)
        wait_for_points(page, 2)
        assert "is running" in page.evaluate(PROGRESS_TEXT)
        run.resume()
        wait_for_end(page)
    assert_shows(page, tmp_path / "run")
    take_screenshot(page, "alone")
    cookies = {cookie["name"]: cookie["path"] for cookie in page.context.cookies(page.url)}
    if "token" in options:  # the cookie is sent to no other page of the hub
        assert f"{hub.url}{cookies['rescnet-token']}/" == page.url.split("?")[0]


def test_hub_without_public_url_needs_the_option(
    hub: Hub,
    cluster: LocalCluster,
    type_line: Callable[[str], None],
    browser: Any,
    started: Processes,
    tmp_path: Path,
) -> None:
    """The page names the option."""
    with Client(cluster):
        train(tmp_path / "run")
    output = tmp_path / "output"
    line = f"{sys.executable} -m rescnet_dist dashboard {tmp_path / 'run'} --port 0"
    type_line(f"exec env -u JUPYTERHUB_PUBLIC_URL {line} 2> {output}")
    started.wait_until(lambda: output.exists() and "Ctrl-C" in output.read_text())
    page = browser.new_page(storage_state=hub.state)
    found = page.goto(hub.url + output.read_text().split("in JupyterHub: ")[1].split()[0])
    assert found.status == 403
    assert f"--allow-origin {hub.url.removeprefix('http://')}" in found.text()
    page.context.close()


# in JupyterLab ----------------------------------------------------------------------------------

# the browser prints this warning for each frame of dask-labextension, with the URL of its content
SANDBOX = (
    "An iframe which has both allow-scripts and allow-same-origin for its sandbox attribute can "
    "escape its sandboxing."
)


def test_plots_in_jupyterlabs_dask_panel(
    hub: Hub, cluster: LocalCluster, browser: Any, tmp_path: Path
) -> None:
    """By name, each in a tab, in the colors of JupyterLab.

    JupyterLab itself may write to the console; pages behind the proxy, Dask's and ours, must not.
    """
    port = cluster.scheduler.http_server.port
    with Client(cluster):
        train(tmp_path / "run")
    page = browser.new_page(viewport={"width": 1280, "height": 800}, storage_state=hub.state)
    page.set_default_timeout(60_000)
    messages: list[str] = []
    page.on("pageerror", lambda e: f"/proxy/{port}/" in e.stack and messages.append(e.stack))
    page.on("console", lambda m: is_ours(m, port) and messages.append(m.text))
    page.goto(f"{hub.server}/lab")
    page.click("[data-id='dask-dashboard-launcher']")
    page.fill("[placeholder='DASK DASHBOARD URL']", hub.proxied(port))
    page.keyboard.press("Enter")
    for name in PLOTS:
        page.wait_for_selector(f".dask-DashboardListing-item >> text='Rescnet {name}'")
    page.click("text='Rescnet Accuracy'")
    plot = find_frame(page, f"/proxy/{port}/individual-rescnet-accuracy")
    wait_for_points(plot, 2 * LAYERS)
    assert len(data(plot, "accuracy-points")["layer"]) == 2 * LAYERS
    assert background(plot) == "rgb(255, 255, 255)"
    take_screenshot(page, "lab-light")
    page.click("text='Settings'")
    page.hover(".lm-Menu-item >> text='Theme'")
    page.click(".lm-Menu-item >> text='JupyterLab Dark'")
    page.wait_for_function("document.body.dataset.jpThemeLight == 'false'")
    plot.wait_for_url("**?auto=dark")
    wait_for_points(plot, 2 * LAYERS)
    assert background(plot) == "rgb(22, 27, 34)"
    take_screenshot(page, "lab-dark")
    page.click("text='Rescnet Progress'")
    wait_for_text(find_frame(page, f"/proxy/{port}/individual-rescnet-progress"), "is done")
    take_screenshot(page, "lab-dark-progress")
    page.context.close()
    assert messages == []


def is_ours(message: Any, port: int) -> bool:
    """Return whether an error or warning comes from a page or script behind the proxy."""
    if message.text == SANDBOX:
        return False
    is_problem = message.type in ("error", "warning")
    return is_problem and f"/proxy/{port}/" in message.location["url"]


def find_frame(page: Any, path: str) -> Any:
    """Return the frame with a path, once there is one."""
    return page.wait_for_selector(f"iframe[src*='{path}']").content_frame()


def background(frame: Any) -> Any:
    """Return the background color of the plots."""
    return frame.evaluate("getComputedStyle(document.body).backgroundColor")


def wait_for_text(frame: Any, text: str) -> None:
    """Wait until the progress panel contains a text."""
    ready = "typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0"
    frame.wait_for_function(f"{ready} && {PROGRESS_TEXT}.includes('{text}')")
