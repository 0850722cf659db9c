"""The page of runs on its own: from run stores alone, live, and long after their clusters."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

from rescnet_dist.dashboard.page import follow, show_plots, style, switch, wants_dark
from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.errors import RescnetError, masked

PORT = 5007
LOOK_EVERY = 2.0  # seconds between two looks at the stores
COOKIE = "rescnet-token"

TEMPLATE = """{% extends base %}
{% block preamble %}STYLE{% endblock %}
{% block contents %}<div class="content">{{ super() }}</div>SWITCH{% endblock %}
"""


class StoredRuns:
    """The runs at some URLs, looked at every so often while somebody asks for them."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._runs = [StoredRun(url) for url in urls]
        self._views = [run.view() for run in self._runs]  # what cannot be shown is refused here
        self._pool = ThreadPoolExecutor(1, "rescnet-look")
        self._looking: Future[list[RunView]] | None = None
        self._looked = time.monotonic()

    def views(self) -> list[RunView]:
        """The runs as they were when looked at last; looks again, in the background."""
        if self._looking and self._looking.done():
            self._views, self._looking = self._looking.result(), None
            self._looked = time.monotonic()
        if not self._looking and time.monotonic() - self._looked > LOOK_EVERY:
            self._looking = self._pool.submit(self._look)
        return self._views

    def _look(self) -> list[RunView]:
        return [_looked_at(run, old) for run, old in zip(self._runs, self._views, strict=True)]

    def close(self) -> None:
        """Look no more."""
        self._pool.shutdown(cancel_futures=True)


def _looked_at(run: StoredRun, old: RunView) -> RunView:
    """The run as it is now, or, where it cannot be read, as it was, with the reason."""
    try:
        return run.view()
    except RescnetError as error:
        if str(error) not in old.notes:
            old.notes.append(str(error))
        return old


class TokenProvider(AuthProvider):
    """Lets in who brings the token, in the URL first and then by cookie."""

    def __init__(self, token: str) -> None:
        self._token = token
        super().__init__()

    def _user(self, handler: RequestHandler) -> str | None:
        given = handler.get_argument("token", None) or handler.get_cookie(COOKIE) or ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        if not handler.get_cookie(COOKIE):
            # for this page alone, as others may be behind the same proxy
            handler.set_cookie(COOKIE, self._token, path="", httponly=True, samesite="Strict")
        return "viewer"

    @property
    def get_user(self) -> Callable[[Any], Any]:
        """Who a request is from."""
        return self._user

    @property
    def get_user_async(self) -> None:
        """Nobody has to be asked for that."""

    @property
    def login_url(self) -> str:
        """Where those without the token are sent."""
        return "/login"

    @property
    def get_login_url(self) -> None:
        """It is the same for all."""

    @property
    def login_handler(self) -> type[RequestHandler]:
        """What tells them so."""
        return Refusal

    @property
    def logout_url(self) -> None:
        """There is nothing to log out from."""

    @property
    def logout_handler(self) -> None:
        """Nor anything that does it."""


class Refusal(RequestHandler):
    """The answer to those without the token."""

    def get(self) -> None:
        """Say what is missing."""
        self.set_status(403)
        self.finish("This dashboard wants its token: open the whole URL that it printed.\n")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class WrongSite(RequestHandler):
    """The answer to a browser that comes by a name this server does not go by.

    It may be that of a proxy, or one that another site has pointed at this machine to read from it:
    as Tornado takes a page and a server of the same name for one site, the name itself is checked.
    """

    def prepare(self) -> None:
        """Say what to do."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        host = self.request.host
        self.finish(f"To open this dashboard through {host}, start it with --allow-origin {host}\n")


class Pages(BokehTornado):
    """Pages that look for their scripts beside them, whatever prefix a proxy puts before both, and
    that are shown only to who comes by the name of an allowed site."""

    def resources(self, absolute_url: str | bool | None = None) -> Resources:
        """Where the scripts are."""
        return super().resources("")

    def find_handler(self, request: HTTPServerRequest, **more: Any) -> Any:
        """What answers a request."""
        if not check_allowlist(request.host.lower(), list(self.websocket_origins)):
            return self.get_handler_delegate(request, WrongSite)
        return super().find_handler(request, **more)


class Dashboard:
    """A server of the page of some runs. Beyond loopback it wants a token, which is made where none
    is given; `url` is where to open it, `proxied` where it is inside the user's JupyterHub server,
    if it was started there.

    Without a token, the page may be opened through any port of this machine's loopback, as by an
    SSH tunnel or a JupyterLab there, through the public URL of the user's JupyterHub server where
    the hub tells it, and through `origins` (HOST[:PORT] or URLs).
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        token: str | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        if not token and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        allowed = ["*"] if token else _origins(host, origins)
        self._runs = StoredRuns(urls)
        page = Application(FunctionHandler(partial(_document, self._runs)))
        options: dict[str, Any] = {"auth_provider": TokenProvider(token)} if token else {}
        try:
            sockets = bind_sockets(port, host)
        except OSError as error:
            self._runs.close()
            raise RescnetError(
                f"port {port} of {host} cannot be listened at ({error.strerror or error}): give "
                "another port, or 0 for any that is free"
            ) from None
        pages = Pages({"/": page}, extra_websocket_origins=allowed, **options)
        http = HTTPServer(pages, xheaders=True)
        http.add_sockets(sockets)
        self._server = BaseServer(IOLoop.current(), pages, http)
        self.port = int(sockets[0].getsockname()[1])
        shown, query = f"[{host}]" if ":" in host else host, f"?token={token}" if token else ""
        self.url = f"http://{shown}:{self.port}/{query}"
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
        self._runs.close()


def _origins(host: str, more: Sequence[str]) -> list[str]:
    """Sites whose pages may talk to a server that only this machine reaches, as Bokeh matches them.

    Those of any port of loopback may: whoever can serve them can read from the server as well.
    """
    hub = os.environ.get("JUPYTERHUB_PUBLIC_URL")
    local = {f"[{host}]" if ":" in host else host, "localhost", "127.0.0.1", "[::1]"}
    given = [*more, hub] if hub else more
    return [*(f"{name}:*" for name in sorted(local)), *map(origin, given)]


def origin(site: str) -> str:
    """HOST:PORT of a site that is given so or by a URL; 80 stands for what browsers leave out.

    >>> origin("https://Hub.example.org/user/ada/"), origin("hub:443"), origin("hub:8000")
    ('hub.example.org:80', 'hub:80', 'hub:8000')
    """
    try:
        host = urlsplit(site if "//" in site else f"//{site}").netloc.lower()
        return create_hosts_allowlist([host.removesuffix(":443")], None)[0]
    except ValueError:
        raise RescnetError(f"{site!r} is no site: give HOST or HOST:PORT") from None


def _document(runs: StoredRuns, doc: Document) -> None:
    """Fill a document for one browser."""
    show_plots(doc, runs.views)
    dark = wants_dark(doc)
    head = style(dark) + follow(browser=True)
    source = TEMPLATE.replace("STYLE", head).replace("SWITCH", switch(dark))
    doc.template = Template(source)
    names = ", ".join(masked(view.name) for view in runs.views())
    doc.title = f"rescnet: {names}"
