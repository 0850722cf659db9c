"""Stand-alone server of the page of runs, which reads run stores only and needs no cluster."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.resources import Resources
from bokeh.server.auth_provider import AuthProvider
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.util import check_allowlist, create_hosts_allowlist
from jinja2 import Template
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets
from tornado.web import RequestHandler

from rescnet_dist.dashboard.page import (
    is_dark,
    show_plots,
    style_html,
    theme_link_html,
    theme_script_html,
)
from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.errors import RescnetError, mask_secrets

DEFAULT_PORT = 5007
REFRESH_SECONDS = 2.0  # between two reads of the store of a run
REFRESH_DONE_SECONDS = 20.0  # the same for a run that is done, and may be resumed
ALL_ADDRESSES = ("0.0.0.0", "::", "")  # hosts that stand for all addresses of this machine
TOKEN_COOKIE = "rescnet-token"
TOKEN_BYTES = 24

PAGE_TEMPLATE = """{% extends base %}
{% block preamble %}STYLE{% endblock %}
{% block contents %}<div class="content">{{ super() }}</div>SWITCH{% endblock %}
"""


class StoredRuns:
    """The runs at some URLs, read again in the background while `views` is called."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._runs = [StoredRun(url) for url in urls]
        self._views = [run.view() for run in self._runs]  # raises if one cannot be shown
        self._is_reading = [False] * len(self._runs)
        self._read_at = [time.monotonic()] * len(self._runs)

    def views(self) -> list[RunView]:
        """Return the runs as last read, and start to read them again if that is due."""
        now = time.monotonic()
        for number, view in enumerate(self._views):
            wait = REFRESH_SECONDS if view.state != "done" else REFRESH_DONE_SECONDS
            if not self._is_reading[number] and now - self._read_at[number] > wait:
                self._is_reading[number] = True
                # a daemon thread, as a store may not answer for a long time
                threading.Thread(target=self._read, args=[number], daemon=True).start()
        return list(self._views)

    def _read(self, number: int) -> None:
        """Read a run; if that fails, keep the last view and add the reason to its notes."""
        try:
            self._views[number] = self._runs[number].view()
        except Exception as error:  # one failed read must not end a page that is served for days
            self._views[number].add_note(mask_secrets(str(error) or type(error).__name__))
        finally:
            self._read_at[number], self._is_reading[number] = time.monotonic(), False


class TokenProvider(AuthProvider):
    """Authenticates requests by the token: in the URL at first, and by a cookie afterwards."""

    def __init__(self, token: str) -> None:
        self._token = token
        super().__init__()

    def _authenticate(self, handler: RequestHandler) -> str | None:
        """Return the user of a request, or None if it does not have the token."""
        given = handler.get_argument("token", None) or handler.get_cookie(TOKEN_COOKIE) or ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        if handler.get_cookie(TOKEN_COOKIE) != self._token:
            # Absent, or of another dashboard. The path limits the cookie to this page, as other
            # dashboards may be behind the same proxy.
            handler.set_cookie(TOKEN_COOKIE, self._token, path="", httponly=True, samesite="Strict")
        return "viewer"

    @property
    def get_user(self) -> Callable[[Any], Any]:
        """Function that returns the user of a request."""
        return self._authenticate

    @property
    def get_user_async(self) -> None:
        """None: `get_user` is enough."""

    @property
    def login_url(self) -> str:
        """Where requests without the token are redirected."""
        return "/login"

    @property
    def get_login_url(self) -> None:
        """None: `login_url` is the same for all requests."""

    @property
    def login_handler(self) -> type[RequestHandler]:
        """Handler of `login_url`."""
        return MissingTokenHandler

    @property
    def logout_url(self) -> None:
        """None: there is no logout."""

    @property
    def logout_handler(self) -> None:
        """None: there is no logout."""


