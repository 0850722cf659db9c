"""The page of runs on its own: from run stores alone, live, and long after their clusters."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.server.auth_provider import AuthProvider
from bokeh.server.server import Server
from jinja2 import Template
from tornado.web import RequestHandler

from rescnet_dist.dashboard.page import show_plots, style, switch, wants_dark
from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.errors import RescnetError, masked

PORT = 5007
LOOK_EVERY = 2.0  # seconds between two looks at the stores
COOKIE = "rescnet-token"

# a page that is asked for without a theme takes the browser's
TEMPLATE = """{% extends base %}
{% block preamble %}STYLE
<script>
  const asked = new URLSearchParams(location.search);
  if (!asked.has("theme") && matchMedia("(prefers-color-scheme: dark)").matches) {
    asked.set("theme", "dark");
    location.replace("?" + asked);
  }
</script>
{% endblock %}
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
            handler.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict")
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


class Dashboard:
    """A server of the page of some runs. Beyond loopback it wants a token, which is made where none
    is given; `url` is where to open it."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        token: str | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        self._runs = StoredRuns(urls)
        port = port or _free_port(host)
        page = Application(FunctionHandler(partial(_document, self._runs)))
        options: dict[str, Any] = {"auth_provider": TokenProvider(token)} if token else {}
        try:
            self._server = Server(
                {"/": page}, address=host, port=port, use_xheaders=True,
                allow_websocket_origin=[*_own_origins(host, port, bool(token)), *origins],
                **options,
            )  # fmt: skip
        except OSError as error:
            self._runs.close()
            raise RescnetError(
                f"port {port} of {host} cannot be listened at ({error.strerror or error}): give "
                "another port, or 0 for any that is free"
            ) from None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.port}/" + (f"?token={token}" if token else "")

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


def _own_origins(host: str, port: int, guarded: bool) -> list[str]:
    """Pages that may talk to the server: its own, by whatever name where a token guards it."""
    if guarded:
        return ["*"]
    return [f"{name}:{port}" for name in sorted({host, "localhost", "127.0.0.1"})]


def _free_port(host: str) -> int:
    """A port that nobody listens at."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def _document(runs: StoredRuns, doc: Document) -> None:
    """Fill a document for one browser."""
    show_plots(doc, runs.views)
    dark = wants_dark(doc)
    source = TEMPLATE.replace("STYLE", style(dark)).replace("SWITCH", switch(dark))
    doc.template = Template(source)
    names = ", ".join(masked(view.name) for view in runs.views())
    doc.title = f"rescnet: {names}"
