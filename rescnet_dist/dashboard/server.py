"""The page of runs on its own: from run stores alone, live, and long after their clusters."""

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

from rescnet_dist.dashboard.page import follow, show_plots, style, switch, wants_dark
from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.errors import RescnetError, mask_secrets

PORT = 5007
LOOK_EVERY = 2.0  # seconds between two looks at the store of a run
LOOK_AGAIN_EVERY = 20.0  # and of one that is done, and may be taken further
EVERYWHERE = ("0.0.0.0", "::", "")  # hosts that stand for all addresses of this machine
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
        self._looking = [False] * len(self._runs)
        self._looked = [time.monotonic()] * len(self._runs)

    def views(self) -> list[RunView]:
        """The runs as they were when looked at last; looks again, in the background."""
        now = time.monotonic()
        for number, view in enumerate(self._views):
            wait = LOOK_EVERY if view.state != "done" else LOOK_AGAIN_EVERY
            if not self._looking[number] and now - self._looked[number] > wait:
                self._looking[number] = True
                # a thread of its own, which nothing waits for: a store may not answer for long
                threading.Thread(target=self._look, args=[number], daemon=True).start()
        return list(self._views)

    def _look(self, number: int) -> None:
        """See how a run is now; where it cannot be read, it stays as it was, with the reason."""
        try:
            self._views[number] = self._runs[number].view()
        except Exception as error:  # a page that is served for days must not end by one look
            self._views[number].note(mask_secrets(str(error) or type(error).__name__))
        finally:
            self._looked[number], self._looking[number] = time.monotonic(), False


class TokenProvider(AuthProvider):
    """Lets in who brings the token, in the URL first and then by cookie."""

    def __init__(self, token: str) -> None:
        self._token = token
        super().__init__()

    def _user(self, handler: RequestHandler) -> str | None:
        given = handler.get_argument("token", None) or handler.get_cookie(COOKIE) or ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        if handler.get_cookie(COOKIE) != self._token:  # or that of another dashboard
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
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RescnetError(
                f"port {port} of {host} cannot be listened at ({reason}): give another port, or 0 "
                "for any that is free, and an address of this machine"
            ) from None
        pages = Pages({"/": page}, extra_websocket_origins=allowed, **options)
        http = HTTPServer(pages, xheaders=True)
        http.add_sockets(sockets)
        self._server = BaseServer(IOLoop.current(), pages, http)
        self.port = int(sockets[0].getsockname()[1])
        name = socket.gethostname() if host in EVERYWHERE else host
        shown, query = f"[{name}]" if ":" in name else name, f"?token={token}" if token else ""
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
    names = ", ".join(mask_secrets(view.name) for view in runs.views())
    doc.title = f"rescnet: {names}"