class MissingTokenHandler(RequestHandler):
    """Responds to requests without the token."""

    def get(self) -> None:
        """Respond with status 403 and what is missing."""
        self.set_status(403)
        self.finish("This dashboard needs its token. Open the complete URL that it printed.\n")


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class UnknownHostHandler(RequestHandler):
    """Responds to requests whose Host header is not an allowed name of this server.

    The name may be that of a proxy, or one that another site has pointed at this machine to read
    from it (DNS rebinding). Tornado accepts a page and a server of the same name as one site, so
    the name itself is checked.
    """

    def prepare(self) -> None:
        """Respond with status 403 and the option to use."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        host = self.request.host
        self.finish(f"To open this dashboard through {host}, start it with --allow-origin {host}\n")


class DashboardApplication(BokehTornado):
    """Bokeh application with relative script URLs, which work behind any proxy prefix.

    Requests whose Host header is not an allowed site are rejected.
    """

    def resources(self, absolute_url: str | bool | None = None) -> Resources:
        """Return script resources with relative URLs."""
        return super().resources("")

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """Return the handler of a request, which is an error for an unknown host."""
        if not check_allowlist(request.host.lower(), list(self.websocket_origins)):
            return self.get_handler_delegate(request, UnknownHostHandler)
        return super().find_handler(request, **options)


class Dashboard:
    """Server of the page of some runs.

    On other hosts than loopback, the page needs a token. Without a token, it can be opened through
    any port of this machine's loopback, as with an SSH tunnel or a JupyterLab there, through the
    public URL of the user's JupyterHub server if the hub sets it, and through `origins`.

    Parameters
    ----------
    urls : sequence of str
        Run stores.
    host, port : str, int
        Address to listen on; port 0 selects a free port.
    token : str, optional
        Token that browsers must send. By default, one is generated unless the host is loopback.
    origins : sequence of str
        Other sites through which the page may be opened, as HOST[:PORT] or URLs.

    Attributes
    ----------
    url : str
        Where to open the page.
    proxied : str or None
        Where to open it through the user's JupyterHub server, if it was started there.
    port : int
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        if not token and not is_loopback(host):
            token = secrets.token_urlsafe(TOKEN_BYTES)
        allowed = ["*"] if token else _allowed_origins(host, origins)
        self._runs = StoredRuns(urls)
        page = Application(FunctionHandler(partial(_document, self._runs)))
        options: dict[str, Any] = {"auth_provider": TokenProvider(token)} if token else {}
        try:
            sockets = bind_sockets(port, host)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RescnetError(
                f"Cannot listen on port {port} of {host} ({reason}). Use another port, or 0 for "
                "any free port, and an address of this machine."
            ) from None
        pages = DashboardApplication({"/": page}, extra_websocket_origins=allowed, **options)
        http = HTTPServer(pages, xheaders=True)
        http.add_sockets(sockets)
        self._server = BaseServer(IOLoop.current(), pages, http)
        self.port = int(sockets[0].getsockname()[1])
        name = socket.gethostname() if host in ALL_ADDRESSES else host
        netloc, query = f"[{name}]" if ":" in name else name, f"?token={token}" if token else ""
        self.url = f"http://{netloc}:{self.port}/{query}"
        hub = os.environ.get("JUPYTERHUB_PUBLIC_URL") or os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
        self.proxied = f"{hub.rstrip('/')}/proxy/{self.port}/{query}" if hub else None

    def serve(self) -> None:
        """Serve until interrupted."""
        self._server.start()
        try:
            self._server.io_loop.start()
        finally:
            self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.stop()


def _allowed_origins(host: str, origins: Sequence[str]) -> list[str]:
    """Return the sites whose pages may connect to a server on loopback, as Bokeh matches them.

    All ports of loopback may: whoever can serve a page there can read from the server as well.
    """
    hub = os.environ.get("JUPYTERHUB_PUBLIC_URL")
    local = {f"[{host}]" if ":" in host else host, "localhost", "127.0.0.1", "[::1]"}
    given = [*origins, hub] if hub else origins
    return [*(f"{name}:*" for name in sorted(local)), *map(normalize_origin, given)]


def normalize_origin(site: str) -> str:
    """Return HOST:PORT of a host or URL; 80 stands for the ports that browsers leave out.

    >>> normalize_origin("https://Hub.example.org/user/ada/"), normalize_origin("hub:443")
    ('hub.example.org:80', 'hub:80')
    >>> normalize_origin("hub:8000")
    'hub:8000'
    """
    try:
        host = urlsplit(site if "//" in site else f"//{site}").netloc.lower()
        return create_hosts_allowlist([host.removesuffix(":443")], None)[0]
    except ValueError:
        raise RescnetError(f"{site!r} is not a site. Use HOST or HOST:PORT.") from None


def _document(runs: StoredRuns, doc: Document) -> None:
    """Fill the document of one browser session."""
    show_plots(doc, runs.views)
    dark = is_dark(doc)
    head = style_html(dark) + theme_script_html(follow_browser=True)
    source = PAGE_TEMPLATE.replace("STYLE", head).replace("SWITCH", theme_link_html(dark))
    doc.template = Template(source)
    names = ", ".join(mask_secrets(view.name) for view in runs.views())
    doc.title = f"rescnet: {names}"
